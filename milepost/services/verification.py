"""Checking a ledger: hash chains, the ends of turns, blobs, and references between tables."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field

from milepost.domain.content import BlobRef
from milepost.domain.errors import BlobNotFound, LedgerCorrupt, StorageUnavailable
from milepost.domain.events import LATE_EVENTS, TERMINAL_TURN_EVENTS, TurnBegun
from milepost.domain.turns import TurnState
from milepost.ledger.chain import GENESIS, StoredEvent, verify_chain
from milepost.ledger.codec import parse
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.services.batches import bounded_batch
from milepost.services.contents import Contents
from milepost.services.exporting.lossless import blob_refs
from milepost.services.longterm.checking import check_records
from milepost.services.longterm.ledger_store import LedgerLongTerm

BATCH_EVENTS = 500
BATCH_BYTES = 4 * 1024 * 1024
PAGE = 200
MAX_FINDINGS = 100

_TERMINAL = {cls.TYPE: TurnState(cls.TYPE.removeprefix("turn.")) for cls in TERMINAL_TURN_EVENTS}
_LATE = frozenset(cls.TYPE for cls in LATE_EVENTS)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not hold, in a sentence."""

    stream_id: str
    problem: str


@dataclass(slots=True)
class Verification:
    """What was looked at, and what does not hold: the first 100 findings, and how many there are."""

    streams: int = 0
    events: int = 0
    turns: int = 0
    blobs: int = 0
    records: int = 0
    found: int = 0
    findings: list[Finding] = field(default_factory=list)

    def add(self, stream_id: str, problem: str) -> None:
        """Count a finding; keep it if there is room."""
        self.found += 1
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(Finding(stream_id, problem))


@dataclass(slots=True)
class _Stream:
    """The walk over one stream. `ends` has the turns met so far and their terminal states, if any."""

    stream_id: str
    seq: int = 0
    hash: bytes = GENESIS
    ends: dict[str, TurnState | None] = field(default_factory=dict)


