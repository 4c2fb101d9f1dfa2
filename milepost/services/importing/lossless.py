"""From a lossless export: checked in a first pass, given as rows with new ids in a second one."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, TypeVar

import cattrs

from milepost.contracts.naming import turn_workflow_id
from milepost.domain.approvals import Approval
from milepost.domain.attachments import Attachment
from milepost.domain.budgets import Limits, Spending
from milepost.domain.effects import Effect
from milepost.domain.errors import MilepostError
from milepost.domain.events import (
    EVENTS_BY_KIND,
    Event,
    ImportCompleted,
    SessionOpened,
    StreamKind,
)
from milepost.domain.rewinds import Rewind
from milepost.domain.sessions import Session
from milepost.domain.turns import Turn, TurnState
from milepost.ledger.chain import GENESIS, event_hash
from milepost.ledger.codec import canonical_bytes, decode_event, from_json
from milepost.ports.ledger import NewEvent
from milepost.services.exporting.lossless import FORMAT, LATER_SECTIONS, SECTIONS
from milepost.services.importing.course import Course, check_numbers, check_spending
from milepost.services.importing.document import Document, Record
from milepost.services.importing.plan import BadLine, Plan, derived

T = TypeVar("T")

_TYPES = {cls.TYPE for cls in EVENTS_BY_KIND[StreamKind.SESSION]}


@dataclass(slots=True)
class _Checked:
    """What the first pass found."""

    course: Course
    ids: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    missing: int = 0


def plan_of(document: Document, instance_id: str) -> Plan:
    """Check the whole document and say what it makes. Raises BadLine."""
    old = _read(Session, document.head["session"], Record("session", 3, {}))
    source_instance = str(document.head["source"].get("instance_id", ""))
    head_hash = _last(document).get("head_hash")
    digest = hashlib.sha256(canonical_bytes([source_instance, old.session_id, head_hash])).hexdigest()
    session_id = f"ses_{digest[:32]}"
    checked = _Pass(document, old.session_id, session_id, instance_id).run()
    turns = len(checked.course.begun)
    open_turns = turns - len(checked.course.ends)
    completed = ImportCompleted(FORMAT, digest, turns, open_turns, old.session_id, source_instance)
    source = ExportSource(document, session_id, checked)
    head, place = document.head["session"], Record("session", 3, {})
    spending = _read(Spending, head.get("spending", {}), place)
    check_spending(spending)
    # Nothing is under way.
    spending = replace(spending, reserved_tokens=0, reserved_micros=Decimal(0))
    limits = _read(Limits, head.get("limits", {}), place)
    return Plan(replace(old, session_id=session_id), source, completed, checked.missing, spending, limits)


class _Pass:
    """The first pass: everything can be read, refers to what is there, and is what was exported."""

    def __init__(self, document: Document, old_id: str, new_id: str, instance_id: str) -> None:
        self._document = document
        self._old_id = old_id
        self._new_id = new_id
        self._instance_id = instance_id
        self._found = _Checked(Course(old_id), ids={old_id: new_id}, counts=dict.fromkeys(SECTIONS, 0))
        self._seq, self._hash = 0, GENESIS
        self._blob: tuple[str, int] | None = None
        self._sum = hashlib.sha256()
        self._held = 0

    def run(self) -> _Checked:
        """Raises BadLine."""
        checks: dict[str, Callable[[Record], None]] = {
            "turns": self._turn,
            "effects": self._effect,
            "approvals": self._approval,
            "rewinds": self._rewind,
            "attachments": self._attachment,
            "events": self._event,
            "blobs": self._blob_piece,
            "end": self._end,
        }
        for record in self._document.records(*SECTIONS):
            if record.section != "end":
                self._found.counts[record.section] += 1
            checks[record.section](record)
        return self._found

    def _know(self, record: Record, old: str, new: str) -> None:
        if old in self._found.ids:
            raise BadLine(record.line, f"The id {old[:80]!r} is there twice.")
        self._found.ids[old] = new

    def _turn(self, record: Record) -> None:
        turn = _read(Turn, record.value, record)
        new = derived("trn_", self._new_id, turn.turn_id)
        self._know(record, turn.turn_id, new)
        self._found.course.turn(turn, record.line)
        self._know(record, turn.workflow_id, turn_workflow_id(self._instance_id, new))

    def _effect(self, record: Record) -> None:
        effect = _effect(record)
        self._found.course.effect(effect, record.line)
        self._know(record, effect.spec.effect_id, derived("", self._new_id, effect.spec.effect_id, 64))

    def _approval(self, record: Record) -> None:
        approval = _read(Approval, record.value, record)
        self._found.course.approval(approval, record.line)
        self._know(record, approval.approval_id, derived("apr_", self._new_id, approval.approval_id))

    def _rewind(self, record: Record) -> None:
        rewind = _read(Rewind, record.value, record)
        self._found.course.rewind(rewind, record.line)
        self._know(record, rewind.rewind_id, derived("rwd_", self._new_id, rewind.rewind_id))

    def _attachment(self, record: Record) -> None:
        attachment, text = _attachment(record)
        self._found.course.attachment(attachment, text, record.line)
        old = attachment.ref.attachment_id
        self._know(record, old, derived("att_", self._new_id, old))

    def _event(self, record: Record) -> None:
        value = record.value
        event, payload = _event(record)
        if value["seq"] != self._seq + 1:
            raise BadLine(record.line, f"Event {self._seq + 1} is missing.")
        if (self._seq == 0) is not isinstance(event, SessionOpened):
            raise BadLine(record.line, "A Session begins with 'session.opened', once.")
        turn_id = value["turn_id"]
        self._found.course.event(event, value["key"], turn_id, record.line)
        header = (value["key"], value["type"], value["version"], value["at"], turn_id)
        self._seq += 1
        self._hash = event_hash(self._hash, self._old_id, self._seq, *header, payload)

    def _blob_piece(self, record: Record) -> None:
        key = blob_key(record)
        if record.value.get("missing") is True:
            self._finish_blob(record.line)
            self._found.missing += 1
            return
        data = blob_data(record)
        offset = record.value.get("offset")
        if offset == 0:
            self._finish_blob(record.line)
            self._blob, self._sum, self._held = key, hashlib.sha256(), 0
        if self._blob != key or offset != self._held:
            raise BadLine(record.line, "The piece of a blob is not the next one.")
        self._sum.update(data)
        self._held += len(data)

    def _finish_blob(self, line: int | None) -> None:
        blob, self._blob = self._blob, None
        if blob is not None and (self._sum.hexdigest(), self._held) != blob:
            raise BadLine(line, f"The blob before is not the one that {blob[0]} names.")

    def _end(self, record: Record) -> None:
        self._finish_blob(record.line)
        counts = record.value.get("counts")
        if not isinstance(counts, dict) or dict.fromkeys(LATER_SECTIONS, 0) | counts != self._found.counts:
            raise BadLine(record.line, "Records are missing, or too many.")
        if record.value.get("head_hash") != self._hash.hex():
            raise BadLine(record.line, "The events are not those that were exported: their hash chain does not hold.")
        self._found.course.end()


class ExportSource:
    """`plan.Source` of a checked document."""

    def __init__(self, document: Document, session_id: str, checked: _Checked) -> None:
        self._document = document
        self._session_id = session_id
        self._checked = checked

    def events(self) -> Iterator[NewEvent]:
        ids = self._checked.ids
        for record in self._records("events"):
            value = record.value
            key = "/".join(ids.get(part, part) for part in value["key"].split("/"))
            payload = canonical_bytes(renamed(value["payload"], ids))
            event = decode_event(value["type"], value["version"], payload)
            turn_id = value["turn_id"]
            yield NewEvent(key, event, None if turn_id is None else ids[turn_id], value["at"])

    def turns(self) -> Iterator[Turn]:
        for record in self._records("turns"):
            # The run that owned it is none of this instance.
            turn = replace(from_json(renamed(record.value, self._checked.ids), Turn), claimed_run=None)
            if record.value["turn_id"] not in self._checked.course.ends:
                # It ended after the export's last event, or not at all.
                turn = replace(turn, state=TurnState.RUNNING, ended_at=None, error_code=None, error_message=None)
            yield turn

    def effects(self) -> Iterator[Effect]:
        for record in self._records("effects"):
            yield _effect(Record(record.section, record.line, renamed(record.value, self._checked.ids)))

    def approvals(self) -> Iterator[Approval]:
        for record in self._records("approvals"):
            yield from_json(renamed(record.value, self._checked.ids), Approval)

    def rewinds(self) -> Iterator[Rewind]:
        for record in self._records("rewinds"):
            yield from_json(renamed(record.value, self._checked.ids), Rewind)

    def attachments(self) -> Iterator[tuple[Attachment, str | None]]:
        for record in self._records("attachments"):
            yield _attachment(Record(record.section, record.line, renamed(record.value, self._checked.ids)))

    def _records(self, section: str) -> Iterator[Record]:
        return (record for record in self._document.records(section) if record.section == section)


def renamed(value: Any, ids: dict[str, str]) -> Any:
    """The JSON value with every known id under a key that holds ids replaced."""
    if isinstance(value, dict):
        return {key: _renamed_at(key, item, ids) for key, item in value.items()}
    if isinstance(value, list):
        return [renamed(item, ids) for item in value]
    return value


def _renamed_at(key: str, item: Any, ids: dict[str, str]) -> Any:
    if key.endswith(("_id", "_ids")) or key in ("retry_of", "copied_from", "previous_turn", "used_by"):
        if isinstance(item, str):
            return ids.get(item, item)
        if isinstance(item, list):
            return [ids.get(each, each) if isinstance(each, str) else renamed(each, ids) for each in item]
    return renamed(item, ids)


def blob_key(record: Record) -> tuple[str, int]:
    """(digest, size) of a piece's blob. Raises BadLine."""
    digest, size = record.value.get("digest"), record.value.get("size")
    media_type = record.value.get("media_type")
    if not (isinstance(digest, str) and type(size) is int and isinstance(media_type, str)):
        raise BadLine(record.line, "The piece of a blob names no digest, size and media type.")
    return digest, size


