"""Turns as event sequences: what activities may have recorded by the time somebody reads, in any order they may."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from milepost.domain.content import Content
from milepost.domain.effects import EffectState
from milepost.domain.events import (
    AgentOutput,
    AgentStarted,
    Event,
    ModelCalled,
    ModelFailed,
    ModelRetried,
    StopRequested,
    ToolFinished,
    ToolStarted,
    TurnBegun,
)
from milepost.domain.messages import AssistantMessage, FinishReason, ReasoningPart, Sampling, TextPart, ToolCallPart
from milepost.domain.turns import Turn, TurnRequest, TurnState
from milepost.domain.usage import Usage

AGENTS = ("coder", "reviewer")
TURN = "trn_1"

texts = st.text(max_size=20) | st.sampled_from(["", "\ud800 half", "\0", "x" * 3_000])
usages = st.builds(Usage, st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.booleans())
call_ids = st.sampled_from(["a", "b", "c"]) | st.text(min_size=1, max_size=6)
"""Providers repeat ids, also within one answer."""


def turn(state: TurnState = TurnState.RUNNING) -> Turn:
    return Turn(
        turn_id=TURN,
        session_id="ses_1",
        number=1,
        state=state,
        request=TurnRequest(Content("do it")),
        content_digest="",
        idempotency_key=None,
        workflow_id="w",
        claimed_run=None,
        generation=0,
        created_at=0,
        dispatched_at=None,
        stop_requested_at=None,
        ended_at=None,
        error_code=None,
        error_message=None,
        usage=Usage(),
        superseded=False,
    )


def _called(draw: st.DrawFn, agent: str, round_: int) -> ModelCalled:
    parts: list[TextPart | ReasoningPart | ToolCallPart] = []
    if draw(st.booleans()):
        parts.append(ReasoningPart(draw(texts)))
    parts.append(TextPart(draw(texts)))
    calls = draw(st.lists(st.tuples(call_ids, st.sampled_from(["bash", "read_file"])), max_size=4))
    parts.extend(ToolCallPart(call_id, tool, Content(draw(texts))) for call_id, tool in calls)
    return ModelCalled(
        turn_id=TURN,
        agent=agent,
        effect_id=f"{agent}/model/{round_}",
        attempt=1,
        round=round_,
        provider="scripted",
        model="m",
        message=AssistantMessage(tuple(parts)),
        finish=draw(st.sampled_from(FinishReason)),
        usage=draw(usages),
        diagnostics=tuple(draw(st.lists(texts, max_size=1))),
    )


def _started(called: ModelCalled, index: int, attempt: int) -> ToolStarted:
    call = called.message.calls[index]
    effect = f"{called.agent}/tool/{called.round}/{index}"
    return ToolStarted(TURN, called.agent, effect, attempt, called.round, index, call.call_id, call.tool)


def _finished(draw: st.DrawFn, started: ToolStarted) -> ToolFinished:
    return ToolFinished(
        turn_id=TURN,
        agent=started.agent,
        effect_id=started.effect_id,
        attempt=started.attempt,
        round=started.round,
        index=started.index,
        call_id=started.call_id,
        tool=started.tool,
        state=draw(st.sampled_from([EffectState.SUCCEEDED, EffectState.FAILED, EffectState.CANCELLED])),
        output=Content(draw(texts)),
        is_error=draw(st.booleans()),
        detail={},
    )


def _trouble(draw: st.DrawFn, agent: str, round_: int) -> list[Event]:
    effect = f"{agent}/model/{round_}"
    retried = [
        ModelRetried(TURN, agent, effect, n, "x", draw(texts), draw(usages)) for n in range(draw(st.integers(0, 2)))
    ]
    failed = [ModelFailed(TURN, agent, effect, 3, "x", draw(texts), draw(usages))] if draw(st.booleans()) else []
    return [*retried, *failed]


def _round(draw: st.DrawFn, agent: str, round_: int) -> list[Event]:
    called = _called(draw, agent, round_)
    calls: list[list[Event]] = []
    for index in range(len(called.message.calls)):
        first = _started(called, index, 1)
        own: list[Event] = [first, *([replace(first, attempt=2)] if draw(st.booleans()) else [])]
        calls.append([*own, _finished(draw, first)])
    tools = [event for own in calls for event in own]
    if draw(st.booleans()):
        # Calls that run together end in any order; each one's events keep theirs.
        picks = draw(st.permutations([index for index, own in enumerate(calls) for _ in own]))
        waiting = [iter(own) for own in calls]
        tools = [next(waiting[index]) for index in picks]
    return [*_trouble(draw, agent, round_), called, *tools]


@st.composite
def turns(draw: st.DrawFn, *, cut: bool = True) -> list[Event]:
    """The events of one turn of one or two agents, cut off anywhere by a stop or a crash."""
    events: list[Event] = [TurnBegun(TURN, 1, TurnRequest(Content(draw(texts))), "w")]
    for agent in AGENTS[: draw(st.integers(1, 2))]:
        unavailable = draw(st.none() | st.just("no sandbox"))
        events.append(AgentStarted(TURN, agent, "scripted", "m", "", (), Sampling(), 64, unavailable))
        for round_ in range(1, draw(st.integers(0, 3)) + 1):
            events.extend(_round(draw, agent, round_))
        if draw(st.booleans()):
            output = AgentOutput(TURN, agent, Content(draw(texts)), 1, Usage(), partial=draw(st.booleans()))
            events.append(output)
    if cut:
        events = events[: draw(st.integers(1, len(events)))]
        if draw(st.booleans()):
            events.insert(draw(st.integers(1, len(events))), StopRequested(TURN, "test"))
    return events
