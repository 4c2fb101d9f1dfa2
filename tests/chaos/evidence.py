"""What a run of the turn left behind, and what must hold of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from activities.patience import WAITED
from milepost.domain.budgets import Spending
from milepost.domain.content import Content
from milepost.domain.effects import Effect, EffectClass, EffectState
from milepost.domain.errors import LedgerCorrupt
from milepost.domain.events import LATE_EVENTS, TERMINAL_TURN_EVENTS, Event, ModelCalled, ToolFinished
from milepost.domain.messages import FinishReason, Message, UserMessage
from milepost.domain.turns import Turn, TurnState
from milepost.domain.usage import Usage
from milepost.engine.budgets import session_scope
from milepost.ledger.chain import StoredEvent, verify_chain
from milepost.ledger.codec import decode_event, to_json
from milepost.ledger.history import HistoryEntry, history_entry
from milepost.ledger.transcript import turn_messages
from milepost.ports.ledger import Ledger, LedgerTx, OutboxItem
from tests.chaos import turn as plan
from tests.chaos import wire
from tests.chaos.turn import Traces

_ANSWERED = (FinishReason.STOP, FinishReason.TOOL_CALLS)


class Kind(StrEnum):
    """The promises, as the report counts what was broken of them."""

    TURN = "accepted turns lost"
    EFFECT = "effects doubled or missing"
    RESULT = "results lost or changed"
    STATUS = "turns shown as `working` without a live owner"
    TERMINAL = "terminal states not written exactly once"
    TRANSCRIPT = "next requests that a provider would refuse"
    READER = "events or text lost or doubled for a reader"
    RECORD = "other faults of the record"


@dataclass(frozen=True)
class Charges:
    """What the turn's Session was charged, beside what its turns used; `open` reservations are held."""

    spending: Spending
    usage: Usage
    attempts: int
    open: int


@dataclass(frozen=True)
class Fault:
    """Something that is not as it must be."""

    kind: Kind
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True)
class Evidence:
    """The ledger's and the world's view of one turn.

    `stored` are the events of its whole Session, `events` those of the turn; `pending` is what the outbox still asks
    for it; `next_messages` the conversation that a next turn would send.
    """

    turn: Turn
    stored: list[StoredEvent]
    events: list[Event]
    effects: dict[str, Effect]
    entry: HistoryEntry
    pending: OutboxItem | None
    next_messages: list[Message]
    traces: Traces
    charges: Charges

    @property
    def answered(self) -> list[int]:
        """Rounds of the model calls that are recorded as answered."""
        return [event.round for event in self.events if isinstance(event, ModelCalled) and event.finish in _ANSWERED]

    @property
    def finished(self) -> list[tuple[int, int]]:
        """Rounds and indexes of the tool calls that are recorded as finished."""
        return [(event.round, event.index) for event in self.events if isinstance(event, ToolFinished)]

    @property
    def uncertain(self) -> set[str]:
        """Positions of the calls that are recorded as having an unknown outcome."""
        return {where for where, effect in self.effects.items() if effect.state is EffectState.UNCERTAIN}

    @property
    def attempts(self) -> dict[str, int]:
        """Positions of the calls that were dispatched more than once, with how often."""
        return {where: effect.attempt for where, effect in self.effects.items() if effect.attempt > 1}


async def gather(ledger: Ledger, turn_id: str, workspace: Path) -> Evidence:
    """Read one consistent snapshot of the ledger, and the workspace."""

    def body(tx: LedgerTx) -> Evidence:
        turn = tx.turns.get(turn_id)
        stored = tx.events.read(turn.session_id, limit=100_000)
        by_turn: dict[str, list[Event]] = {}
        for item in stored:
            by_turn.setdefault(item.turn_id or "", []).append(decode_event(item.type, item.version, item.payload))
        agent = tx.sessions.get(turn.session_id).agents[0]
        said = [message for of_turn in by_turn.values() for message in turn_messages(of_turn, agent)]
        effects = tx.effects.page(turn.session_id, turn_id=turn_id, state=None, limit=1000)
        events = by_turn[turn_id]
        return Evidence(
            turn=turn,
            stored=stored,
            events=events,
            effects={effect.spec.position: effect for effect in effects},
            entry=history_entry(turn, events),
            pending=tx.outbox.pending(turn_id),
            next_messages=[*said, UserMessage(Content("And now?"))],
            traces=plan.traces(workspace),
            charges=_charges(tx, turn),
        )

    return await ledger.read(body)


