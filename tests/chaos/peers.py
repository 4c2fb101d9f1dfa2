"""Kills at every boundary of a turn with tools and hooks of the user's own, judged by what their peer wrote down.

`python -m tests.chaos.peers --kills 2 --seed 1` kills at each moment so often and prints what was found. The turn makes
calls of a keyed and of an at-most-once tool; a hook before each call changes its arguments, one after it its result.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from milepost.domain.effects import Effect, EffectState
from milepost.domain.errors import LedgerCorrupt, MilepostError
from milepost.domain.events import LATE_EVENTS, TERMINAL_TURN_EVENTS, EffectReconciled, HookDecided, ToolFinished
from milepost.domain.turns import TurnState
from milepost.ledger.chain import StoredEvent, verify_chain
from milepost.ledger.codec import decode_event
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.storage import open_ledger, open_notifier
from tests.chaos.client import ApiClient
from tests.chaos.points import Boundary, Point, When
from tests.chaos.shapes import Embedded, Home
from tests.support.peer import Peer, Request

KEYED, ONCE = "book", "send"
CALLS = {"tool.1.0": KEYED, "tool.1.1": ONCE, "tool.2.0": ONCE, "tool.2.1": KEYED}
SCRUBBED = "the scrubbed answer"
REACH_SECONDS = 60.0
END_SECONDS = 120.0


def _around(position: str) -> tuple[str, str, str]:
    """A call's effect with those of its hooks, in the order of the turn."""
    place = position.removeprefix("tool.")
    return f"hook.{place}.before.0", position, f"hook.{place}.after.0"


def moments() -> list[Point]:
    """Before and after both commits of each call of the first round and of its hooks."""
    positions = [each for position in ("tool.1.0", "tool.1.1") for each in _around(position)]
    boundaries = (Boundary.ENTER_TOOL, Boundary.SETTLE_TOOL)
    sides = (When.BEFORE, When.AFTER)
    return [Point(boundary, side, each) for each in positions for boundary in boundaries for side in sides]


def may_be_unknown(point: Point) -> bool:
    """Whether the death leaves the outcome of the at-most-once call open: between its dispatch and its noted end."""
    return point == Point(Boundary.ENTER_TOOL, When.AFTER, "tool.1.1")


def script() -> str:
    """The scripted provider's answers."""
    rounds = [
        {"text": f"Round {number}.", "calls": [_call(position) for position in CALLS if f".{number}." in position]}
        for number in (1, 2)
    ]
    return json.dumps({"responses": [*rounds, {"text": "Booked and sent."}]})


def _call(position: str) -> dict[str, object]:
    return {"tool": CALLS[position], "args": {"what": position}}


def answer(request: Request) -> tuple[int, bytes]:
    """What the peer says: both hooks rewrite, both tools do something."""
    if request.path == "/guard":
        return 200, _json(decision="rewrite", arguments={**request.json["arguments"], "checked": True})
    if request.path == "/scrub":
        return 200, _json(decision="rewrite", output=SCRUBBED)
    return 200, b"done, and here is something private"


def _json(**values: object) -> bytes:
    return json.dumps(values).encode()


def configuration(url: str) -> dict[str, object]:
    """An instance without sandboxes, whose one agent has both tools and both hooks."""
    tool = {
        "type": "http",
        "description": "Does something.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
        "approval": "allow",
        "timeout": 20,
    }
    return {
        "sandbox": {"backend": "none"},
        "temporal": {"port": 0, "ui_port": 0},
        "tools": {
            KEYED: {**tool, "url": f"{url}/{KEYED}", "effect": "keyed"},
            ONCE: {**tool, "url": f"{url}/{ONCE}"},
        },
        "hooks": {
            "guard": {"type": "http", "when": "before", "url": f"{url}/guard"},
            "scrub": {"type": "http", "when": "after", "url": f"{url}/scrub"},
        },
        "agents": {"default": {"tools": [KEYED, ONCE]}},
    }


