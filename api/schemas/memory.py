"""Memory."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.schemas.base import Body, Query, Shape, at_most
from api.schemas.sessions import MAX_LIMIT
from api.times import rfc3339
from milepost.domain.errors import InvalidInput
from milepost.domain.memory import DEFAULT_MIN_SCORE, MAX_BLOCK_LIMIT, BlockVersion, Recall, Recalled
from milepost.domain.memory_events import MemoryRecalled
from milepost.domain.semantic import MAX_QUERY_BYTES, MAX_RESULTS, MemoryRecord, ReindexStep
from milepost.services.blocks import Block
from milepost.services.memory import BlockView, Dated, OwnerView, SessionMemory

MAX_IDS = 100
MAX_SENT_CHARACTERS = 64 * 1024
Note = Annotated[str, *at_most(500)]


class BlockShape(Shape):
    """A core block as it is now. `version` is 0 until somebody writes to it; `characters` count code points."""

    label: str
    description: str
    value: str
    characters: int
    limit: int
    version: int
    shared: bool
    read_only: bool
    """Whether agents cannot change it."""

    @classmethod
    def of(cls, block: Block) -> BlockShape:
        spec = block.spec
        return cls(
            label=spec.label,
            description=spec.description,
            value=block.value,
            characters=len(block.value),
            limit=spec.limit,
            version=block.number,
            shared=spec.shared,
            read_only=spec.read_only,
        )


class BlocksShape(Shape):
    """All core blocks of an owner, in the order of their declaration."""

    blocks: list[BlockShape]

    @classmethod
    def of(cls, blocks: list[Block]) -> BlocksShape:
        return cls(blocks=[BlockShape.of(block) for block in blocks])


class VersionShape(Shape):
    """A value that a block had. `by` is `agent:NAME` or `person:...`; `superseded`: a rewind took its turn out."""

    version: int
    value: str
    by: str
    note: str
    written_at: str
    turn_id: str | None
    turn_number: int | None
    superseded: bool

    @classmethod
    def of(cls, version: BlockVersion, *, superseded: bool = False) -> VersionShape:
        return cls(
            version=version.number,
            value=version.value,
            by=version.by,
            note=version.note,
            written_at=rfc3339(version.at),
            turn_id=version.turn_id or None,
            turn_number=version.turn_number or None,
            superseded=superseded,
        )


class BlockHistoryShape(Shape):
    """A block with the versions that are kept, newest first."""

    block: BlockShape
    versions: list[VersionShape]

    @classmethod
    def of(cls, view: BlockView) -> BlockHistoryShape:
        versions = [VersionShape.of(version, superseded=hidden) for version, hidden in view.history]
        return cls(block=BlockShape.of(view.block), versions=versions)


class BlockBody(Body):
    """A new value. `expected_version` refuses it if the block is at another version by now."""

    value: Annotated[str, *at_most(MAX_BLOCK_LIMIT)]
    expected_version: Annotated[int | None, Field(ge=0, le=2**31 - 1)] = None
    note: Note = ""


class RevertBody(Body):
    """An earlier version; 0 is what the configuration says."""

    to: Annotated[int, Field(ge=0, le=2**31 - 1)]
    note: Note = ""


class OwnerShape(Shape):
    """What an agent has in memory: its blocks, the dates of its log, counts of what it can recall."""

    owner: str
    blocks: list[BlockShape]
    days: list[str]
    records: int
    current: int
    """Records that no later one corrects or repeats."""
    pending: int
    """Records without a vector yet: found by their words only."""
    failed: int
    """Records whose vector could not be made."""
    forgotten: int
    embedder: str | None
    dimensions: int | None

    @classmethod
    def of(cls, view: OwnerView) -> OwnerShape:
        stats = view.records
        return cls(
            owner=view.scope.owner,
            blocks=[BlockShape.of(block) for block in view.blocks],
            days=list(view.days),
            records=stats.records,
            current=stats.current,
            pending=stats.pending,
            failed=stats.failed,
            forgotten=stats.forgotten,
            embedder=None if stats.space is None else stats.space.embedder,
            dimensions=None if stats.space is None else stats.space.dimensions,
        )


class WaitingShape(Shape):
    """Work that is to be done: `write` the turn of this id into memory, or `rebuild` the Session's."""

    kind: str
    subject: str
    attempts: int
    error: str | None


class SessionMemoryShape(Shape):
    """Whose memory a Session has; `waiting` is what is still to be written."""

    session_id: str
    owners: list[OwnerShape]
    waiting: list[WaitingShape]

    @classmethod
    def of(cls, session_id: str, found: SessionMemory) -> SessionMemoryShape:
        return cls(
            session_id=session_id,
            owners=[OwnerShape.of(owner) for owner in found.owners],
            waiting=[
                WaitingShape(kind=task.kind.value, subject=task.subject, attempts=task.attempts, error=task.last_error)
                for task in found.waiting
            ],
        )


class LogQuery(Query):
    """A page of a daily log: entries from `from` on and before `to`, both RFC 3339 times with an offset."""

    start: Annotated[str | None, Field(alias="from", max_length=64)] = None
    end: Annotated[str | None, Field(alias="to", max_length=64)] = None
    cursor: Annotated[str | None, Field(max_length=200)] = None
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 50

    @property
    def after(self) -> tuple[int, str] | None:
        """The place after which the page begins. Raises InvalidInput for a cursor of no page."""
        if self.cursor is None:
            return None
        at, _, entry_id = self.cursor.partition("/")
        digits = at.removeprefix("-")
        if not (entry_id and digits.isascii() and digits.isdigit() and len(digits) <= 18):
            raise InvalidInput("The cursor is of no page.", field="cursor", fix="Begin without a cursor.")
        return int(at), entry_id