def _charges(tx: LedgerTx, turn: Turn) -> Charges:
    turns = tx.turns.page(turn.session_id, before_number=None, limit=1000)
    effects = tx.effects.page(turn.session_id, turn_id=None, state=None, limit=10_000)
    return Charges(
        spending=tx.budgets.spending(session_scope(turn.session_id)),
        usage=sum((each.usage for each in turns), Usage()),
        attempts=sum(effect.attempt for effect in effects if effect.spec.effect_class is EffectClass.MODEL),
        open=sum(len(tx.budgets.open_of_turn(each.turn_id)) for each in turns),
    )


@dataclass(frozen=True)
class Allowed:
    """What a disturbance may change: nothing of the result, but these at-most-once calls may be `uncertain`."""

    uncertain: frozenset[str] = frozenset()


async def faults(found: Evidence, undisturbed: Evidence, allowed: Allowed, judge: wire.Judge) -> list[Fault]:
    """Everything in which the run is not as good as the undisturbed one."""
    told = [Fault(Kind.EFFECT, text) for text in found.traces.faults(found.uncertain)]
    if not found.uncertain and found.traces.files != undisturbed.traces.files:
        told.append(Fault(Kind.EFFECT, f"files: {found.traces.files}, not {undisturbed.traces.files}"))
    told += [*_end_faults(found), *_effect_faults(found, allowed)]
    told += [Fault(Kind.RESULT, text) for text in _result_faults(found, undisturbed)]
    told += [Fault(Kind.RECORD, text) for text in _record_faults(found)]
    told += [Fault(Kind.TRANSCRIPT, f"{name}: {text}") for name, text in await judge.refusals(found.next_messages)]
    return told


def lost(before: Sequence[StoredEvent], after: Sequence[StoredEvent]) -> list[Fault]:
    """Events that were committed when a process was killed and are not there, or not the same, afterwards."""
    kept = {(item.seq, item.hash) for item in after}
    gone = [item for item in before if (item.seq, item.hash) not in kept]
    return [Fault(Kind.RESULT, f"event {item.seq} ({item.type}) was committed and is gone") for item in gone]


def _end_faults(found: Evidence) -> list[Fault]:
    told = []
    if found.turn.state is not TurnState.COMPLETED:
        told.append(Fault(Kind.TURN, f"the turn is {found.turn.state}: {found.turn.error_message}"))
    events = [event for event in found.events if not isinstance(event, LATE_EVENTS)]
    terminal = [index for index, event in enumerate(events) if isinstance(event, TERMINAL_TURN_EVENTS)]
    if terminal != [len(events) - 1]:
        types = [event.TYPE for event in found.events]
        told.append(Fault(Kind.TERMINAL, f"terminal events at {terminal}, not one at the end of {types}"))
    ending = {cls.TYPE for cls in TERMINAL_TURN_EVENTS}
    ends = Counter(item.turn_id for item in found.stored if item.type in ending)
    told += [Fault(Kind.TERMINAL, f"{turn} ended {count} times") for turn, count in ends.items() if count > 1]
    return told


def _effect_faults(found: Evidence, allowed: Allowed) -> list[Fault]:
    told = []
    for position, effect in found.effects.items():
        may_be_unknown = position in allowed.uncertain and effect.state is EffectState.UNCERTAIN
        if effect.state is not EffectState.SUCCEEDED and not may_be_unknown:
            told.append(Fault(Kind.RESULT, f"effect {position} is {effect.state}"))
        if effect.finished_at and found.turn.ended_at and effect.finished_at > found.turn.ended_at:
            told.append(Fault(Kind.RESULT, f"effect {position} was written after the turn's end"))
    return told


