"""What a lossless export's records must be beyond their shape: of this Session, in range, and one course of events.

The hash chain shows that events are those that were exported; whoever writes a file himself can compute one. So nothing
of a file may touch what is here already, leave anything open, or be what no ledger can hold.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from milepost.domain.approvals import Approval, ApprovalState
from milepost.domain.attachments import MAX_ATTACHMENTS, MAX_NAME_CHARACTERS, MAX_TEXT_BYTES, Attachment
from milepost.domain.budgets import Spending
from milepost.domain.effects import SETTLED_EFFECT_STATES, Effect, EffectState
from milepost.domain.events import LATE_EVENTS, TERMINAL_TURN_EVENTS, AttachmentConsumed, Event, TurnBegun
from milepost.domain.rewinds import Rewind
from milepost.domain.turns import Turn, TurnState
from milepost.services.importing.plan import BadLine

MAX_DEPTH = 100
MAX_SMALL = 2**31 - 1
MAX_NUMBER = 2**63 - 1
FIRST_TIME = -62_135_596_800_000_000
LAST_TIME = 253_402_300_799_999_999
"""Microseconds since the epoch of the years 1 and 9999, which is what can be shown."""

_SMALL = frozenset({"number", "generation", "attempt", "to_number", "last_number", "turns", "version"})
_DIGEST = re.compile("[0-9a-f]{64}")
_ENDS = {cls.TYPE: TurnState(cls.TYPE.removeprefix("turn.")) for cls in TERMINAL_TURN_EVENTS}
_PAST = frozenset({*SETTLED_EFFECT_STATES, EffectState.UNCERTAIN})


def check_record(value: dict[str, Any], line: int | None) -> None:
    """Nesting and references to blobs. Raises BadLine."""
    stack: list[tuple[Any, int]] = [(value, 1)]
    while stack:
        item, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise BadLine(line, f"The record is nested over {MAX_DEPTH} levels deep.")
        if isinstance(item, dict):
            for name in ("blob", "text", "image"):
                blob = item.get(name)
                if isinstance(blob, dict) and blob.keys() == {"digest", "size", "media_type"}:
                    _check_blob(blob, line)
            stack.extend((each, depth + 1) for each in item.values() if isinstance(each, dict | list))
        else:
            stack.extend((each, depth + 1) for each in item if isinstance(each, dict | list))


def _check_blob(blob: dict[str, Any], line: int | None) -> None:
    digest, size = blob["digest"], blob["size"]
    named = isinstance(digest, str) and _DIGEST.fullmatch(digest)
    if not (named and type(size) is int and 0 <= size <= MAX_NUMBER):
        raise BadLine(line, "A reference to a blob has no SHA-256 digest or no size.")


def check_numbers(value: dict[str, Any], line: int | None) -> None:
    """Whether the numbers and times of a row can be stored and shown. Raises BadLine."""
    for key, item in value.items():
        if isinstance(item, dict):
            check_numbers(item, line)
        elif type(item) is int:
            low, high = -MAX_NUMBER, MAX_NUMBER
            if key == "at" or key.endswith("_at"):
                low, high = FIRST_TIME, LAST_TIME
            elif key in _SMALL:
                low, high = 0, MAX_SMALL
            if not low <= item <= high:
                raise BadLine(line, f"'{key}' is out of range.")


def check_spending(spending: Spending) -> None:
    """Whether this can have been used. Raises BadLine."""
    counts = (spending.model_calls, spending.tool_calls, spending.assumed_tokens, spending.usage.total_tokens)
    amounts = (spending.assumed_micros, spending.usage.spent.micros)
    if any(count < 0 for count in counts) or any(not each.is_finite() or each < 0 for each in amounts):
        raise BadLine(3, "'spending' has an amount that nobody can have used.")


@dataclass(frozen=True, slots=True)
class _Row:
    line: int | None
    number: int
    state: TurnState
    dated: bool


class Course:
    """The turns of a document, as their rows and their events tell them. Every method raises BadLine."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._rows: dict[str, _Row] = {}
        self._effects: dict[str, str] = {}
        self._open: list[tuple[str, int | None]] = []
        self._keys: set[str] = set()
        self._attachments: set[str] = set()
        self._files: set[str] = set()
        self.begun: set[str] = set()
        self.ends: dict[str, TurnState] = {}

    def turn(self, turn: Turn, line: int | None) -> None:
        """The row of the next turn."""
        self._own(turn.session_id, "turn", line)
        if turn.number != len(self._rows) + 1:
            raise BadLine(line, f"Turn number {len(self._rows) + 1} is missing.")
        self._files.update(ref.attachment_id for ref in turn.request.attachments)
        self._rows[turn.turn_id] = _Row(line, turn.number, turn.state, turn.ended_at is not None)

    def effect(self, effect: Effect, line: int | None) -> None:
        """The row of an effect; one that is open needs a turn without an end."""
        spec = effect.spec
        if spec.turn_id not in self._rows:
            raise BadLine(line, "The effect belongs to no turn of the document.")
        self._own(spec.session_id, "effect", line)
        self._effects[spec.effect_id] = spec.turn_id
        if effect.state not in _PAST:
            self._open.append((spec.turn_id, line))

    def approval(self, approval: Approval, line: int | None) -> None:
        """The row of an approval; a pending one needs a turn without an end."""
        if self._effects.get(approval.effect_id) != approval.turn_id:
            raise BadLine(line, "The approval belongs to no effect of the document.")
        self._own(approval.session_id, "approval", line)
        if approval.state is ApprovalState.PENDING:
            self._open.append((approval.turn_id, line))

    def rewind(self, rewind: Rewind, line: int | None) -> None:
        """The row of a rewind."""
        self._own(rewind.session_id, "rewind", line)
        if not 0 <= rewind.to_number < rewind.last_number <= len(self._rows):
            raise BadLine(line, "The rewind is of turns that the document does not have.")

    def attachment(self, attachment: Attachment, text: str | None, line: int | None) -> None:
        """The row of an attachment, and what was taken out of it."""
        self._own(attachment.session_id, "attachment", line)
        if attachment.used_by is not None and attachment.used_by not in self._rows:
            raise BadLine(line, "The attachment was used by a turn that the document does not have.")
        if text is not None and len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
            raise BadLine(line, f"The attachment's text has over {MAX_TEXT_BYTES} bytes.")
        if not 0 < len(attachment.ref.name) <= MAX_NAME_CHARACTERS:
            raise BadLine(line, f"An attachment's name has 1 to {MAX_NAME_CHARACTERS} characters.")
        if len(self._attachments) >= MAX_ATTACHMENTS:
            raise BadLine(line, f"A Session has at most {MAX_ATTACHMENTS} attachments.")
        self._attachments.add(attachment.ref.attachment_id)

    def _check_files(self, event: Event, line: int | None) -> None:
        """An event refers to attachments of the document alone."""
        named = [ref.attachment_id for ref in event.request.attachments] if isinstance(event, TurnBegun) else []
        if isinstance(event, AttachmentConsumed):
            named.append(event.attachment_id)
        if not self._attachments.issuperset(named):
            raise BadLine(line, "The event refers to an attachment that the document does not have.")

    def event(self, event: Event, key: str, turn_id: str | None, line: int | None) -> None:
        """The next event."""
        if key in self._keys:
            raise BadLine(line, f"The event's key {key[:80]!r} is there twice.")
        self._keys.add(key)
        self._check_files(event, line)
        named = getattr(event, "turn_id", None)
        if any(each is not None and each not in self._rows for each in (turn_id, named)):
            raise BadLine(line, "The event belongs to no turn of the document.")
        if isinstance(event, TurnBegun):
            if turn_id != event.turn_id or event.turn_id in self.begun:
                raise BadLine(line, "The turn begins twice, or as another one.")
            if event.number != self._rows[event.turn_id].number:
                raise BadLine(line, "The turn begins with another number than it has.")
            self.begun.add(event.turn_id)
        elif turn_id is not None and turn_id not in self.begun:
            raise BadLine(line, f"'{event.TYPE}' comes before its turn begins.")
        if turn_id is not None and turn_id in self.ends and not isinstance(event, LATE_EVENTS):
            raise BadLine(line, f"'{event.TYPE}' comes after its turn has ended.")
        if turn_id is not None and event.TYPE in _ENDS:
            if named != turn_id:
                raise BadLine(line, "The turn ends as another one.")
            self.ends[turn_id] = _ENDS[event.TYPE]

    def end(self) -> None:
        """Everything has been seen."""
        if not self._attachments.issuperset(self._files):
            raise BadLine(None, "A turn refers to an attachment that the document does not have.")
        if len(self.begun) != len(self._rows):
            raise BadLine(None, "Some turns have no 'turn.begun' event.")
        for turn_id, row in self._rows.items():
            end = self.ends.get(turn_id)
            if end is not None and not (row.state is end and row.dated):
                raise BadLine(row.line, f"The turn is '{row.state}', but its events end it as '{end}'.")
        if len(self._rows) - len(self.ends) > 1:
            raise BadLine(None, "More than one turn has no end.")
        for turn_id, line in self._open:
            if turn_id in self.ends:
                raise BadLine(line, "It is open, but its turn has ended.")

    def _own(self, session_id: str, what: str, line: int | None) -> None:
        if session_id != self._session_id:
            raise BadLine(line, f"The {what} belongs to another Session.")
