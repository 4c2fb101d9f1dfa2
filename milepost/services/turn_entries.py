"""The records that memory gets of a turn."""

from __future__ import annotations

from dataclasses import dataclass, replace

from milepost.domain.content import Content
from milepost.domain.events import AgentOutput, AgentStarted, Event
from milepost.domain.memory import MAX_DAILY_TEXT, DailyEntry, OwnerKind, Scope
from milepost.domain.memory_events import MemoryWritten, WrittenEntry
from milepost.domain.semantic import MemoryEntry
from milepost.domain.team_events import GoalDecomposed, SubtaskEnded
from milepost.domain.teams import coordinator_of, is_worker
from milepost.domain.turns import Turn
from milepost.ledger.codec import decode_event
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.services.contents import Contents

_TYPES = (AgentStarted.TYPE, AgentOutput.TYPE, GoalDecomposed.TYPE, SubtaskEnded.TYPE)

MAX_REMEMBERED_CHARACTERS = 100_000
"""Of a request or an answer; a search shows less, and the ledger has all of it."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """What goes into one owner's memory of a turn."""

    scope: Scope
    agent: str
    entries: tuple[MemoryEntry, ...]

    def dated(self) -> list[DailyEntry]:
        """The records as entries of the daily log."""
        return [_dated(entry) for entry in self.entries]

    def event(self, turn: Turn) -> NewEvent:
        """The `memory.written` event. Texts of an agent are in the turn's own events; a worker's are told here."""
        own = self.scope.kind is OwnerKind.AGENT
        written = tuple(
            WrittenEntry(
                entry.id,
                entry.kind,
                entry.speaker,
                entry.at,
                source=entry.kind if own else "",
                text="" if own else entry.text,
            )
            for entry in self.entries
        )
        event = MemoryWritten(turn.turn_id, self.agent, self.scope.owner, written)
        return NewEvent(f"{turn.turn_id}/{self.agent}/written", event, turn.turn_id)


class TurnEntries:
    """Makes the records of a turn: what was asked and what the agent answered, each with where it comes from."""

    def __init__(self, ledger: Ledger, contents: Contents) -> None:
        self._ledger = ledger
        self._contents = contents

    async def of(self, turn_id: str) -> tuple[Turn, list[Remembered]]:
        """The turn, and its records by agent; of a turn that failed or was stopped, what there is."""
        turn, events = await self._ledger.read(lambda tx: _read(tx, turn_id))
        outputs = {event.agent: event for event in events if isinstance(event, AgentOutput)}
        found = []
        for started in (event for event in events if isinstance(event, AgentStarted)):
            if started.memory is None:
                continue
            if is_worker(started.agent):
                entries = _subtasks(turn, events, started.agent)
            else:
                texts = [("request", "user", turn.created_at, turn.request.text)]
                if started.agent in outputs:
                    at = turn.ended_at or turn.created_at
                    texts.append(("answer", started.agent, at, outputs[started.agent].text))
                entries = [await self._entry(turn, *each) for each in texts]
            scope = Scope.of_part(turn.session_id, started.agent)
            kept = tuple(entry for entry in entries if entry.text.strip())
            if kept:
                found.append(Remembered(scope, started.agent, kept))
        return turn, found

    async def _entry(self, turn: Turn, kind: str, speaker: str, at: int, content: Content) -> MemoryEntry:
        text = await self._contents.load(content)
        return MemoryEntry(
            id=f"t{turn.number}.{kind}",
            text=text[:MAX_REMEMBERED_CHARACTERS],
            kind=kind,
            at=at,
            turn_id=turn.turn_id,
            turn_number=turn.number,
            speaker=speaker,
        )


def _subtasks(turn: Turn, events: list[Event], worker: str) -> list[MemoryEntry]:
    """What a worker was given and what came of it."""
    boss = coordinator_of(worker)
    planned = [event for event in events if isinstance(event, GoalDecomposed) and event.agent == boss]
    subtasks = {subtask.number: subtask for event in planned for subtask in event.subtasks}
    entries = []
    for event in events:
        if isinstance(event, SubtaskEnded) and event.performer == worker and event.subtask in subtasks:
            asked = subtasks[event.subtask]
            texts = (("request", boss, f"{asked.name}\n{asked.description}"), ("answer", worker, event.output.text))
            entries += [
                MemoryEntry(
                    id=f"t{turn.number}.s{event.subtask}.{kind}",
                    text=text[:MAX_REMEMBERED_CHARACTERS],
                    kind=kind,
                    at=turn.ended_at or turn.created_at,
                    turn_id=turn.turn_id,
                    turn_number=turn.number,
                    speaker=speaker,
                )
                for kind, speaker, text in texts
            ]
    return entries


def _read(tx: LedgerTx, turn_id: str) -> tuple[Turn, list[Event]]:
    turn = tx.turns.get(turn_id)
    stored = tx.events.read_turn(turn.session_id, turn_id, types=_TYPES)
    return turn, [decode_event(item.type, item.version, item.payload) for item in stored]


def _dated(entry: MemoryEntry) -> DailyEntry:
    dated = DailyEntry(entry.id, entry.at, entry.kind, entry.speaker, entry.text, entry.turn_id, entry.turn_number)
    if len(entry.text) > MAX_DAILY_TEXT:
        dated = replace(dated, text=entry.text[:MAX_DAILY_TEXT], cut=True)
    return dated