def _result_faults(found: Evidence, undisturbed: Evidence) -> list[str]:
    told = []
    if found.answered != undisturbed.answered:
        told.append(f"model calls answered in rounds {found.answered}, not {undisturbed.answered}")
    if found.finished != undisturbed.finished:
        told.append(f"tool calls finished: {found.finished}, not {undisturbed.finished}")
    entry, expected = comparable(found.entry, found.uncertain), comparable(undisturbed.entry, found.uncertain)
    return told + [f"history {place}: {value}" for place, value in _differences(entry, expected)]


def _record_faults(found: Evidence) -> list[str]:
    """What the ledger must be, whatever the turn did; every lost model call is told once, and counted as unknown."""
    told = [] if found.pending is None else [f"outbox: {found.pending}"]
    try:
        verify_chain(found.stored)
    except LedgerCorrupt as error:
        told.append(f"chain: {error}")
    lost_calls = sum(effect.attempt - 1 for where, effect in found.effects.items() if where.startswith("model."))
    retries = sum(agent.retries for agent in found.entry.agents)
    if retries != lost_calls:
        told.append(f"{retries} model calls told to be retried, not {lost_calls}")
    complete = [found.turn.usage.complete, *(agent.usage.complete for agent in found.entry.agents)]
    told += _charge_faults(found.charges)
    if any(each is not (lost_calls == 0) for each in complete):
        told.append(f"usage told to be complete: {complete}, with {lost_calls} model calls lost")
    return told


def _charge_faults(found: Charges) -> list[str]:
    """What a Session was charged is what its turns used, each attempt once, and nothing is held any more."""
    told = []
    if found.spending.usage != found.usage:
        told.append(f"charged {found.spending.usage}, not {found.usage}")
    if found.spending.model_calls != found.attempts:
        told.append(f"{found.spending.model_calls} model calls charged, not {found.attempts}")
    if (found.spending.assumed_tokens > 0) is not (not found.usage.complete):
        told.append(f"{found.spending.assumed_tokens} tokens assumed of lost calls, usage {found.usage}")
    if found.spending.reserved_tokens or found.open:
        told.append(f"{found.spending.reserved_tokens} tokens in {found.open} reservations are still held")
    return told


_TURN = ("turn_id", "session_id", "workflow_id", "claimed_run", "created_at", "dispatched_at", "ended_at", "number")


def comparable(entry: HistoryEntry, uncertain: set[str]) -> dict[str, Any]:
    """A History entry without what differs between any two runs, or tells of a lost attempt.

    Left out are: ids (turn, Session, workflow, run; effect and call of each tool card), the turn's number, times, the
    numbers of calls and retries, whether usage is complete, and the script; of a call with an unknown outcome its end;
    what the agent was reminded of, which names the turn, and whether memory has the turn yet; how long a call
    waited for a database that was killed.
    """
    value: dict[str, Any] = to_json(entry)
    for name in _TURN:
        del value["turn"][name]
    for name in ("request", "content_digest", "idempotency_key"):
        value["turn"].pop(name, None)
    del value["turn"]["usage"]["complete"]
    for agent in value["agents"]:
        del agent["calls"], agent["retries"], agent["usage"]["complete"], agent["reminder"], agent["written"]
        agent["notes"] = [note for note in agent["notes"] if not note.startswith(WAITED)]
    for position, card in zip(plan.TOOLS, value["tools"], strict=False):
        del card["effect_id"], card["call_id"], card["arguments"]
        if position in uncertain:
            del card["state"], card["is_error"], card["preview"], card["truncated"]
    return value


def _differences(found: Any, expected: Any, place: str = "") -> list[tuple[str, str]]:
    """Where two JSON-shaped values differ."""
    if isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        return [each for key in found for each in _differences(found[key], expected[key], f"{place}.{key}")]
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = enumerate(zip(found, expected, strict=True))
        return [each for index, pair in pairs for each in _differences(*pair, f"{place}[{index}]")]
    return [] if found == expected else [(place, f"{found!r}, not {expected!r}")]