class VerificationService:
    """Reads the whole ledger in bounded batches; changes nothing, and may run beside a working instance."""

    def __init__(self, ledger: Ledger, contents: Contents) -> None:
        self._ledger = ledger
        self._contents = contents
        # Digests that were looked at, 32 bytes each; a blob that many events name is read once.
        self._seen: set[bytes] = set()

    async def verify(self) -> Verification:
        """Check the instance's stream, those of all Sessions with their blobs, and every reference between tables.

        Raises StorageUnavailable.
        """
        result = Verification()
        self._seen.clear()
        for orphan in await self._ledger.read(lambda tx: tx.orphans(MAX_FINDINGS)):
            result.add(
                f"table/{orphan.table}",
                f"Row {orphan.key} of '{orphan.table}' is an orphan: its {orphan.column} {orphan.missing} is not in "
                f"'{orphan.parent}'.",
            )
        await self._stream(f"instance/{self._ledger.instance_id}", result)
        await self._records(result)
        before: str | None = None
        while True:
            page = await self._ledger.read(
                lambda tx, last=before: tx.sessions.page(status=None, before=last, limit=PAGE)  # type: ignore[misc]
            )
            for session in page:
                await self._session(session.session_id, result)
            if len(page) < PAGE:
                return result
            before = page[-1].session_id

    async def _records(self, result: Verification) -> None:
        """Look at every record of long-term memory that the ledger's database has."""
        async for problems in check_records(LedgerLongTerm(self._ledger)):
            result.records += 1
            for problem in problems:
                result.add("table/long_term_records", problem)

    async def _session(self, session_id: str, result: Verification) -> None:
        # Before the events: what had ended by now has its terminal event among them, whatever goes on meanwhile.
        states = await self._states(session_id)
        walked = await self._stream(session_id, result)
        if walked is None:
            return
        result.turns += len(states)
        await self._attachments(session_id, result)
        for turn_id, state in states.items():
            end = walked.ends.get(turn_id)
            if turn_id not in walked.ends:
                result.add(session_id, f"Turn {turn_id} has no '{TurnBegun.TYPE}' event.")
            elif state.terminal and end is not state:
                told = "none" if end is None else f"one of '{end}'"
                result.add(session_id, f"Turn {turn_id} is '{state}', but its terminal event is {told}.")

    async def _states(self, session_id: str) -> dict[str, TurnState]:
        states: dict[str, TurnState] = {}
        before: int | None = None
        while True:
            page = await self._ledger.read(
                lambda tx, last=before: tx.turns.page(session_id, before_number=last, limit=PAGE)  # type: ignore[misc]
            )
            states.update((turn.turn_id, turn.state) for turn in page)
            if len(page) < PAGE:
                return states
            before = page[-1].number

    async def _stream(self, stream_id: str, result: Verification) -> _Stream | None:
        """Walk a stream; None if its chain broke, after which nothing in it can be relied on."""
        result.streams += 1
        stream = _Stream(stream_id)
        more = True
        while more:
            events, more, head = await self._ledger.read(lambda tx: _batch(tx, stream))
            try:
                stream.seq, stream.hash = verify_chain(events, seq=stream.seq, prev_hash=stream.hash)
                if not more and head != (stream.seq, stream.hash):
                    raise LedgerCorrupt(
                        f"Stream {stream_id}: it ends at seq {stream.seq}, but its head is seq {head[0]}."
                    )
            except LedgerCorrupt as error:
                result.add(stream_id, error.message)
                return None
            result.events += len(events)
            for event in events:
                _follow(stream, event, result)
                await self._blobs(event, result)
        return stream

    async def _attachments(self, session_id: str, result: Verification) -> None:
        """Read the blobs of files that no turn has used yet; those of others are named by events."""
        before: str | None = None
        while True:
            page = await self._ledger.read(
                lambda tx, last=before: tx.attachments.page(session_id, before=last, limit=PAGE)  # type: ignore[misc]
            )
            for item in page:
                ref = item.ref
                for blob in (ref.blob, ref.text, ref.image):
                    problem = None if blob is None else await self._new_blob_problem(blob, result)
                    if problem is not None:
                        result.add(session_id, f"Attachment {ref.attachment_id}: {problem}")
            if len(page) < PAGE:
                return
            before = page[-1].ref.attachment_id

    async def _blobs(self, event: StoredEvent, result: Verification) -> None:
        """Read every blob that the event names, once."""
        if b'"digest":"' not in event.payload:
            return
        for value in blob_refs(parse(event.payload)):
            ref = BlobRef(value["digest"], value["size"], value["media_type"])
            problem = await self._new_blob_problem(ref, result)
            if problem is not None:
                result.add(event.stream_id, f"Event {event.seq} ('{event.type}'): {problem}")

    async def _new_blob_problem(self, ref: BlobRef, result: Verification) -> str | None:
        """What is wrong with a blob that was not looked at before."""
        digest = bytes.fromhex(ref.digest)
        if digest in self._seen:
            return None
        self._seen.add(digest)
        result.blobs += 1
        return await self._blob_problem(ref)

    async def _blob_problem(self, ref: BlobRef) -> str | None:
        size = 0
        try:
            async with aclosing(self._contents.bytes_of(ref)) as pieces:
                async for piece in pieces:
                    size += len(piece)
        except (BlobNotFound, StorageUnavailable) as error:
            return error.message
        return None if size == ref.size else f"The blob {ref.digest} has {size} bytes instead of {ref.size}."


def _batch(tx: LedgerTx, stream: _Stream) -> tuple[list[StoredEvent], bool, tuple[int, bytes]]:
    """The next events, whether more may follow, and the stream's head in the same snapshot."""

    def read(last: StoredEvent | None, limit: int) -> list[StoredEvent]:
        return tx.events.read(stream.stream_id, after=stream.seq if last is None else last.seq, limit=limit)

    events, more = bounded_batch(read, lambda event: len(event.payload), count=BATCH_EVENTS, max_bytes=BATCH_BYTES)
    return events, more, tx.events.head(stream.stream_id)


def _follow(stream: _Stream, event: StoredEvent, result: Verification) -> None:
    turn_id = event.turn_id
    if turn_id is None:
        return
    ended = stream.ends.get(turn_id)
    if ended is not None and event.type not in _LATE:
        result.add(stream.stream_id, f"Turn {turn_id}: '{event.type}' (seq {event.seq}) follows its end.")
    if event.type == TurnBegun.TYPE:
        stream.ends.setdefault(turn_id, None)
    elif event.type in _TERMINAL and ended is None:
        stream.ends[turn_id] = _TERMINAL[event.type]
