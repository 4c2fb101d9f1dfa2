"""Whether records can be read and vectors are what was written."""

from __future__ import annotations

from collections.abc import AsyncIterator

from milepost.domain.errors import RecordUnreadable
from milepost.ports.longterm import LongTermStore, Namespace
from milepost.services.longterm import entries

PAGE = 20
"""Records that are read at a time; one may have a megabyte."""


async def check_records(store: LongTermStore) -> AsyncIterator[list[str]]:
    """What does not hold of each record of a store, in sentences; none for a sound one. Raises StorageUnavailable."""
    after = ""
    while places := await store.namespaces(after, PAGE):
        for place in places:
            async for problems in _check_namespace(store, place):
                yield problems
        after = places[-1].name


async def _check_namespace(store: LongTermStore, place: Namespace) -> AsyncIterator[list[str]]:
    after = ""
    while page := await store.page(place.name, after, PAGE):
        vectors = await store.vectors(place.name, [stored.key for stored in page])
        for stored in page:
            problems = []
            try:
                entries.read(stored.document, f"'{stored.key}' of namespace '{place.name}'")
            except RecordUnreadable as error:
                problems.append(error.message)
            vector = vectors.get(stored.key)
            if vector is not None and not entries.sound(vector, vector.space):
                problems.append(f"The vector of record '{stored.key}' of namespace '{place.name}' is damaged.")
            yield problems
        after = page[-1].key
