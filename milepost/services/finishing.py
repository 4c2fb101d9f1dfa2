"""Ending a turn: the one place that writes a terminal state, used by the workflow and by reconciliation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from milepost.domain.approvals import ApprovalState
from milepost.domain.content import Content
from milepost.domain.effects import Effect, EffectClass, EffectState
from milepost.domain.events import (
    AgentOutput,
    AgentStarted,
    EffectUncertain,
    Event,
    ModelCalled,
    ModelFailed,
    ModelRetried,
    StreamKind,
    ToolFinished,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStopped,
)
from milepost.domain.messages import AssistantMessage, AssistantPart, FinishReason, ReasoningPart, TextPart
from milepost.domain.prices import priced
from milepost.domain.tools import MAX_ERROR_TEXT_BYTES
from milepost.domain.turns import Turn, TurnState
from milepost.domain.usage import UNKNOWN_USAGE, Usage
from milepost.ledger.codec import decode_event
from milepost.ledger.transcript import unanswered_calls
from milepost.ports.ledger import LedgerTx, NewEvent
from milepost.services.budgeting import CHARGED, settle_charged, settle_rest
from milepost.services.gate import resolved_event
from milepost.services.memory_tasks import remember_turn

_TYPES = tuple(cls.TYPE for cls in (AgentStarted, *CHARGED, ToolFinished, AgentOutput))
CANCELLED_TEXT = "The call was cancelled: the turn ended before it had a result."
UNKNOWN_TEXT = "Outcome unknown: the turn ended while the call was running, and whether it took effect is not recorded."


@dataclass(frozen=True, slots=True)
class Ending:
    """How a turn ends. `reason` is for people; `code` is a stable error code of a failure."""

    state: TurnState
    reason: str
    code: str = "turn_failed"


def turn_events(tx: LedgerTx, turn: Turn) -> list[Event]:
    """The turn's events that matter for its ending, ascending."""
    stored = tx.events.read_turn(turn.session_id, turn.turn_id, types=_TYPES)
    return [decode_event(item.type, item.version, item.payload) for item in stored]


def end_turn(tx: LedgerTx, turn: Turn, ending: Ending, at: int) -> TurnState:
    """Write everything that ends a running turn, the terminal event last. The caller holds the Session's lock.

    A stop that was accepted is what the turn ends with, also if the work came to another end in the same moment: the
    caller gets the state that was written. Open effects are settled (cancelled, or uncertain where the outcome cannot
    be known), open approvals are closed, calls without a result get one, each agent's output is recorded and the delta
    log is dropped.

    Raises:
        TurnNotRunning: the turn has a terminal state.
    """
    if turn.stop_requested_at is not None and ending.state is not TurnState.STOPPED:
        ending = Ending(TurnState.STOPPED, "Stopped on request.")
    events = turn_events(tx, turn)
    new = _lost_answers(tx, turn, events)
    events.extend(item.event for item in new)
    settled = _settle_effects(tx, turn, at)
    # After the effects, as everywhere, so that two transactions cannot wait for one another.
    settle_charged(tx, new, at)
    settle_rest(tx, turn.turn_id, at)
    new = [*new, *settled, *_close_approvals(tx, turn, ending, at)]
    new.extend(_close_calls(tx, turn, events))
    finished = ending.state is TurnState.COMPLETED
    new.extend(_outputs(turn, events, finished=finished))
    usage = sum((event.usage for event in events if isinstance(event, CHARGED)), Usage())
    new.append(NewEvent(f"{turn.turn_id}/ended", _terminal(turn.turn_id, ending, usage), turn.turn_id))
    tx.events.append(turn.session_id, StreamKind.SESSION, new, at)
    failed = ending.state is TurnState.FAILED
    tx.turns.finish(
        turn.turn_id,
        ending.state,
        at,
        usage,
        ending.code if failed else None,
        None if finished else bounded_error(ending.reason),
    )
    remember_turn(tx, turn, events, at)
    tx.workspaces.release(turn.turn_id)
    tx.deltas.drop_turn(turn.turn_id)
    tx.outbox.drop(turn.turn_id)
    tx.notify(turn.session_id)
    return ending.state


def bounded_error(text: str) -> str:
    """Error text of at most 8 KiB."""
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_ERROR_TEXT_BYTES:
        return text
    return data[: MAX_ERROR_TEXT_BYTES - 4].decode("utf-8", "ignore") + "…"


