"""Work on whole namespaces: making vectors anew, taking away what is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from zlib import crc32

from milepost.domain.embeddings import EmbeddingSpace
from milepost.domain.errors import NamespaceNotFound, VersionConflict
from milepost.domain.longterm import DAY_US
from milepost.ports.embeddings import Embedder
from milepost.ports.longterm import LongTermStore, Stored, Vector
from milepost.services.longterm import entries
from milepost.services.longterm.service import LongTermMemory

PAGE = 64
"""Records that are embedded at a time."""

DROP = 1000
FORGET_AFTER_US = 30 * DAY_US
"""How long the version of a deleted record is remembered."""


@dataclass(frozen=True, slots=True)
class Reindexed:
    """A step of making vectors anew. `after` is where the next one goes on; `embedded` counts this step's records."""

    namespace: str
    space: EmbeddingSpace
    embedded: int
    records: int
    after: str
    finished: bool


async def reindex(
    memory: LongTermMemory, namespace: str, embedder: str | None = None, *, after: str = "", seconds: float = 5.0
) -> Reindexed:
    """Make vectors anew for about `seconds`, with the named embedder, else with the configured one.

    In another space than the namespace's own they are kept beside, searches go on with the old ones, and the new space
    takes over in the step that finds every record in it. So a cut loses nothing: what was made is found by the next
    step, wherever it begins. In the namespace's own space each vector counts as soon as it is made.

    Raises:
        NamespaceNotFound, EmbedderUnknown, EmbeddingFailed, RecordUnreadable, StorageUnavailable.
    """
    store = await memory.store(namespace)
    maker = memory.configured(namespace) if embedder is None else memory.embedders.named(embedder)
    space, embedded, end = maker.space, 0, monotonic() + seconds
    while True:
        place = await store.namespace(namespace)
        if place is None:
            raise NamespaceNotFound(f"There is no namespace '{namespace}'.", field="namespace")
        own = place.space in (None, space)
        page = await (store.page(namespace, after, PAGE) if own else store.lacking(namespace, space, after, PAGE))
        if page:
            await _embed(store, namespace, maker, page)
            embedded, after = embedded + len(page), page[-1].key
        elif own or (not after and await store.switch(namespace, space, place.changes)):
            # `place` was read before: that nothing lacks a vector holds as of its last change, or there is no switch.
            while await store.drop_others(namespace, DROP) == DROP:
                pass
            return Reindexed(namespace, space, embedded, place.records, "", finished=True)
        else:
            after = ""
        if monotonic() > end:
            return Reindexed(namespace, space, embedded, place.records, after, finished=False)


async def _embed(store: LongTermStore, namespace: str, embedder: Embedder, page: Sequence[Stored]) -> None:
    texts = []
    for stored in page:
        entry, _ = entries.read(stored.document, f"'{stored.key}' of namespace '{namespace}'")
        texts.append(entries.searchable(entry))
    made = await embedder.embed(texts)
    vectors = [
        (stored.key, stored.change, Vector(embedder.space, data, crc32(data)))
        for stored, data in zip(page, made, strict=True)
    ]
    await store.put_vectors(namespace, vectors)


async def remove_expired(store: LongTermStore, now: int, *, dry_run: bool) -> int:
    """Delete records whose time is over; returns how many there were. Raises StorageUnavailable."""
    count = 0
    while page := await store.expired(now, DROP):
        if dry_run:
            return len(page)
        removed = 0
        for namespace, key in page:
            removed += await _remove(store, namespace, key, now)
        count += removed
        if not removed:
            break  # all of them were written anew meanwhile
    while not dry_run and await store.forget(now - FORGET_AFTER_US, DROP) == DROP:
        pass
    return count


async def _remove(store: LongTermStore, namespace: str, key: str, now: int) -> bool:
    stored = (await store.get(namespace, [key])).get(key)
    if stored is None or stored.expires_at is None or stored.expires_at > now:
        return False
    try:
        return await store.delete(namespace, key, stored.version, now)
    except VersionConflict:  # written anew since
        return False
