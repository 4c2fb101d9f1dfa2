"""The hash chain of a stream (tamper evidence).

hash(n) = SHA-256(hash(n-1) || SHA-256(header) || SHA-256(payload)), with hash(0) = 32 zero bytes and
header = canonical JSON of [stream id, seq, event key, type, version, time, turn id].
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from milepost.domain.errors import LedgerCorrupt
from milepost.ledger.codec import canonical_bytes

GENESIS = bytes(32)


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as it lies in a stream. `at` is microseconds since the epoch, UTC; `payload` is canonical JSON."""

    stream_id: str
    seq: int
    key: str
    type: str
    version: int
    at: int
    turn_id: str | None
    payload: bytes
    hash: bytes


def event_hash(
    prev_hash: bytes,
    stream_id: str,
    seq: int,
    key: str,
    type_: str,
    version: int,
    at: int,
    turn_id: str | None,
    payload: bytes,
) -> bytes:
    """The 32-byte hash of an event; see the module's formula."""
    header = canonical_bytes([stream_id, seq, key, type_, version, at, turn_id])
    return hashlib.sha256(prev_hash + hashlib.sha256(header).digest() + hashlib.sha256(payload).digest()).digest()


def verify_chain(events: Iterable[StoredEvent], *, seq: int = 0, prev_hash: bytes = GENESIS) -> tuple[int, bytes]:
    """Check consecutive events that follow (`seq`, `prev_hash`); return the last seq and hash.

    Raises:
        LedgerCorrupt: naming the stream and the seq where a gap or a wrong hash begins.
    """
    for event in events:
        if event.seq != seq + 1:
            raise LedgerCorrupt(f"Stream {event.stream_id}: seq {seq + 1} is missing (found {event.seq}).")
        expected = event_hash(
            prev_hash,
            event.stream_id,
            event.seq,
            event.key,
            event.type,
            event.version,
            event.at,
            event.turn_id,
            event.payload,
        )
        if event.hash != expected:
            raise LedgerCorrupt(f"Stream {event.stream_id}: the hash of seq {event.seq} does not hold.")
        seq, prev_hash = event.seq, event.hash
    return seq, prev_hash
