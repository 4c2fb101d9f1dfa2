"""A Session as lossless JSON (format `milepost.session`, version 1; described in docs/history.md).

One JSON document with one record on each line, so that it can be written and read without being held in memory.
"""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

from milepost.domain.approvals import Approval
from milepost.domain.attachments import Attachment
from milepost.domain.content import BlobRef
from milepost.domain.effects import Effect
from milepost.domain.errors import BlobNotFound
from milepost.domain.rewinds import Rewind
from milepost.ledger.chain import StoredEvent
from milepost.ledger.codec import canonical_bytes, parse, to_json
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.services.contents import Contents
from milepost.services.exporting.reading import ROWS, Span, SpanReader

FORMAT = "milepost.session"
VERSION = 1
SECTIONS = ("turns", "effects", "approvals", "rewinds", "attachments", "events", "blobs")
LATER_SECTIONS = frozenset({"attachments"})
"""Those that a document of an earlier release does not have."""

FEW = 20
"""Rows with long texts that are read at once."""

PIECE_BYTES = 192 * 1024
"""Of a blob in one record: a multiple of three, so that the pieces' base64 texts can be joined."""

_DIGEST = re.compile("[0-9a-f]{64}")


class LosslessExport:
    """Writes one Session. Blobs come last, each once, as the events and effects before have named them."""

    def __init__(self, ledger: Ledger, contents: Contents, span: Span, release: str, at: int) -> None:
        self._ledger = ledger
        self._contents = contents
        self._span = span
        self._reader = SpanReader(ledger)
        self._header = {"release": release, "exported_at": at, "instance_id": ledger.instance_id}
        self._blobs: dict[bytes, tuple[int, str]] = {}
        self._counts: dict[str, int] = {}
        self._turn_ids: set[str] = set()

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The document, in pieces of bounded size. Raises StorageUnavailable."""
        # What attempts under way may use is no fact yet.
        spent = replace(self._span.spending, reserved_tokens=0, reserved_micros=Decimal(0))
        more = {"spending": to_json(spent), "limits": to_json(self._span.limits)}
        session = to_json(self._span.session) | more
        yield b'{"format":' + canonical_bytes(FORMAT) + b',"version":%d,\n' % VERSION
        yield b'"source":' + canonical_bytes(self._header) + b",\n"
        yield b'"session":' + canonical_bytes(session) + b",\n"
        for section in SECTIONS:
            yield b'"%s":[\n' % section.encode()
            count = 0
            async for record in self._section(section):
                yield (b",\n" if count else b"") + record
                count += 1
            yield b"\n],\n" if count else b"],\n"
            self._counts[section] = count
        end = {"counts": self._counts, "head_hash": self._span.head_hash.hex()}
        yield b'"end":' + canonical_bytes(end) + b"}\n"

    def _section(self, name: str) -> AsyncIterator[bytes]:
        made: dict[str, AsyncIterator[bytes]] = {
            "turns": self._turns(),
            "effects": self._effects(),
            "approvals": self._approvals(),
            "rewinds": self._rewinds(),
            "attachments": self._attachments(),
            "events": self._events(),
            "blobs": self._blob_pieces(),
        }
        return made[name]

    async def _turns(self) -> AsyncIterator[bytes]:
        async for page in self._reader.turns(self._span):
            for turn in page:
                self._turn_ids.add(turn.turn_id)
                yield canonical_bytes(self._noted(to_json(turn)))

    async def _effects(self) -> AsyncIterator[bytes]:
        def read(tx: LedgerTx, last: Effect | None) -> list[Effect]:
            after = None if last is None else last.spec.effect_id
            return tx.effects.page(self._span.session.session_id, turn_id=None, state=None, limit=ROWS, after=after)

        async for page in self._reader.rows(read):
            for effect in page:
                # Others are of turns that have begun since.
                if effect.spec.turn_id in self._turn_ids:
                    yield canonical_bytes(self._noted(effect_json(effect)))

    async def _approvals(self) -> AsyncIterator[bytes]:
        def read(tx: LedgerTx, last: Approval | None) -> list[Approval]:
            after = None if last is None else last.approval_id
            return tx.approvals.page(session_id=self._span.session.session_id, state=None, after=after, limit=ROWS)

        async for page in self._reader.rows(read):
            for approval in page:
                if approval.turn_id in self._turn_ids:
                    yield canonical_bytes(to_json(approval))

    async def _rewinds(self) -> AsyncIterator[bytes]:
        def read(tx: LedgerTx, last: Rewind | None) -> list[Rewind]:
            before = None if last is None else last.rewind_id
            return tx.rewinds.of_session(self._span.session.session_id, before=before, limit=ROWS)

        async for page in self._reader.rows(read):
            for rewind in page:
                if rewind.last_number <= self._span.last_number:
                    yield canonical_bytes(to_json(rewind))

    async def _attachments(self) -> AsyncIterator[bytes]:
        session_id = self._span.session.session_id

        def read(tx: LedgerTx, last: tuple[Attachment, str | None] | None) -> list[tuple[Attachment, str | None]]:
            before = None if last is None else last[0].ref.attachment_id
            page = tx.attachments.page(session_id, before=before, limit=FEW)
            return [(item, tx.attachments.text(item.ref.attachment_id)) for item in page]

        async for page in self._reader.rows(read, FEW):
            for attachment, text in page:
                # A turn that has begun since may have used it.
                used = attachment.used_by if attachment.used_by in self._turn_ids else None
                yield canonical_bytes(self._noted(to_json(replace(attachment, used_by=used))) | {"text": text})

    async def _events(self) -> AsyncIterator[bytes]:
        async for batch in self._reader.events(self._span):
            for event in batch:
                yield self._event(event)

    def _event(self, event: StoredEvent) -> bytes:
        if b'"digest":"' in event.payload:
            self._noted(parse(event.payload))
        record = {
            "seq": event.seq,
            "key": event.key,
            "type": event.type,
            "version": event.version,
            "at": event.at,
            "turn_id": event.turn_id,
        }
        # The payload is canonical JSON already; it comes last.
        return canonical_bytes(record)[:-1] + b',"payload":' + event.payload + b"}"

    async def _blob_pieces(self) -> AsyncIterator[bytes]:
        for digest, (size, media_type) in self._blobs.items():
            ref = BlobRef(digest.hex(), size, media_type)
            head = {"digest": ref.digest, "size": size, "media_type": media_type}
            offset, held = 0, b""
            try:
                async for piece in self._contents.bytes_of(ref):
                    held += piece
                    while len(held) > PIECE_BYTES:
                        yield _blob_record(head, offset, held[:PIECE_BYTES])
                        offset, held = offset + PIECE_BYTES, held[PIECE_BYTES:]
                yield _blob_record(head, offset, held)
            except BlobNotFound:
                if offset:
                    raise  # what was written of it already cannot be taken back
                yield canonical_bytes(head | {"missing": True})

    def _noted(self, value: Any) -> Any:
        """The value, after its blobs have been noted for the end of the document."""
        for ref in blob_refs(value):
            self._blobs.setdefault(bytes.fromhex(ref["digest"]), (ref["size"], ref["media_type"]))
        return value


def _blob_record(head: dict[str, Any], offset: int, data: bytes) -> bytes:
    return canonical_bytes(head | {"offset": offset, "data": base64.b64encode(data).decode("ascii")})


def effect_json(effect: Effect) -> dict[str, Any]:
    """An effect's row; its result, which is opaque, in base64."""
    value: dict[str, Any] = to_json(effect)
    value["result"] = None if effect.result is None else base64.b64encode(effect.result).decode("ascii")
    return value


def blob_refs(value: Any) -> Iterator[dict[str, Any]]:
    """References to blobs anywhere in a JSON value."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            if item.keys() == {"digest", "size", "media_type"} and _is_ref(item):
                yield item
            else:
                stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def _is_ref(item: dict[str, Any]) -> bool:
    sizes = type(item["size"]) is int and isinstance(item["media_type"], str)
    return sizes and isinstance(item["digest"], str) and bool(_DIGEST.fullmatch(item["digest"]))
