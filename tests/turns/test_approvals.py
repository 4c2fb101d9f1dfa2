"""Calls that wait for a person: approve, reject, expire, stop, restarts, and the rules that remember answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from milepost.domain.agents import AgentConfig
from milepost.domain.approvals import Approval, ApprovalState, RuleScope, Verdict
from milepost.domain.effects import EffectState
from milepost.domain.errors import ApprovalExpired, ApprovalNotFound, ApprovalSettled, TurnNotRunning
from milepost.domain.events import ApprovalRequested, ApprovalResolved, ToolFinished
from milepost.domain.tools import Approval as ApprovalPolicy
from milepost.domain.turns import TurnState, TurnStatus
from milepost.providers.gateway import Gateway
from milepost.services.approvals import Answer, ApprovalService, NewRule
from milepost.storage import FileBlobStore
from milepost.temporal.client import TemporalAddress
from tests.support.databases import OpenLedger
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack, build_stack
from tests.turns.test_turns import call, events_of, script

ASK = {"bash": ApprovalPolicy.ASK}
YES, NO = Answer(True, "anna"), Answer(False, "anna", "too risky")

MakeStack = Callable[..., Awaitable[Stack]]


@pytest.fixture
def make_stack(
    opened: OpenLedger, gateway: Gateway, sandboxes: MemorySandboxes, temporal_address: TemporalAddress, tmp_path: Path
) -> MakeStack:
    async def make(approvals: dict[str, ApprovalPolicy] | None = None, seconds: int = 3600) -> Stack:
        agent = AgentConfig("default", "scripted", "demo", approvals=approvals or ASK, approval_seconds=seconds)
        blobs = FileBlobStore(tmp_path / "blobs")
        agents = {"default": agent}
        return await build_stack(
            opened.ledger, opened.notifier, blobs, gateway, sandboxes, temporal_address, agents=agents
        )

    return make


@pytest.fixture
async def asking(make_stack: MakeStack) -> Stack:
    return await make_stack()


def approvals(stack: Stack) -> ApprovalService:
    return ApprovalService(stack.parts.ledger, stack.parts.clock, stack.sessions._ids)


async def pending(stack: Stack, session: str, count: int = 1) -> list[Approval]:
    """The Session's open approvals, oldest first, once there are so many."""
    async with asyncio.timeout(30):
        while True:
            found = await approvals(stack).page(session_id=session, state=ApprovalState.PENDING)
            if len(found) >= count:
                return found[::-1]
            await asyncio.sleep(0.02)


async def finished(stack: Stack, session: str) -> list[ToolFinished]:
    return [event for event in await events_of(stack, session) if isinstance(event, ToolFinished)]


@asynccontextmanager
async def waiting(stack: Stack, folder: Path, command: str = "make") -> AsyncIterator[tuple[str, str, Approval]]:
    """A turn that waits for its one command; (Session, turn, approval)."""
    session = await stack.open(folder)
    responses = script({"calls": [call("bash", command=command)]}, {"text": "Done."})
    async with stack.worker(grace=0.1):
        begun = await stack.send(session, script=responses)
        (approval,) = await pending(stack, session)
        yield session, begun.turn.turn_id, approval