@dataclass
class World:
    """A running instance beside a peer."""

    shape: Embedded
    peer: Peer
    client: ApiClient
    ledger: Ledger
    workspace: Path
    number: int = 0

    async def turn(self, point: Point | None, rng: random.Random) -> Found:
        """Run a turn in a Session of its own; with a point the instance dies there and is started again."""
        self.number += 1
        self.peer.requests.clear()
        session = await self.client.open_session(self.workspace)
        turn = f"turn-{session[-12:]}-{self.number}"
        process = self.shape.processes[0]
        process.arm(point)
        await self.client.begin(session, turn, "Book and send.", script())
        if point is not None:
            async with asyncio.timeout(REACH_SECONDS):
                await process.reached.wait()
            revive = await self.shape.kill("instance", process, rng)
            await asyncio.sleep(rng.uniform(0.2, 1))
            try:
                await revive()
            except AssertionError:
                # The Temporal server of the dead instance may hold its store for a moment longer.
                await asyncio.sleep(5)
                await revive()
        with contextlib.suppress(TimeoutError):  # it is judged as it is then
            async with asyncio.timeout(END_SECONDS):
                while await self._state(turn) is TurnState.RUNNING:
                    await asyncio.sleep(0.1)
        return await self._found(session, turn, point)

    async def _state(self, turn: str) -> TurnState:
        return (await self.ledger.read(lambda tx: tx.turns.get(turn))).state

    async def _found(self, session: str, turn: str, point: Point | None) -> Found:
        def body(tx: LedgerTx) -> Found:
            return Found(
                point=point,
                state=tx.turns.get(turn).state,
                stored=tx.events.read(session, limit=10_000),
                effects=tx.effects.page(session, turn_id=turn, state=None, limit=1000),
                requests=list(self.peer.requests),
            )

        return await self.ledger.read(body)


@dataclass
class Found:
    """What a turn left in the ledger and at the peer."""

    point: Point | None
    state: TurnState
    stored: list[StoredEvent]
    effects: list[Effect]
    requests: list[Request]
    faults: list[str] = field(default_factory=list)

    def judge(self) -> list[str]:
        """Everything that must not be."""
        self.faults = []
        events = [decode_event(item.type, item.version, item.payload) for item in self.stored]
        if self.state is not TurnState.COMPLETED:
            self.faults.append(f"the turn is {self.state}")
        early = [event for event in events if not isinstance(event, LATE_EVENTS)]
        if [index for index, event in enumerate(early) if isinstance(event, TERMINAL_TURN_EVENTS)] != [len(early) - 1]:
            self.faults.append("there is not one terminal event at the end")
        try:
            verify_chain(self.stored)
        except LedgerCorrupt as error:
            self.faults.append(f"chain: {error}")
        late = {event.effect_id for event in events if isinstance(event, EffectReconciled)}
        self._judge_results([event for event in events if isinstance(event, ToolFinished)], late)
        self._judge_hooks([event for event in events if isinstance(event, HookDecided)])
        self._judge_peer()
        return self.faults

    def _judge_results(self, finished: list[ToolFinished], late: set[str]) -> None:
        """`late`: calls of attempts that were taken for lost, as on a machine that stalls, and ended after all."""
        unknown = self.point is not None and may_be_unknown(self.point)
        places = [f"tool.{event.round}.{event.index}" for event in finished]
        if sorted(places) != sorted(CALLS):
            self.faults.append(f"results of {places}")
        for place, event in zip(places, finished, strict=True):
            open_end = (unknown and place == "tool.1.1") or (event.effect_id in late and CALLS.get(place) == ONCE)
            if event.state not in {EffectState.SUCCEEDED} | ({EffectState.UNCERTAIN} if open_end else set()):
                self.faults.append(f"{place} is {event.state}")
            shown = event.output.text
            if "private" in shown or (event.state is EffectState.SUCCEEDED and SCRUBBED not in shown):
                self.faults.append(f"the model got {shown!r} of {place}")
        rows = {effect.spec.position: effect.state for effect in self.effects if effect.spec.effect_id not in late}
        told = dict(zip(places, (event.state for event in finished), strict=True))
        for place in CALLS:
            if place in rows and rows[place] is not told.get(place):
                self.faults.append(f"row and result of {place} differ")

    def _judge_hooks(self, decided: list[HookDecided]) -> None:
        count = Counter((event.round, event.index, event.hook) for event in decided)
        twice = {place: times for place, times in count.items() if times > 1}
        if twice:
            self.faults.append(f"hooks decided more than once: {twice}")

    def _judge_peer(self) -> None:
        """Who was called how often, and with which keys."""
        sent = [request.json for request in self.requests if request.path == f"/{ONCE}"]
        for what, times in Counter(body["what"] for body in sent).items():
            if times > 1:
                self.faults.append(f"the at-most-once call {what} was made {times} times")
        unknown = {effect.spec.position for effect in self.effects if effect.state is EffectState.UNCERTAIN}
        for position in (position for position, tool in CALLS.items() if tool == ONCE):
            if position not in unknown and not any(body["what"] == position for body in sent):
                self.faults.append(f"the at-most-once call {position} is told to be made and was not")
        if any(not body.get("checked") for body in sent):
            self.faults.append("a call was made without what the hook put into it")
        keys = {effect.spec.position: effect.spec.idempotency_key for effect in self.effects}
        for position, tool in CALLS.items():
            if tool == KEYED:
                got = [
                    _key(each) for each in self.requests if each.path == f"/{KEYED}" and each.json["what"] == position
                ]
                if position in keys and set(got) != {keys[position]}:
                    self.faults.append(f"{position} came with the keys {got}")
            for name, place in (("guard", _around(position)[0]), ("scrub", _around(position)[2])):
                got = [
                    _key(each)
                    for each in self.requests
                    if each.path == f"/{name}" and each.json["arguments"]["what"] == position
                ]
                if place in keys and set(got) != {keys[place]}:
                    self.faults.append(f"hook {name} was asked about {position} with the keys {got}")