def _lost_answers(tx: LedgerTx, turn: Turn, events: list[Event]) -> list[NewEvent]:
    """The text of model calls that nobody will end: what was streamed is kept and marked."""
    kept: list[NewEvent] = []
    agents = {event.agent: event for event in events if isinstance(event, AgentStarted)}
    retries = [event for event in events if isinstance(event, ModelRetried)]
    told = {(event.effect_id, event.attempt) for event in retries}
    on_route = {event.effect_id: event.next_route for event in retries}
    for effect in tx.effects.open_of_turn(turn.turn_id):
        spec = effect.spec
        started = agents.get(spec.agent)
        if spec.effect_class is not EffectClass.MODEL or started is None:
            continue
        if (spec.effect_id, effect.attempt) in told:
            continue  # its attempt has failed and was counted: only the wait for the next one is cut short
        streamed = tx.deltas.partial(spec.effect_id, effect.attempt)
        parts: list[AssistantPart] = []
        if streamed.get("reasoning"):
            parts.append(ReasoningPart(streamed["reasoning"]))
        if streamed.get("text"):
            parts.append(TextPart(streamed["text"]))
        number = on_route.get(spec.effect_id, 0)
        if spec.position.startswith(_SUMMARY):
            kept.append(_lost_summary(turn, effect, priced(UNKNOWN_USAGE, started.prices_of(number)), number))
            continue
        route = started.routes[number]
        called = ModelCalled(
            turn_id=turn.turn_id,
            agent=spec.agent,
            effect_id=spec.effect_id,
            attempt=effect.attempt,
            round=model_round(spec.position),
            provider=route.provider,
            model=route.model,
            route=number,
            message=AssistantMessage(tuple(parts)),
            finish=FinishReason.INCOMPLETE,
            usage=priced(UNKNOWN_USAGE, started.prices_of(number)),
        )
        kept.append(NewEvent(called_key(spec.effect_id), called, turn.turn_id))
    return kept


def _lost_summary(turn: Turn, effect: Effect, usage: Usage, route: int) -> NewEvent:
    spec = effect.spec
    text = "The turn ended while the conversation was being summarized."
    failed = ModelFailed(turn.turn_id, spec.agent, spec.effect_id, effect.attempt, "turn_ended", text, usage, route)
    return NewEvent(f"{spec.effect_id}/failed", failed, turn.turn_id)


def started_key(turn_id: str, agent: str) -> str:
    """Event key of an agent's start."""
    return f"{turn_id}/{agent}/started"


def called_key(effect_id: str) -> str:
    """Event key of a model call's answer."""
    return f"{effect_id}/called"


def compacted_key(turn_id: str, agent: str, number: int) -> str:
    """Event key of an agent's compaction of a turn."""
    return f"{turn_id}/{agent}/compacted/{number}"


_SUMMARY = "summary."


def summary_position(round_: int, number: int) -> str:
    """Logical place of the model call that summarizes for the turn's compaction `number`, before a round."""
    return f"{_SUMMARY}{round_}.{number}"


def model_position(round_: int) -> str:
    """Logical place of a model call in an agent's turn; rounds count from 1."""
    return f"model.{round_}"


def model_round(position: str) -> int:
    """The round of a `model_position`."""
    return int(position.removeprefix("model."))


def _settle_effects(tx: LedgerTx, turn: Turn, at: int) -> list[NewEvent]:
    events: list[NewEvent] = []
    for effect in tx.effects.open_of_turn(turn.turn_id):
        unknown = effect.state is EffectState.DISPATCHED and effect.spec.effect_class in _UNKNOWN_WHEN_LOST
        state = EffectState.UNCERTAIN if unknown else EffectState.CANCELLED
        tx.effects.settle(effect.spec.effect_id, effect.attempt, state, at, None)
        if unknown:
            events.append(uncertain_event(effect, "The turn ended while the call was running."))
    return events


def _close_approvals(tx: LedgerTx, turn: Turn, ending: Ending, at: int) -> list[NewEvent]:
    events: list[NewEvent] = []
    reason = f"The turn ended ({ending.state}) before there was an answer."
    while pending := tx.approvals.pending_of_turn(turn.turn_id, _APPROVALS_AT_ONCE):
        for approval in pending:
            closed = tx.approvals.resolve(approval.approval_id, ApprovalState.CLOSED, at, "", reason)
            if closed is not None:
                events.append(resolved_event(closed))
    return events