async def test_an_approved_call_runs_once_and_nothing_was_dispatched_before(
    asking: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    async with waiting(asking, tmp_path) as (session, turn_id, approval):
        assert (await asking.turns.get(turn_id)).status is TurnStatus.WAITING_FOR_PERSON
        assert session not in sandboxes.by_session, "not even the sandbox is opened"
        (effect,) = await asking.history.effects(session, state=EffectState.AWAITING_APPROVAL)
        assert (effect.attempt, effect.dispatched_at, effect.spec.effect_id) == (0, None, approval.effect_id)
        assert (approval.tool, approval.agent, approval.truncated) == ("bash", "default", False)
        assert '"make"' in approval.preview
        assert approval.expires_at - approval.requested_at == 3600 * 1_000_000
        card = (await asking.history.entry(turn_id)).tools[0]
        assert card.state is EffectState.AWAITING_APPROVAL
        answered, rule = await approvals(asking).answer(approval.approval_id, YES)
        assert (answered.state, answered.actor, rule) == (ApprovalState.APPROVED, "anna", None)
        for again in (YES, NO):
            with pytest.raises((ApprovalSettled, TurnNotRunning)):
                await approvals(asking).answer(approval.approval_id, again)
        assert (await asking.ended(turn_id)).state is TurnState.COMPLETED
    assert sandboxes.by_session[session].commands() == ["make"]
    (effect,) = [each for each in await asking.history.effects(session) if each.spec.effect_id == approval.effect_id]
    assert (effect.state, effect.attempt) == (EffectState.SUCCEEDED, 1)
    types = [event.TYPE for event in await events_of(asking, session)]
    order = ["approval.requested", "approval.resolved", "tool.started", "tool.finished"]
    assert [name for name in types if name in order] == order


async def test_a_rejected_call_is_told_to_the_model_and_the_turn_goes_on(
    asking: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    async with waiting(asking, tmp_path) as (session, turn_id, approval):
        await approvals(asking).answer(approval.approval_id, NO)
        assert (await asking.ended(turn_id)).state is TurnState.COMPLETED
        with pytest.raises(TurnNotRunning):
            await approvals(asking).answer(approval.approval_id, YES)
    assert session not in sandboxes.by_session
    (result,) = await finished(asking, session)
    assert result.is_error and result.state is EffectState.DENIED
    assert "rejected" in result.output.text and "too risky" in result.output.text
    (effect,) = await asking.history.effects(session, state=EffectState.DENIED)
    assert effect.error_code == "approval_rejected"
    with pytest.raises(ApprovalNotFound):
        await approvals(asking).answer("apr_none", YES)


async def test_nobody_answers_in_time(make_stack: MakeStack, sandboxes: MemorySandboxes, tmp_path: Path) -> None:
    stack = await make_stack(seconds=1)
    session = await stack.open(tmp_path)
    responses = script({"calls": [call("bash", command="make")]}, {"text": "Then not."})
    async with stack.worker():
        begun = await stack.send(session, script=responses)
        assert (await stack.ended(begun.turn.turn_id)).state is TurnState.COMPLETED
    assert session not in sandboxes.by_session
    (result,) = await finished(stack, session)
    assert result.state is EffectState.DENIED and "in time" in result.output.text
    resolved = [event for event in await events_of(stack, session) if isinstance(event, ApprovalResolved)]
    assert [(event.state, event.actor) for event in resolved] == [(ApprovalState.EXPIRED, "")]


async def test_an_answer_that_is_too_late_changes_nothing(make_stack: MakeStack, tmp_path: Path) -> None:
    stack = await make_stack(seconds=1)
    session = await stack.open(tmp_path)
    async with stack.worker():
        await stack.send(session, script=script({"calls": [call("bash", command="make")]}, {"text": "x"}))
        (approval,) = await pending(stack, session)
    # No worker is there to record that the time is over.
    await asyncio.sleep(1.1)
    (shown,) = await approvals(stack).page(session_id=session)
    assert shown.state is ApprovalState.EXPIRED
    with pytest.raises(ApprovalExpired):
        await approvals(stack).answer(approval.approval_id, YES)
    stored = await stack.parts.ledger.read(lambda tx: tx.approvals.get(approval.approval_id))
    assert stored.state is ApprovalState.PENDING


async def test_a_stop_ends_the_waiting_at_once_and_closes_the_question(
    asking: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    async with waiting(asking, tmp_path) as (session, turn_id, approval):
        await asking.turns.stop(turn_id, actor="test")
        with pytest.raises(TurnNotRunning):
            await approvals(asking).answer(approval.approval_id, YES)
        assert (await asking.ended(turn_id)).state is TurnState.STOPPED
    closed = await approvals(asking).get(approval.approval_id)
    assert closed.state is ApprovalState.CLOSED and "stopped" in (closed.reason or "")
    assert session not in sandboxes.by_session
    (effect,) = await asking.history.effects(session, state=EffectState.CANCELLED)
    assert effect.spec.effect_id == approval.effect_id
    types = [event.TYPE for event in await events_of(asking, session)]
    assert types[-1] == "turn.stopped" and types.count("approval.resolved") == 1


@pytest.mark.parametrize("answer", [YES, NO])
async def test_an_answer_outlives_the_workers(
    asking: Stack, sandboxes: MemorySandboxes, tmp_path: Path, answer: Answer
) -> None:
    async with waiting(asking, tmp_path) as (session, turn_id, approval):
        pass
    await approvals(asking).answer(approval.approval_id, answer)
    assert (await asking.turns.get(turn_id)).turn.state is TurnState.RUNNING
    async with asking.worker():
        assert (await asking.ended(turn_id)).state is TurnState.COMPLETED
    ran = sandboxes.by_session[session].commands() if session in sandboxes.by_session else []
    assert ran == (["make"] if answer.approve else [])
    requested = [event for event in await events_of(asking, session) if isinstance(event, ApprovalRequested)]
    assert [event.approval_id for event in requested] == [approval.approval_id]


async def test_a_worker_lost_after_the_answer_leaves_one_run(
    asking: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    async with waiting(asking, tmp_path, "hang on") as (session, turn_id, approval):
        await approvals(asking).answer(approval.approval_id, YES)
        async with asyncio.timeout(30):
            while not (session in sandboxes.by_session and sandboxes.by_session[session].commands()):
                await asyncio.sleep(0.02)
    async with asking.worker():
        async with asyncio.timeout(30):
            while (await asking.history.effects(session))[-1].attempt < 2:
                await asyncio.sleep(0.05)
        await sandboxes.by_session[session].kill(approval.effect_id)
        await asking.ended(turn_id)
    assert sandboxes.by_session[session].commands() == ["hang on"]


async def test_word_that_is_doubled_or_false_costs_nothing(
    asking: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    async with waiting(asking, tmp_path) as (session, turn_id, approval):
        workflow_id = (await asking.turns.get(turn_id)).turn.workflow_id
        for approval_id in (approval.approval_id, approval.approval_id, "apr_of_another"):
            await asking.starter.answer(workflow_id, approval_id)
        await asyncio.sleep(0.3)
        assert (await asking.turns.get(turn_id)).status is TurnStatus.WAITING_FOR_PERSON
        assert session not in sandboxes.by_session
        await approvals(asking).answer(approval.approval_id, YES)
        await asking.starter.answer(workflow_id, approval.approval_id)
        assert (await asking.ended(turn_id)).state is TurnState.COMPLETED
    assert sandboxes.by_session[session].commands() == ["make"]
    await asking.starter.answer(workflow_id, approval.approval_id)
    await asking.starter.answer("no/such/workflow", approval.approval_id)


async def test_other_arguments_ask_again_and_the_same_call_later_too(
    asking: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session = await asking.open(tmp_path)
    commands = ["make", "make ", "make"]
    responses = script(*({"calls": [call("bash", command=command)]} for command in commands), {"text": "Done."})
    seen: list[Approval] = []
    async with asking.worker():
        begun = await asking.send(session, script=responses)
        for _ in commands:
            (approval,) = await pending(asking, session)
            seen.append(approval)
            await approvals(asking).answer(approval.approval_id, YES)
        assert (await asking.ended(begun.turn.turn_id)).state is TurnState.COMPLETED
    assert sandboxes.by_session[session].commands() == commands
    assert len({approval.approval_id for approval in seen}) == 3
    assert len({approval.input_digest for approval in seen}) == 2


async def test_calls_that_run_together_wait_each_for_its_own_answer(make_stack: MakeStack, tmp_path: Path) -> None:
    stack = await make_stack({"*": ApprovalPolicy.ASK, "write_file": ApprovalPolicy.ALLOW})
    session = await stack.open(tmp_path)
    reads = [call("read_file", path=f"{name}.txt") for name in "abc"]
    responses = script({"calls": [call("write_file", path="b.txt", content="B"), *reads]}, {"text": "Done."})
    async with stack.worker():
        begun = await stack.send(session, script=responses)
        asked = {approval.preview: approval for approval in await pending(stack, session, 3)}
        for preview, approval in asked.items():
            await approvals(stack).answer(approval.approval_id, YES if "b.txt" in preview else NO)
        assert (await stack.ended(begun.turn.turn_id)).state is TurnState.COMPLETED
    states = {event.index: event.state for event in await finished(stack, session)}
    assert states == {
        0: EffectState.SUCCEEDED,
        1: EffectState.DENIED,
        2: EffectState.SUCCEEDED,
        3: EffectState.DENIED,
    }


async def test_a_remembered_answer_decides_until_it_is_revoked(
    asking: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    service = approvals(asking)
    always = Answer(True, "anna", remember=RuleScope.AGENT_TOOL)
    async with waiting(asking, tmp_path, "one") as (session, turn_id, approval):
        _, rule = await service.answer(approval.approval_id, always)
        assert rule is not None
        assert (rule.agent, rule.tool, rule.verdict) == ("default", "bash", Verdict.ALLOW)
        assert rule.approval_id == approval.approval_id
        await asking.ended(turn_id)
        begun = await asking.send(session, script=script({"calls": [call("bash", command="two")]}, {"text": "x"}))
        assert (await asking.ended(begun.turn.turn_id)).state is TurnState.COMPLETED
        assert [each.rule_id for each in await service.rules()] == [rule.rule_id]
        assert (await service.revoke_rule(rule.rule_id, "ben")).revoked_by == "ben"
        assert await service.rules() == [] and len(await service.rules(active=False)) == 1
        third = await asking.send(session, script=script({"calls": [call("bash", command="three")]}, {"text": "x"}))
        (again,) = await pending(asking, session)
        await service.answer(again.approval_id, NO)
        await asking.ended(third.turn.turn_id)
    assert sandboxes.by_session[session].commands() == ["one", "two"]


async def test_a_rule_that_denies_leaves_a_row_that_names_it(
    make_stack: MakeStack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    stack = await make_stack({"bash": ApprovalPolicy.ALLOW})
    service = approvals(stack)
    rule = await service.add_rule(NewRule(Verdict.DENY, "anna", tool="bash", reason="not today"))
    once = await service.add_rule(NewRule(Verdict.ALLOW, "anna", agent="default", tool="bash", once=True))
    session = await stack.open(tmp_path)
    calls = [call("bash", command="first"), call("bash", command="second")]
    async with stack.worker():
        begun = await stack.send(session, script=script({"calls": calls}, {"text": "Done."}))
        assert (await stack.ended(begun.turn.turn_id)).state is TurnState.COMPLETED
    assert sandboxes.by_session[session].commands() == ["first"]
    (denied,) = await stack.history.effects(session, state=EffectState.DENIED)
    assert denied.error_code == "denied_by_rule" and denied.attempt == 0
    assert rule.rule_id in (denied.error_message or "") and "not today" in (denied.error_message or "")
    _, second = await finished(stack, session)
    assert second.is_error and rule.rule_id in second.output.text
    used = await stack.parts.ledger.read(lambda tx: tx.rules.get(once.rule_id))
    assert used.used_by is not None and not used.active
    assert [each.rule_id for each in await service.rules()] == [rule.rule_id]