def _key(request: Request) -> str | None:
    return request.headers.get("idempotency-key")


@asynccontextmanager
async def world(off: frozenset[str] = frozenset()) -> AsyncIterator[World]:
    """A running instance of which nothing is left at the end."""
    home = Home(Path("none"))
    workspace = home.folder / "workspace"
    workspace.mkdir()
    with Peer(respond=answer) as peer:
        shape = Embedded(home, off)
        home.configure(configuration(peer.url))
        client = ApiClient(home.data)
        try:
            await shape.start()
            notifier = await open_notifier(shape.url)
            ledger = await open_ledger(shape.url, notifier)
            try:
                yield World(shape, peer, client, ledger, workspace)
            finally:
                await ledger.close()
                await notifier.close()
        except (AssertionError, TimeoutError, MilepostError) as error:
            raise AssertionError(f"{error!r}\n{home.words()}") from error
        finally:
            await client.close()
            await asyncio.shield(shape.close())
            home.remove()


async def kills(points: Iterable[Point], seed: int, off: frozenset[str] = frozenset()) -> list[Found]:
    """One turn for each point, in one instance, after an undisturbed one. All are judged."""
    async with world(off) as running:
        undisturbed = await running.turn(None, random.Random(seed))
        assert not undisturbed.judge(), undisturbed.faults
        found = []
        for number, point in enumerate(points):
            found.append(await running.turn(point, random.Random(f"{seed}/{number}/{point}")))
            if found[-1].judge():
                sys.stderr.write(f"{point}: {found[-1].faults}\n{running.shape.home.words()}\n")
        return found


def table(found: list[Found], seed: int) -> tuple[str, bool]:
    """A report, and whether there is no fault in it."""
    unknown = sum(any(effect.state is EffectState.UNCERTAIN for effect in each.effects) for each in found)
    again = sum(len(each.requests) > len({_key(request) or id(request) for request in each.requests}) for each in found)
    faults = [f"{each.point}: {fault}" for each in found for fault in each.faults]
    lines = [
        f"seed {seed}, {len(found)} kills at {len({str(each.point) for each in found})} moments",
        f"turns in which a peer was called again with the same key: {again}",
        f"at-most-once calls whose outcome is unknown: {unknown}",
        f"faults: {len(faults)}",
        *faults,
    ]
    return "\n".join(lines), not faults


def main(arguments: list[str]) -> int:
    """Kill at every moment."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.peers", description=__doc__)
    parser.add_argument("--kills", type=int, default=1, help="kills at each moment")
    parser.add_argument("--seed", type=int, default=1)
    chosen: Any = parser.parse_args(arguments)
    points = [point for _ in range(max(1, min(chosen.kills, 100))) for point in moments()]
    random.Random(chosen.seed).shuffle(points)
    text, good = table(asyncio.run(kills(points, chosen.seed)), chosen.seed)
    sys.stdout.write(f"{text}\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