class EntryShape(Shape):
    """An entry of a daily log. `cut`: the turn has more of the text. `superseded`: a rewind took its turn out."""

    id: str
    at: str
    kind: str
    speaker: str
    text: str
    cut: bool
    turn_id: str | None
    turn_number: int | None
    superseded: bool

    @classmethod
    def of(cls, dated: Dated) -> EntryShape:
        entry = dated.entry
        return cls(
            id=entry.id,
            at=rfc3339(entry.at),
            kind=entry.kind,
            speaker=entry.speaker,
            text=entry.text,
            cut=entry.cut,
            turn_id=entry.turn_id or None,
            turn_number=entry.turn_number or None,
            superseded=dated.superseded,
        )


class LogPage(Shape):
    """Oldest first. `next_cursor` continues the list, null at its end."""

    entries: list[EntryShape]
    next_cursor: str | None


class RecordsQuery(Query):
    """A page of records."""

    cursor: Annotated[int | None, Field(ge=1, le=2**63 - 1)] = None
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 50


class SourceShape(Shape):
    """Where a record was said."""

    at: str
    turn_id: str | None
    turn_number: int | None


class RecordShape(Shape):
    """A record that can be recalled. `embedding`: embedded, pending or failed (then with its error)."""

    id: str
    text: str
    kind: str
    speaker: str
    at: str
    sources: list[SourceShape]
    superseded_by: str | None
    """The record that corrects it, or says the same later."""
    embedding: str
    embedding_error: str | None

    @classmethod
    def of(cls, record: MemoryRecord) -> RecordShape:
        return cls(
            id=record.id,
            text=record.text,
            kind=record.kind,
            speaker=record.speaker,
            at=rfc3339(record.at),
            sources=[
                SourceShape(
                    at=rfc3339(source.at), turn_id=source.turn_id or None, turn_number=source.turn_number or None
                )
                for source in record.sources
            ],
            superseded_by=record.superseded_by,
            embedding=record.embedding.value,
            embedding_error=record.embedding_error,
        )


class RecordPage(Shape):
    """Newest first. `next_cursor` continues the list, null at its end."""

    records: list[RecordShape]
    next_cursor: int | None


class RecordsReindexBody(Body):
    """Where to go on: 0, or `after` of the step before."""

    after: Annotated[int, Field(ge=0, le=2**62)] = 0


class RecordsReindexStep(Shape):
    """What a step did. Until `finished` send `after` with the next one."""

    embedder: str
    dimensions: int
    embedded: int
    records: int
    after: int
    finished: bool

    @classmethod
    def of(cls, step: ReindexStep) -> RecordsReindexStep:
        return cls(
            embedder=step.space.embedder,
            dimensions=step.space.dimensions,
            embedded=step.embedded,
            records=step.records,
            after=step.after,
            finished=step.finished,
        )


class RecallBody(Body):
    """What to search for. Scores are millionths."""

    query: Annotated[str, *at_most(MAX_QUERY_BYTES)]
    k: Annotated[int, Field(ge=1, le=MAX_RESULTS)] = 10
    min_score: Annotated[int, Field(ge=0, le=1_000_000)] = DEFAULT_MIN_SCORE


class RecalledShape(Shape):
    """A record with the reasons why it is here. `score` and its `parts` are millionths."""

    id: str
    text: str
    score: int
    parts: dict[str, int]
    reason: str
    kind: str
    speaker: str
    at: str
    turn_id: str | None
    turn_number: int | None

    @classmethod
    def of(cls, item: Recalled) -> RecalledShape:
        return cls(
            id=item.id,
            text=item.text,
            score=item.score,
            parts=dict(item.parts),
            reason=item.reason,
            kind=item.kind,
            speaker=item.speaker,
            at=rfc3339(item.at),
            turn_id=item.turn_id or None,
            turn_number=item.turn_number or None,
        )


class RecallShape(Shape):
    """Best first. Of `searched` records `incomplete` have no vector: they were searched by their words only.

    `problem` says why no meaning was compared at all; else it is null.
    """

    items: list[RecalledShape]
    searched: int
    incomplete: int
    problem: str | None

    @classmethod
    def of(cls, found: Recall) -> RecallShape:
        return cls(
            items=[RecalledShape.of(item) for item in found.items],
            searched=found.searched,
            incomplete=found.incomplete,
            problem=found.problem or None,
        )


class ForgetBody(Body):
    """Ids of records."""

    ids: Annotated[list[Annotated[str, *at_most(128)]], Field(min_length=1, max_length=MAX_IDS)]


class ForgottenShape(Shape):
    """Ids of the records that are gone."""

    forgotten: list[str]


class SeenShape(Shape):
    """A core block as a turn began with it."""

    label: str
    version: int
    characters: int
    shared: bool


class ReminderShape(Shape):
    """What an agent was reminded of in a turn. `sent` is the text before the request, cut at 64 Ki characters.

    `written`: the turn is in the agent's memory.
    """

    blocks: list[SeenShape]
    changed: list[str]
    """Blocks that were told again, since they had changed."""
    items: list[RecalledShape]
    incomplete: int
    sent: str
    written: bool

    @classmethod
    def of(cls, event: MemoryRecalled, *, written: bool) -> ReminderShape:
        return cls(
            blocks=[
                SeenShape(label=seen.label, version=seen.version, characters=seen.characters, shared=seen.shared)
                for seen in event.blocks
            ],
            changed=list(event.changed),
            items=[RecalledShape.of(item) for item in event.items],
            incomplete=event.incomplete,
            sent=event.text[:MAX_SENT_CHARACTERS],
            written=written,
        )
