"""What a run of the turn left behind, and what must hold of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milepost.domain.effects import Effect, EffectState
from milepost.domain.errors import LedgerCorrupt
from milepost.domain.events import TERMINAL_TURN_EVENTS, AgentStarted, Event, ModelCalled, ToolFinished
from milepost.domain.messages import FinishReason
from milepost.domain.turns import Turn, TurnState
from milepost.ledger.chain import StoredEvent, verify_chain
from milepost.ledger.codec import decode_event, to_json
from milepost.ledger.history import HistoryEntry, history_entry
from milepost.ports.ledger import Ledger, LedgerTx, OutboxItem
from tests.chaos import turn as plan
from tests.chaos.points import JOURNAL, Point, When, journal_lines

_ANSWERED = (FinishReason.STOP, FinishReason.TOOL_CALLS)


@dataclass(frozen=True)
class Evidence:
    """The ledger's and the world's view of one turn.

    `pending` is what the outbox still asks for it, `streamed` the text of model calls in the delta log.
    """

    turn: Turn
    stored: list[StoredEvent]
    events: list[Event]
    effects: dict[str, Effect]
    entry: HistoryEntry
    pending: OutboxItem | None
    streamed: str
    journal: list[str]
    files: dict[str, bytes]

    @property
    def answered(self) -> list[int]:
        """Rounds of the model calls that are recorded as answered."""
        return [event.round for event in self.events if isinstance(event, ModelCalled) and event.finish in _ANSWERED]

    @property
    def finished(self) -> list[tuple[int, int]]:
        """Rounds and indexes of the tool calls that are recorded as finished."""
        return [(event.round, event.index) for event in self.events if isinstance(event, ToolFinished)]


async def gather(ledger: Ledger, turn_id: str, workspace: Path) -> Evidence:
    """Read one consistent snapshot of the ledger, and the workspace."""

    def body(tx: LedgerTx) -> Evidence:
        turn = tx.turns.get(turn_id)
        stored = tx.events.read(turn.session_id, limit=10_000)
        events = [decode_event(item.type, item.version, item.payload) for item in stored]
        effects = tx.effects.page(turn.session_id, turn_id=turn_id, state=None, limit=1000)
        streamed = "".join(delta.text for _, delta in tx.deltas.read(turn.session_id, turn_id, after=0, limit=1000))
        return Evidence(
            turn=turn,
            stored=stored,
            events=events,
            effects={effect.spec.position: effect for effect in effects},
            entry=history_entry(turn, events),
            pending=tx.outbox.pending(turn_id),
            streamed=streamed,
            journal=journal_lines(workspace / JOURNAL),
            files=plan.files(workspace),
        )

    return await ledger.read(body)


def died_at(point: Point, found: Evidence) -> None:
    """Assert that the process died at this very point, by what the ledger and the journal had by then."""
    committed = point.when is not When.BEFORE
    match point.step:
        case "lease":
            assert found.pending is not None and found.pending.attempts == int(committed)
            assert found.turn.claimed_run is None
        case "deliver":
            assert (found.pending is None) is committed
            assert (found.turn.dispatched_at is not None) is committed
        case "prepare":
            assert any(isinstance(event, AgentStarted) for event in found.events) is committed
        case "finish":
            assert found.turn.state is (TurnState.COMPLETED if committed else TurnState.RUNNING)
        case "enter":
            effect = found.effects.get(point.position)
            assert (effect is not None and effect.state is EffectState.DISPATCHED) is committed
            assert plan.LAST not in found.journal
        case "settle":
            expected = EffectState.SUCCEEDED if committed else EffectState.DISPATCHED
            assert found.effects[point.position].state is expected
        case "model":
            assert found.effects[point.position].state is EffectState.DISPATCHED
            assert found.streamed
        case "tool":
            assert found.effects[plan.BASH].state is EffectState.DISPATCHED
            assert found.journal[-1] == point.position
        case _:
            raise AssertionError(point)


def was_resumed(point: Point, found: Evidence) -> None:
    """Assert that what was under way when the process died was taken up again, not found ended."""
    under_way = point.when is When.INSIDE or (point.step, point.when) in _UNDER_WAY
    if under_way:
        position = plan.BASH if point.step == "tool" else point.position
        assert found.effects[position].attempt >= 2


_UNDER_WAY = (("enter", When.AFTER), ("settle", When.BEFORE))


def check(found: Evidence, undisturbed: Evidence) -> None:
    """Assert that the run is as good as the undisturbed one; the message names everything that is not."""
    faults = [*_record_faults(found), *_world_faults(found, undisturbed)]
    if found.answered != undisturbed.answered:
        faults.append(f"model calls answered in rounds {found.answered}, not {undisturbed.answered}")
    if found.finished != undisturbed.finished:
        faults.append(f"tool calls finished: {found.finished}, not {undisturbed.finished}")
    entry, expected = comparable(found.entry), comparable(undisturbed.entry)
    faults += [f"history {place}: {value}" for place, value in _differences(entry, expected)]
    faults += _charge_faults(found)
    assert not faults, "\n".join(faults)


def _record_faults(found: Evidence) -> list[str]:
    """What the ledger must be, whatever the turn did."""
    faults = []
    if found.turn.state is not TurnState.COMPLETED:
        faults.append(f"the turn is {found.turn.state}: {found.turn.error_message}")
    terminal = [index for index, event in enumerate(found.events) if isinstance(event, TERMINAL_TURN_EVENTS)]
    if terminal != [len(found.events) - 1]:
        types = [event.TYPE for event in found.events]
        faults.append(f"terminal events at {terminal}, not one at the end of {types}")
    try:
        verify_chain(found.stored)
    except LedgerCorrupt as error:
        faults.append(f"chain: {error}")
    open_or_unknown = {
        effect.spec.position: effect.state.value
        for effect in found.effects.values()
        if effect.state is not EffectState.SUCCEEDED
    }
    if found.pending is not None:
        faults.append(f"outbox: {found.pending}")
    if open_or_unknown:
        faults.append(f"effects: {open_or_unknown}")
    return faults


def _world_faults(found: Evidence, undisturbed: Evidence) -> list[str]:
    """What the calls did, as nobody of ours tells it."""
    faults = []
    counts = Counter(found.journal)
    if counts != {plan.FIRST: 1, plan.LAST: 1}:
        faults.append(f"journal: {dict(counts)}, not each call once")
    if found.files != undisturbed.files:
        faults.append(f"files: {found.files}, not {undisturbed.files}")
    return faults


def _charge_faults(found: Evidence) -> list[str]:
    """Every lost model call is told once, and makes the usage a known subtotal."""
    lost = sum(effect.attempt - 1 for position, effect in found.effects.items() if position.startswith("model."))
    retries = sum(agent.retries for agent in found.entry.agents)
    faults = [] if retries == lost else [f"{retries} model calls told to be retried, not {lost}"]
    complete = [found.turn.usage.complete, *(agent.usage.complete for agent in found.entry.agents)]
    if any(told is not (lost == 0) for told in complete):
        faults.append(f"usage told to be complete: {complete}, with {lost} model calls lost")
    return faults


_TURN = ("turn_id", "session_id", "workflow_id", "claimed_run", "created_at", "dispatched_at", "ended_at")


def comparable(entry: HistoryEntry) -> dict[str, Any]:
    """A History entry without what differs between any two runs, or tells of a lost attempt.

    Left out are: ids (turn, Session, workflow, run; effect and call of each tool card), times, the numbers of calls
    and retries, and whether usage is complete. Nothing else.
    """
    value: dict[str, Any] = to_json(entry)
    for name in _TURN:
        del value["turn"][name]
    del value["turn"]["usage"]["complete"]
    for agent in value["agents"]:
        del agent["calls"], agent["retries"], agent["usage"]["complete"]
    for card in value["tools"]:
        del card["effect_id"], card["call_id"]
    return value


def _differences(found: Any, expected: Any, place: str = "") -> list[tuple[str, str]]:
    """Where two JSON-shaped values differ."""
    if isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        return [each for key in found for each in _differences(found[key], expected[key], f"{place}.{key}")]
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = enumerate(zip(found, expected, strict=True))
        return [each for index, pair in pairs for each in _differences(*pair, f"{place}[{index}]")]
    return [] if found == expected else [(place, f"{found!r}, not {expected!r}")]
