"""Stopping turn N while N+1 is begun, again and again: N ends stopped or by itself, and N+1 is never touched.

Usage: python -m tests.turns.stop_rounds [--rounds N] [--seed N]

A real Temporal dev server and ledger (SQLite), a sandbox in memory, the scripted model.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from milepost.domain.errors import TurnNotRunning, TurnRunning
from milepost.domain.events import TERMINAL_TURN_EVENTS, ModelCalled, StopRequested
from milepost.domain.providers import ScriptedProvider
from milepost.domain.turns import Turn, TurnState
from milepost.providers.gateway import Gateway
from milepost.storage import FileBlobStore, open_ledger, open_notifier, upgrade
from milepost.temporal.dev_server import DevServer
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack, build_stack
from tests.turns.conftest import NoSecrets
from tests.turns.test_turns import call, script

SESSIONS = 8
"""Rounds at a time, each Session's one after the other."""
MAX_ROUNDS = 5_000
LIMIT_SECONDS = 1800
TURN_SECONDS = 120
LATEST = 0.4
"""Seconds after its begin at which a turn is stopped at the latest."""

SHORT = script({"text": "Short."})
DOOMED = (
    script({"text": "word " * 200, "delay": 0.01}),
    script({"text": "Now.", "calls": [call("bash", command="hang")]}, {"text": "no"}),
    SHORT,
)
NEXT = script({"text": "Looking.", "calls": [call("bash", command="make")]}, {"text": "All done."})


@dataclass
class Tally:
    """How the stopped turns ended."""

    stopped: int = 0
    completed: int = 0


async def rounds(stack: Stack, folder: Path, count: int, seed: int) -> Tally:
    """Run so many rounds over some Sessions at a time. Raises AssertionError for the first that goes wrong."""
    tally = Tally()
    async with asyncio.TaskGroup() as group:
        for lane in range(min(SESSIONS, count)):
            share = count // SESSIONS + (lane < count % SESSIONS)
            group.create_task(_lane(stack, folder, share, random.Random(f"{seed}/{lane}"), tally))
    return tally


async def _lane(stack: Stack, folder: Path, count: int, chance: random.Random, tally: Tally) -> None:
    session = await stack.open(folder)
    for _ in range(count):
        responses = chance.choice(DOOMED)
        begun = await stack.send(session, script=responses)
        doomed = begun.turn.turn_id
        # One that ends by itself is given the time to do so now and then, also on a busy machine.
        await asyncio.sleep(chance.random() * LATEST * (4 if responses == SHORT else 1))
        stops = asyncio.gather(*(_stop(stack, doomed, chance.random() * 0.05) for _ in range(3)))
        after = await _begin_next(stack, session)
        # Whoever asks late asks for a turn that is over, while the next one runs.
        with contextlib.suppress(TurnNotRunning):
            await stack.turns.stop(doomed, actor="late")
            raise AssertionError("a turn that is over was stopped")
        accepted = any(await stops)
        first, second = await stack.ended(doomed, TURN_SECONDS), await stack.ended(after, TURN_SECONDS)
        assert first.state is (TurnState.STOPPED if accepted else TurnState.COMPLETED), (accepted, first)
        assert second.state is TurnState.COMPLETED and second.stop_requested_at is None, second
        await _intact(stack, session, second)
        tally.stopped += accepted
        tally.completed += not accepted


async def _stop(stack: Stack, turn_id: str, seconds: float) -> bool:
    await asyncio.sleep(seconds)
    try:
        await stack.turns.stop(turn_id, actor="test")
    except TurnNotRunning:
        return False
    return True


async def _begin_next(stack: Stack, session: str) -> str:
    async with asyncio.timeout(TURN_SECONDS):
        while True:
            with contextlib.suppress(TurnRunning):
                return (await stack.send(session, script=NEXT)).turn.turn_id
            await asyncio.sleep(0.002)


async def _intact(stack: Stack, session: str, turn: Turn) -> None:
    """The turn has all of its own, and one end."""
    stored = await stack.parts.ledger.read(
        lambda tx: tx.events.read_turn(
            session,
            turn.turn_id,
            types=(ModelCalled.TYPE, StopRequested.TYPE, *(cls.TYPE for cls in TERMINAL_TURN_EVENTS)),
        )
    )
    assert [event.type for event in stored] == ["model.called", "model.called", "turn.completed"]
    entry = await stack.history.entry(turn.turn_id)
    assert (entry.output.text, entry.agents[0].partial) == ("All done.", False)


async def _main(count: int, seed: int) -> None:
    async with AsyncExitStack() as closing, asyncio.timeout(LIMIT_SECONDS):
        root = Path(closing.enter_context(tempfile.TemporaryDirectory()))
        url = f"sqlite:///{root}/ledger.db"
        await upgrade(url)
        notifier = await open_notifier(url)
        closing.push_async_callback(notifier.close)
        ledger = await open_ledger(url, notifier)
        closing.push_async_callback(ledger.close)
        gateway = Gateway({"scripted": ScriptedProvider("scripted")}, NoSecrets())
        closing.push_async_callback(gateway.close)
        server = DevServer(None, root / "temporal.log")
        closing.push_async_callback(server.stop)
        address = await server.start()
        blobs = FileBlobStore(root / "blobs")
        stack = await build_stack(ledger, notifier, blobs, gateway, MemorySandboxes(), address)
        await closing.enter_async_context(stack.worker())
        started = time.monotonic()
        tally = await rounds(stack, root, count, seed)
        print(f"{count} rounds (seed {seed}) in {time.monotonic() - started:.0f} s: {tally}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    asyncio.run(_main(max(1, min(options.rounds, MAX_ROUNDS)), options.seed))


if __name__ == "__main__":
    main()