def blob_data(record: Record) -> bytes:
    """The bytes of a piece. Raises BadLine."""
    try:
        return base64.b64decode(record.value["data"], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise BadLine(record.line, "The piece of a blob has no base64 data.") from error


def _last(document: Document) -> dict[str, Any]:
    for record in document.records():
        return record.value
    raise BadLine(None, "The document has no end.")


def _read(cls: type[T], value: dict[str, Any], record: Record) -> T:
    check_numbers(value, record.line)
    try:
        return from_json(value, cls)
    except (cattrs.BaseValidationError, ValueError, TypeError, KeyError, ArithmeticError) as error:
        raise BadLine(record.line, f"This is no {cls.__name__.lower()} ({_first(error)}).") from error


def _first(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {str(error)[:200]}"


def _effect(record: Record) -> Effect:
    value = dict(record.value)
    result = value.pop("result", None)
    effect = _read(Effect, value | {"result": None}, record)
    try:
        return replace(effect, result=None if result is None else base64.b64decode(result, validate=True))
    except (TypeError, ValueError, binascii.Error) as error:
        raise BadLine(record.line, "The effect's result is no base64.") from error


def _attachment(record: Record) -> tuple[Attachment, str | None]:
    value = dict(record.value)
    text = value.pop("text", None)
    if not isinstance(text, str | None):
        raise BadLine(record.line, "The attachment's text is no text.")
    return _read(Attachment, value, record), text


_HEADER: dict[str, type] = {"seq": int, "key": str, "type": str, "version": int, "at": int}


def _event(record: Record) -> tuple[Event, bytes]:
    value = record.value
    wrong = [name for name, kind in _HEADER.items() if type(value.get(name)) is not kind]
    if wrong or not isinstance(value.get("payload"), dict) or not isinstance(value.get("turn_id"), str | None):
        raise BadLine(record.line, f"The event's {', '.join(wrong) or 'payload'} is missing or of another type.")
    check_numbers({"at": value["at"], "version": value["version"]}, record.line)
    if value["type"] not in _TYPES:
        raise BadLine(record.line, f"A Session has no event '{value['type'][:80]}' in this release.")
    try:
        payload = canonical_bytes(value["payload"])
        return decode_event(value["type"], value["version"], payload), payload
    except (MilepostError, ValueError, TypeError) as error:
        raise BadLine(record.line, f"The event cannot be read ({_first(error)}).") from error


class BlobPieces:
    """The blobs of a checked document, one after another."""

    def __init__(self, document: Document) -> None:
        self._records = (
            record
            for record in document.records("blobs")
            if record.section == "blobs" and not record.value.get("missing")
        )
        self._ahead: Record | None = next(self._records, None)

    def next_blob(self) -> str | None:
        """The media type of the next blob; None at the end. The pieces of the one before must have been taken."""
        return None if self._ahead is None else str(self._ahead.value["media_type"])

    def next_piece(self) -> bytes | None:
        """The next piece of this blob; None at its end."""
        record = self._ahead
        if record is None or (record.value["offset"] == 0 and self._begun):
            self._begun = False
            return None
        self._begun = True
        self._ahead = next(self._records, None)
        return blob_data(record)

    _begun = False
