"""Finding one event by its key, paging effects, reading a blob in pieces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from milepost.domain.content import BlobRef
from milepost.domain.errors import BlobNotFound, EffectNotFound
from milepost.domain.events import SessionClosed, SessionReopened, StreamKind
from milepost.ports.ledger import Ledger, NewEvent
from milepost.storage import FileBlobStore
from milepost.storage.blobs import PIECE_BYTES
from tests.ledger.samples import new_turn, spec


async def test_an_event_is_found_by_its_key_in_its_stream(ledger: Ledger) -> None:
    new = [NewEvent("one", SessionClosed()), NewEvent("two", SessionReopened())]
    await ledger.write(lambda tx: tx.events.append("s1", StreamKind.SESSION, new, 1))
    await ledger.write(lambda tx: tx.events.append("s2", StreamKind.SESSION, new[:1], 1))
    found = await ledger.read(lambda tx: tx.events.find("s1", "two"))
    assert found is not None
    assert (found.stream_id, found.seq, found.type) == ("s1", 2, "session.reopened")
    assert await ledger.read(lambda tx: tx.events.find("s2", "two")) is None
    assert await ledger.read(lambda tx: tx.events.find("none", "one")) is None


async def test_effects_are_paged_without_gap_or_repetition(ledger: Ledger) -> None:
    turn = await new_turn(ledger)
    ids = [f"{n:02d}" for n in range(11)]
    for n, effect_id in enumerate(ids):
        # Several with one time, so that the id decides.
        await ledger.write(lambda tx, e=effect_id, n=n: tx.effects.dispatch(spec(turn, effect_id=e), n // 4, "w"))
    seen: list[str] = []
    after: str | None = None
    while True:
        page = await ledger.read(
            lambda tx, after=after: tx.effects.page(turn.session_id, turn_id=None, state=None, limit=3, after=after)
        )
        seen.extend(effect.spec.effect_id for effect in page)
        if len(page) < 3:
            break
        after = seen[-1]
    assert seen == ids
    with pytest.raises(EffectNotFound):
        await ledger.read(lambda tx: tx.effects.page(turn.session_id, turn_id=None, state=None, limit=3, after="none"))


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 5])
async def test_a_blob_is_read_in_pieces(tmp_path: Path, size: int) -> None:
    blobs = FileBlobStore(tmp_path)
    data = os.urandom(size)
    ref = await blobs.put(data, "text/plain")
    pieces = [piece async for piece in blobs.stream(ref)]
    assert b"".join(pieces) == data
    assert all(len(piece) <= PIECE_BYTES for piece in pieces)


async def test_a_damaged_blob_never_comes_whole(tmp_path: Path) -> None:
    blobs = FileBlobStore(tmp_path)
    data = os.urandom(2 * PIECE_BYTES + 10)
    ref = await blobs.put(data, "text/plain")
    path = tmp_path / ref.digest[:2] / ref.digest
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    got = b""
    with pytest.raises(BlobNotFound, match="damaged"):
        async for piece in blobs.stream(ref):
            got += piece
    assert len(got) == 2 * PIECE_BYTES
    with pytest.raises(BlobNotFound, match="missing"):
        await anext(blobs.stream(BlobRef("a" * 64, 5, "text/plain")))
