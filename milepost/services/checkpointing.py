"""Reading and writing the checkpoints of one agent in a Session: files on one side, the ledger as their judge."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace

from milepost.domain.checkpoints import MAX_ENCODED_BYTES, Checkpoint, Segment
from milepost.domain.errors import CheckpointUnusable
from milepost.domain.memory import Scope
from milepost.ledger.checkpoint import (
    CheckpointBody,
    decode_checkpoint,
    read_checkpoint,
    read_segment,
    segment_line,
    write_checkpoint,
)
from milepost.observability.logging import get_logger
from milepost.ports.checkpoints import CheckpointFile, CheckpointStore
from milepost.ports.ledger import Ledger
from milepost.services.earlier import Key, holds

STATE_BYTES = 64 * 1024
"""What envelope and state may take beside the turns."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The newest checkpoint that can be used, if any. `notes` tell people of those that were discarded."""

    checkpoint: Checkpoint | None
    file: CheckpointFile | None
    notes: tuple[str, ...]


class CheckpointKeeper:
    """Loads and saves; the ledger decides what can be used."""

    def __init__(self, ledger: Ledger, store: CheckpointStore) -> None:
        self._ledger = ledger
        self._store = store

    async def load(self, key: Key) -> Loaded:
        """The newest usable checkpoint; what cannot be used on the way to it is discarded with a note.

        Raises StorageUnavailable: the ledger does not answer, or the folder cannot be read.
        """
        notes: list[str] = []
        for file in await asyncio.to_thread(self._store.files, folder(key)):
            try:
                checkpoint = await self.judge(key, file)
            except CheckpointUnusable as error:
                note = f"Checkpoint {file.seq} was discarded: {error.message}"
                _log.warning("checkpoint.discarded", session_id=key[0], agent=key[1], seq=file.seq, error=error.message)
                notes.append(note)
                await asyncio.to_thread(self._store.discard, file)
                continue
            return Loaded(checkpoint, file, tuple(notes))
        if notes:
            notes.append("The conversation was read from the ledger.")
        return Loaded(None, None, tuple(notes))

    async def judge(self, key: Key | None, file: CheckpointFile) -> Checkpoint:
        """Read a checkpoint and hold it against the ledger; of any conversation if no `key` is given.

        Raises CheckpointUnusable, StorageUnavailable.
        """
        checkpoint = await asyncio.to_thread(lambda: decode_checkpoint(self._body(file)))
        found = (checkpoint.session_id, checkpoint.agent)
        if found != (key or found) or folder(found) != file.key or checkpoint.seq != file.seq:
            raise CheckpointUnusable("It is of another conversation.")
        hash_ = _hash(checkpoint)
        if not await self._ledger.read(lambda tx: holds(tx, checkpoint.session_id, checkpoint.seq, hash_)):
            raise CheckpointUnusable("The ledger is not the one it was written from.")
        return checkpoint

    def save(self, checkpoint: Checkpoint) -> int:
        """Write a checkpoint, the oldest turns left out if it is too large; returns its bytes. Blocks.

        Lines of turns that the newest file has are taken over; new ones are read back and compared.

        Raises CheckpointUnusable, StorageUnavailable.
        """
        key = (checkpoint.session_id, checkpoint.agent)
        old = self._newest(folder(key))
        lines = [_line(segment, old) for segment in checkpoint.segments]
        first, omitted = _first_fitting(lines), checkpoint.omitted
        if first:
            omitted = checkpoint.segments[first - 1].number
        data = write_checkpoint(replace(checkpoint, omitted=omitted), lines[first:])
        self._store.write(folder(key), checkpoint.seq, data)
        return len(data)

    def _newest(self, name: str) -> dict[str, bytes]:
        for file in self._store.files(name)[:1]:
            try:
                body = self._body(file)
                return {turn_id: body.lines[turn_id] for turn_id, _, _, ended in body.turns if ended}
            except CheckpointUnusable:
                break  # whoever reads it next discards it
        return {}

    def _body(self, file: CheckpointFile) -> CheckpointBody:
        return read_checkpoint(self._store.read(file))


def folder(key: Key) -> str:
    """The folder of an agent's checkpoints in a Session."""
    return Scope.of_part(*key).component


def _line(segment: Segment, old: dict[str, bytes]) -> bytes:
    known = old.get(segment.turn_id)
    if segment.ended and known is not None:
        return known
    line = segment_line(segment)
    if read_segment(line) != segment:
        raise CheckpointUnusable(f"Turn {segment.turn_id} does not survive encoding.")
    return line


def _first_fitting(lines: Iterable[bytes]) -> int:
    """Index of the oldest line that fits."""
    found = list(lines)
    room = MAX_ENCODED_BYTES - STATE_BYTES
    for index in range(len(found) - 1, -1, -1):
        room -= len(found[index]) + 1
        if room < 0:
            return index + 1
    return 0


def _hash(checkpoint: Checkpoint) -> bytes:
    try:
        return bytes.fromhex(checkpoint.hash)
    except ValueError as error:
        raise CheckpointUnusable("Its position cannot be read.") from error
