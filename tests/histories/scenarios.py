"""Turns worth keeping the history of, played on a real server with a model that answers as it is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from milepost.bootstrap.system import UuidIds
from milepost.domain.agents import AgentConfig
from milepost.domain.approvals import ApprovalState
from milepost.domain.content import Content
from milepost.domain.errors import ModelError, ModelRateLimited, ModelRequestRejected, ModelUnavailable
from milepost.domain.messages import AssistantMessage, AssistantPart, FinishReason, TextPart, ToolCallPart
from milepost.domain.teams import AgentFailure, AgentRole
from milepost.domain.tools import Approval
from milepost.domain.turns import Turn, TurnState
from milepost.domain.usage import Usage
from milepost.ports.models import ModelCompleted, ModelHealth, ModelItem, ModelRequest, TextDelta
from milepost.providers.call_ids import generated_call_id
from milepost.services.approvals import Answer, ApprovalService
from milepost.services.sessions import OpenSession
from milepost.storage import FileBlobStore, open_ledger, open_notifier
from milepost.temporal.client import TemporalAddress
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack, build_stack

MIB = 1024 * 1024


@dataclass(frozen=True)
class Step:
    """One answer of the model: the first attempts fail with `failures`, then text and calls come.

    `calls` are (tool, raw arguments), or (tool, raw arguments, call id).
    """

    text: str = ""
    calls: tuple[tuple[str, ...], ...] = ()
    failures: tuple[Exception, ...] = ()


class Answers:
    """The model gateway port over given steps; nothing is parsed, so arguments may be of any size and shape."""

    def __init__(self, steps: Sequence[Step], parts: Mapping[str, Sequence[Step]] | None = None) -> None:
        self._steps = steps
        self._parts = parts or {}
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelItem, None]:
        self.requests.append(request)
        step = self._parts.get(request.agent, self._steps)[request.call_number - 1]
        if request.attempt <= len(step.failures):
            raise step.failures[request.attempt - 1]
        parts: list[AssistantPart] = []
        if step.text:
            yield TextDelta(step.text)
            parts.append(TextPart(step.text))
        for index, (tool, arguments, *given) in enumerate(step.calls):
            call_id = given[0] if given else generated_call_id(request.idempotency_key, index)
            parts.append(ToolCallPart(call_id, tool, Content(arguments)))
        finish = FinishReason.TOOL_CALLS if step.calls else FinishReason.STOP
        yield ModelCompleted(AssistantMessage(tuple(parts)), finish, Usage(10, 0, 5, 0), "scripted", "given")

    async def check(self, provider: str) -> ModelHealth:
        return ModelHealth(provider, True, "given answers")

    def validate(self, provider: str, model: str, script: str | None = None) -> None:
        return

    async def close(self) -> None:
        return


def call(tool: str, **arguments: object) -> tuple[str, str]:
    return tool, json.dumps(arguments)


def sized_arguments(size: int) -> str:
    """Arguments of `write_file` of exactly `size` bytes, whose content is within the tool's own limit."""
    before, after = '{"path":"big.txt","content":"', '"}'
    room = size - len(before) - len(after)
    # A line end is one byte of content and two of JSON.
    return before + "\\n" * (room // 2) + "x" * (room % 2) + after


BIG_OUTPUT = 5_000_000
TEN_CALLS = (
    call("read_file", path="a.txt"),
    call("list_dir"),
    call("grep", pattern="needle"),
    call("glob", pattern="**/*.py"),
    ("write_file", sized_arguments(16 * MIB)),
    call("edit_file", path="a.txt", old="x", new="y"),
    call("bash", command=f"big {BIG_OUTPUT}"),
    call("bash", command="exit 3"),
    call("read_file", path="missing.txt"),
    call("no_such_tool", why="models invent tools"),
)


@dataclass(frozen=True)
class Scenario:
    """A turn and how it ends.

    `stop_at` names the command during which it is stopped. With `answers` commands need an approval, and a person gives
    these, one after the other. `agents` are those of the Session, out of `TEAM`; `parts` are the answers of parts that
    do not give `steps`. `child` is what the id of the workflow whose history counts has behind the turn's.
    """

    name: str
    steps: tuple[Step, ...]
    state: TurnState
    stop_at: str | None = None
    answers: tuple[bool, ...] = ()
    agents: tuple[str, ...] = ()
    parts: Mapping[str, Sequence[Step]] = field(default_factory=dict)
    child: str = ""


def huge(error: type[ModelError], size: int) -> ModelError:
    """An error as a proxy makes it that sends a whole page, with a cause as long as itself."""
    failure = error("🚧 €" * (size // 8))
    failure.__cause__ = RuntimeError("<html>" + "x" * size)
    return failure


TEAM = {
    agent.agent_id: agent
    for agent in (
        AgentConfig("scout", "scripted", "demo"),
        AgentConfig("writer", "scripted", "demo", depends_on=("scout",)),
        AgentConfig("optional", "scripted", "demo", on_failure=AgentFailure.CONTINUE),
        AgentConfig("coder", "scripted", "demo"),
        AgentConfig("lead", "scripted", "demo", role=AgentRole.COORDINATOR, workers=("coder",)),
    )
}
PLAN = json.dumps(
    [
        {"name": "one", "description": "Do one.", "tools": ["bash"]},
        {"name": "two", "description": "Do two.", "depends_on": ["one"]},
        {"name": "three", "description": "Do three.", "tools": ["write_file"]},
    ]
)
LEAD: Mapping[str, Sequence[Step]] = {
    "lead:plan": (Step(PLAN),),
    "lead/coder": (
        Step("First.", (call("bash", command="make"),)),
        Step("One is done."),
        Step(failures=(ModelRequestRejected("no such model"),)),
        Step("Never asked."),
    ),
}
REFUSED = (Step(failures=(ModelRequestRejected("no such model"),)),)

SCENARIOS = (
    Scenario("plain_text", (Step("Hello."),), TurnState.COMPLETED),
    Scenario(
        "ten_tools_and_a_huge_failure",
        (
            Step("Looking.", TEN_CALLS),
            Step(failures=(huge(ModelUnavailable, 2 * MIB), huge(ModelRequestRejected, 4 * MIB))),
        ),
        TurnState.FAILED,
    ),
    Scenario(
        "stopped",
        (Step("First this.", (call("bash", command="make"),)), Step(calls=(call("bash", command="hang on"),) * 2)),
        TurnState.STOPPED,
        stop_at="hang on",
    ),
    Scenario("failed", (Step(failures=(ModelRequestRejected("no such model"),)),), TurnState.FAILED),
    Scenario(
        "retried_model_call",
        (
            Step(calls=(call("bash", command="make"),), failures=(ModelRateLimited("slow down", retry_after=0.1),)),
            Step("Done.", failures=(ModelUnavailable("overloaded", retry_after=0.1),) * 2),
        ),
        TurnState.COMPLETED,
    ),
    Scenario(
        "approved_and_rejected",
        (Step(calls=(call("bash", command="make"), call("bash", command="rm -r build"))), Step("Done.")),
        TurnState.COMPLETED,
        answers=(True, False),
    ),
    Scenario(
        "agents_in_order",
        (Step("Done."),),
        TurnState.COMPLETED,
        agents=("scout", "writer", "optional"),
        parts={"optional": REFUSED},
    ),
    Scenario("coordinator", (Step("All done."),), TurnState.COMPLETED, agents=("lead",), parts=LEAD),
    Scenario(
        "coordinator_itself", (Step("All done."),), TurnState.COMPLETED, agents=("lead",), parts=LEAD, child="/lead"
    ),
    Scenario("worker", (Step("All done."),), TurnState.COMPLETED, agents=("lead",), parts=LEAD, child="/lead/coder/1"),
    Scenario(
        "team_stopped",
        (Step(calls=(call("bash", command="hang on"),)),),
        TurnState.STOPPED,
        stop_at="hang on",
        agents=("scout", "optional"),
    ),
)


@asynccontextmanager
async def stack_of(
    steps: Sequence[Step],
    url: str,
    folder: Path,
    address: TemporalAddress,
    *,
    asks: bool = False,
    parts: Mapping[str, Sequence[Step]] | None = None,
) -> AsyncIterator[tuple[Stack, MemorySandboxes]]:
    """A stack over the ledger at `url` (upgraded, empty) whose model gives `steps`.

    With `asks` commands need an approval.
    """
    notifier = await open_notifier(url)
    ledger = await open_ledger(url, notifier)
    sandboxes = MemorySandboxes()
    policy = {"bash": Approval.ASK if asks else Approval.ALLOW}
    agents = TEAM | {"default": AgentConfig("default", "scripted", "demo", approvals=policy)}
    blobs = FileBlobStore(folder)
    try:
        stack = await build_stack(ledger, notifier, blobs, Answers(steps, parts), sandboxes, address, agents)
        yield stack, sandboxes
    finally:
        await ledger.close()
        await notifier.close()


async def play(scenario: Scenario, stack: Stack, sandboxes: MemorySandboxes, workspace: Path) -> Turn:
    """Do the scenario's turn to the end of its workflow."""
    session = (await stack.sessions.open(OpenSession(str(workspace), agents=scenario.agents))).session_id
    async with stack.worker():
        begun = await stack.send(session)
        if scenario.stop_at is not None:
            async with asyncio.timeout(30):
                while scenario.stop_at not in _commands(sandboxes, session):
                    await asyncio.sleep(0.01)
            await stack.turns.stop(begun.turn.turn_id, actor="test")
        for approve in scenario.answers:
            await _answer(stack, session, approve)
        turn = await stack.ended(begun.turn.turn_id)
        async with asyncio.timeout(30):
            await stack.client.get_workflow_handle(turn.workflow_id).result()
    assert turn.state is scenario.state, turn.error_message
    return turn


async def _answer(stack: Stack, session: str, approve: bool) -> None:
    """Answer the Session's next question."""
    service = ApprovalService(stack.parts.ledger, stack.parts.clock, UuidIds())
    async with asyncio.timeout(30):
        while not (pending := await service.page(session_id=session, state=ApprovalState.PENDING)):
            await asyncio.sleep(0.01)
    await service.answer(pending[0].approval_id, Answer(approve, "test"))


def _commands(sandboxes: MemorySandboxes, session: str) -> list[str]:
    sandbox = sandboxes.by_session.get(session)
    return [] if sandbox is None else sandbox.commands()