_APPROVALS_AT_ONCE = 200
_UNKNOWN_WHEN_LOST = frozenset({EffectClass.AT_MOST_ONCE, EffectClass.ATTACHABLE, EffectClass.KEYED})


def uncertain_event(effect: Effect, reason: str) -> NewEvent:
    """The `effect.uncertain` event of an effect."""
    spec = effect.spec
    event = EffectUncertain(spec.turn_id, spec.effect_id, spec.operation, reason)
    return NewEvent(f"{spec.effect_id}/uncertain", event, spec.turn_id)


def _close_calls(tx: LedgerTx, turn: Turn, events: list[Event]) -> list[NewEvent]:
    closed: list[NewEvent] = []
    by_call = {
        (effect.spec.agent, effect.spec.position): effect
        for effect in tx.effects.page(turn.session_id, turn_id=turn.turn_id, state=EffectState.UNCERTAIN, limit=1000)
    }
    for called, index in unanswered_calls(events):
        call = called.message.calls[index]
        position = call_position(called.round, index)
        lost = by_call.get((called.agent, position))
        finished = ToolFinished(
            turn_id=turn.turn_id,
            agent=called.agent,
            effect_id=lost.spec.effect_id if lost else "",
            attempt=lost.attempt if lost else 0,
            round=called.round,
            index=index,
            call_id=call.call_id,
            tool=call.tool,
            state=EffectState.UNCERTAIN if lost else EffectState.CANCELLED,
            output=Content(UNKNOWN_TEXT if lost else CANCELLED_TEXT),
            is_error=True,
            detail={},
        )
        closed.append(
            NewEvent(tool_event_key(turn.turn_id, called.agent, position, "finished"), finished, turn.turn_id)
        )
    return closed


def call_position(round_: int, index: int) -> str:
    """Logical place of a tool call in an agent's turn."""
    return f"tool.{round_}.{index}"


def call_place(position: str) -> tuple[int, int]:
    """(round, index) of a `call_position`."""
    _, round_, index = position.split(".")
    return int(round_), int(index)


def tool_event_key(turn_id: str, agent: str, position: str, what: str) -> str:
    """Event key of a tool call: one `started` per attempt, one `finished`, whoever writes it."""
    return f"{turn_id}/{agent}/{position}/{what}"


_CUT = (FinishReason.STOPPED, FinishReason.LENGTH, FinishReason.INCOMPLETE)


def _outputs(turn: Turn, events: list[Event], *, finished: bool) -> list[NewEvent]:
    agents = [event.agent for event in events if isinstance(event, AgentStarted)]
    return [output for agent in agents for output in agent_output(turn, events, agent, finished=finished)]


def agent_output(turn: Turn, events: Sequence[Event], agent: str, *, finished: bool) -> list[NewEvent]:
    """The `agent.output` event of an agent, unless it has one or has not called its model."""
    calls = [event for event in events if isinstance(event, ModelCalled) and event.agent == agent]
    if not calls or any(isinstance(event, AgentOutput) and event.agent == agent for event in events):
        return []
    # The answer is the last text; a turn cut short in a tool round may have said it earlier.
    text = next((event.message.text for event in reversed(calls) if event.message.text), "")
    partial = not finished or calls[-1].finish in _CUT
    charged = [event for event in events if isinstance(event, CHARGED) and event.agent == agent]
    usage = sum((event.usage for event in charged), Usage())
    output = AgentOutput(turn.turn_id, agent, Content(text), len(calls), usage, partial)
    return [NewEvent(f"{turn.turn_id}/{agent}/output", output, turn.turn_id)]


def _terminal(turn_id: str, ending: Ending, usage: Usage) -> Event:
    match ending.state:
        case TurnState.COMPLETED:
            return TurnCompleted(turn_id, usage)
        case TurnState.STOPPED:
            return TurnStopped(turn_id, usage, bounded_error(ending.reason))
        case TurnState.INTERRUPTED:
            return TurnInterrupted(turn_id, usage, bounded_error(ending.reason))
        case TurnState.FAILED:
            return TurnFailed(turn_id, usage, ending.code, bounded_error(ending.reason))
        case TurnState.RUNNING:
            raise ValueError("A turn cannot end as running.")
