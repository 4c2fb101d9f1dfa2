"""The file form of a checkpoint.

Lines, each ended by a line feed, which canonical JSON never holds:

1. the envelope: `{"bytes": B, "format": "milepost-checkpoint", "projection": P, "sha256": S, "version": 1}`, where B
   and S are size and SHA-256 of all that follows, and P names how events become messages;
2. the state: `{"agent", "at", "hash", "omitted", "seq", "session_id", "usage", "view"}`;
3. one line for each segment, oldest first: `[turn id, number, size, ended]`, a tab, and `[compaction, messages]`, where
   the compaction is null or the turn's last `context.compacted` event.

A segment's line depends on nothing else, so the next checkpoint takes it over as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import cattrs

from milepost.domain.checkpoints import MAX_ENCODED_BYTES, Checkpoint, Segment
from milepost.domain.errors import CheckpointUnusable
from milepost.domain.events import EVENT_TYPES, ContextCompacted
from milepost.domain.usage import Usage
from milepost.ledger.codec import canonical_bytes, from_json, parse, to_json
from milepost.ledger.messages import read_messages
from milepost.ledger.transcript import PROJECTION, TRANSCRIPT_EVENTS

FORMAT = "milepost-checkpoint"
VERSION = 1
MAX_ENVELOPE_BYTES = 4096
_UNREADABLE = (ValueError, TypeError, KeyError, IndexError, RecursionError, cattrs.BaseValidationError)


def projection() -> str:
    """Names how events become messages: a checkpoint of another projection would not hold what a model gets now."""
    kinds = [[name, EVENT_TYPES[name].VERSION] for name in sorted(TRANSCRIPT_EVENTS)]
    return hashlib.sha256(canonical_bytes([PROJECTION, kinds])).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class CheckpointBody:
    """A checked file: its state, and each segment's line by the turn's id, oldest first, not decoded yet."""

    state: Mapping[str, Any]
    lines: Mapping[str, bytes]

    @property
    def turns(self) -> list[tuple[str, int, int, bool]]:
        """(turn id, number, size, ended), oldest first. Raises CheckpointUnusable."""
        return [_head(line) for line in self.lines.values()]


def segment_line(segment: Segment) -> bytes:
    """One segment's line, without its end."""
    head = canonical_bytes([segment.turn_id, segment.number, segment.size, segment.ended])
    compacted = None if segment.compacted is None else to_json(segment.compacted)
    return head + b"\t" + canonical_bytes([compacted, [to_json(message) for message in segment.messages]])


def read_segment(line: bytes) -> Segment:
    """The segment of a line. Raises CheckpointUnusable."""
    turn_id, number, size, ended = _head(line)
    try:
        compaction, values = parse(line.partition(b"\t")[2])
        compacted = None if compaction is None else from_json(compaction, ContextCompacted)
        messages = read_messages(values)
    except _UNREADABLE as error:
        raise CheckpointUnusable(f"The messages of turn {turn_id} cannot be read ({type(error).__name__}).") from error
    return Segment(turn_id, number, size, messages, ended, compacted)


def write_checkpoint(checkpoint: Checkpoint, lines: Iterable[bytes]) -> bytes:
    """The file of a checkpoint whose segments have these lines. Raises CheckpointUnusable over 64 MiB."""
    state = to_json(checkpoint)
    del state["segments"]
    rest = b"".join(line + b"\n" for line in (canonical_bytes(state), *lines))
    envelope = {
        "bytes": len(rest),
        "format": FORMAT,
        "projection": projection(),
        "sha256": hashlib.sha256(rest).hexdigest(),
        "version": VERSION,
    }
    data = canonical_bytes(envelope) + b"\n" + rest
    if len(data) > MAX_ENCODED_BYTES:
        raise CheckpointUnusable(f"The checkpoint would have {len(data)} bytes; at most {MAX_ENCODED_BYTES} are kept.")
    return data


def read_checkpoint(data: bytes) -> CheckpointBody:
    """Check envelope and checksum. Raises CheckpointUnusable: damaged, or of another version or projection."""
    head, _, rest = data[:MAX_ENVELOPE_BYTES].partition(b"\n")
    try:
        envelope = parse(head)
        if envelope["format"] != FORMAT:
            raise ValueError
        version, made_by, size, digest = (envelope[name] for name in ("version", "projection", "bytes", "sha256"))
    except _UNREADABLE as error:
        raise CheckpointUnusable("The file is no checkpoint.") from error
    if version != VERSION or made_by != projection():
        raise CheckpointUnusable("The checkpoint was written by another release.")
    rest = data[len(head) + 1 :]
    if size != len(rest) or hashlib.sha256(rest).hexdigest() != digest:
        raise CheckpointUnusable("The checkpoint is damaged: its checksum does not hold.")
    state, *lines = rest.split(b"\n")[:-1]
    try:
        return CheckpointBody(parse(state), {_head(line)[0]: line for line in lines})
    except _UNREADABLE as error:
        raise CheckpointUnusable(f"The checkpoint cannot be read ({type(error).__name__}).") from error


def decode_checkpoint(body: CheckpointBody) -> Checkpoint:
    """The whole checkpoint. Raises CheckpointUnusable."""
    segments = tuple(read_segment(line) for line in body.lines.values())
    state = body.state
    try:
        return Checkpoint(
            session_id=str(state["session_id"]),
            agent=str(state["agent"]),
            view=str(state["view"]),
            seq=int(state["seq"]),
            hash=str(state["hash"]),
            at=int(state["at"]),
            usage=from_json(state["usage"], Usage),
            omitted=int(state["omitted"]),
            segments=segments,
        )
    except _UNREADABLE as error:
        raise CheckpointUnusable(f"The checkpoint's state cannot be read ({type(error).__name__}).") from error


def _head(line: bytes) -> tuple[str, int, int, bool]:
    try:
        turn_id, number, size, ended = parse(line.partition(b"\t")[0])
        return str(turn_id), int(number), int(size), bool(ended)
    except _UNREADABLE as error:
        raise CheckpointUnusable("A turn of the checkpoint cannot be read.") from error
