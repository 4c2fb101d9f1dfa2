"""Coordinators beside bare Temporal parents with as many children, agents at the same time, and stops of whole trees.

Usage: python -m benchmarks.teams [--rounds N] [--json]

Everything runs in this process on one dev server, alternating. The bare side has workflows and activities of the same
shape and records nothing; ours writes its ledger. Ratios are what counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

from temporalio.worker import Worker

from benchmarks.bare_team import BareTeam, BareWorker
from benchmarks.bare_workflow import bare_call, bare_finish, bare_prepare
from benchmarks.turns import InstantSandbox
from milepost.domain.agents import AgentConfig
from milepost.domain.messages import AssistantMessage, FinishReason, TextPart
from milepost.domain.teams import AgentRole
from milepost.domain.usage import Usage
from milepost.ports.models import ModelCompleted, ModelHealth, ModelItem, ModelRequest, TextDelta
from milepost.services.sessions import OpenSession
from milepost.storage import FileBlobStore, open_ledger, open_notifier, upgrade
from milepost.temporal.dev_server import DevServer
from milepost.temporal.exit import clean_exit
from tests.support.temporal import Stack, build_stack
from workers.runtime import runner

WORKERS = 8
BRANCHES = 5
LIMIT_SECONDS = 120


class Model:
    """Answers at once: planners with one subtask for each worker, others after `seconds`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.subtasks = WORKERS
        self.working = 0
        self.changed = asyncio.Condition()

    async def _count(self, by: int) -> None:
        self.working += by
        async with self.changed:
            self.changed.notify_all()

    async def until(self, working: int) -> None:
        """Return once so many calls are open."""
        async with self.changed, asyncio.timeout(LIMIT_SECONDS):
            await self.changed.wait_for(lambda: self.working == working)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelItem, None]:
        text = "done"
        if request.agent.endswith(":plan"):
            text = json.dumps({"subtasks": [{"name": f"t{n}", "description": "x"} for n in range(self.subtasks)]})
        elif self.seconds:
            await self._count(1)
            try:
                await asyncio.sleep(self.seconds)
            finally:
                await asyncio.shield(self._count(-1))
        yield TextDelta(text)
        message = AssistantMessage((TextPart(text),))
        yield ModelCompleted(message, FinishReason.STOP, Usage(10, 0, 1, 0), request.provider, request.model)

    async def check(self, provider: str) -> ModelHealth:
        return ModelHealth(provider, True, "instant")

    def validate(self, provider: str, model: str, script: str | None = None) -> None:
        return

    async def close(self) -> None:
        return


def agents() -> dict[str, AgentConfig]:
    names = tuple(f"w{n}" for n in range(WORKERS))
    leaves = tuple(f"leaf{n}" for n in range(BRANCHES))
    branches = tuple(f"branch{n}" for n in range(BRANCHES))
    lead, tree = AgentRole.COORDINATOR, AgentRole.COORDINATOR
    made = [AgentConfig(name, "scripted", "demo", tools=()) for name in (*names, *leaves, "default")]
    made += [AgentConfig(name, "scripted", "demo", tools=(), role=lead, workers=leaves) for name in branches]
    made.append(AgentConfig("lead", "scripted", "demo", tools=(), role=lead, workers=names))
    made.append(AgentConfig("tree", "scripted", "demo", tools=(), role=tree, workers=branches))
    return {each.agent_id: each for each in made}


async def turn(stack: Stack, session: str) -> float:
    """Seconds from the accept to the recorded end."""
    start = time.perf_counter()
    ended = await stack.ended((await stack.send(session, "go")).turn.turn_id, LIMIT_SECONDS)
    if ended.state != "completed":
        raise RuntimeError(f"the turn ended as {ended.state}: {ended.error_message}")
    return time.perf_counter() - start


async def stopped(stack: Stack, session: str, model: Model, leaves: int) -> tuple[float, float]:
    """Seconds from a stop with all leaves at work: to the last closed call, and to the recorded end."""
    turn_id = (await stack.send(session, "go")).turn.turn_id
    await model.until(leaves)
    start = time.perf_counter()
    await stack.turns.stop(turn_id, actor="benchmark")
    await model.until(0)
    closed = time.perf_counter() - start
    await stack.ended(turn_id, LIMIT_SECONDS)
    return closed, time.perf_counter() - start


async def measure(rounds: int) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp())
    model = Model()
    async with AsyncExitStack() as stack_:
        url = f"sqlite:///{folder}/ledger.db"
        await upgrade(url)
        notifier = await open_notifier(url)
        ledger = await open_ledger(url, notifier)
        stack_.push_async_callback(ledger.close)
        server = DevServer(None, folder / "temporal.log")
        address = await server.start()
        stack_.push_async_callback(server.stop)
        blobs = FileBlobStore(folder / "blobs")
        stack = await build_stack(ledger, notifier, blobs, model, InstantSandbox(), address, agents=agents())  # type: ignore[arg-type]
        await stack_.enter_async_context(stack.worker())
        bare = Worker(
            stack.client,
            task_queue="bare",
            workflows=[BareTeam, BareWorker],
            activities=[bare_prepare, bare_call, bare_finish],
            workflow_runner=runner(),
        )
        await stack_.enter_async_context(bare)

        async def session(*names: str) -> str:
            return (await stack.sessions.open(OpenSession(str(folder), agents=names))).session_id

        ours, theirs = [], []
        for number in range(rounds + 2):
            mine = await turn(stack, await session("lead"))
            start = time.perf_counter()
            await stack.client.execute_workflow(BareTeam.run, WORKERS, id=f"bare-{number}", task_queue="bare")
            other = time.perf_counter() - start
            if number >= 2:
                ours.append(mine)
                theirs.append(other)
        model.seconds = 1.0
        single = statistics.median([await turn(stack, await session("default")) for _ in range(3)])
        names = tuple(f"w{n}" for n in range(WORKERS))
        together = statistics.median([await turn(stack, await session(*names)) for _ in range(3)])
        model.seconds, model.subtasks = 60.0, BRANCHES
        alone = [await stopped(stack, await session("default"), model, 1) for _ in range(5)]
        tree = [await stopped(stack, await session("tree"), model, BRANCHES * BRANCHES) for _ in range(5)]
    return {
        "coordinator_ms": statistics.median(ours) * 1000,
        "bare_ms": statistics.median(theirs) * 1000,
        "ratio": statistics.median(ours) / statistics.median(theirs),
        "one_agent_of_1_s": single,
        "eight_agents_of_1_s": together,
        "stop_one_closed_ms": statistics.median(closed for closed, _ in alone) * 1000,
        "stop_one_ended_ms": statistics.median(ended for _, ended in alone) * 1000,
        "stop_25_closed_ms": statistics.median(closed for closed, _ in tree) * 1000,
        "stop_25_ended_ms": statistics.median(ended for _, ended in tree) * 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=10, choices=range(1, 201), metavar="N")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = asyncio.run(measure(arguments.rounds))
    if arguments.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:24} {value:10.2f}")
    clean_exit(0)


if __name__ == "__main__":
    main()
