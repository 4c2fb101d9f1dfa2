"""What every store of long-term memory must do. `check` runs all of it; authors of stores may run it on theirs.

asyncio.run(check(open_store))      # open_store() gives the same data again each time it is called
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from zlib import crc32

from milepost.ports.longterm import (
    Change,
    EmbeddingSpace,
    LongTermStore,
    Stored,
    Vector,
    VersionConflict,
    Write,
)

Opened = Callable[[], Awaitable[LongTermStore]]

WORDS = EmbeddingSpace("words", 8)
OTHER = EmbeddingSpace("other", 8)
LATE = 2**50


def vector(number: float, space: EmbeddingSpace = WORDS) -> Vector:
    data = struct.pack(f"<{space.dimensions}f", *[number] * space.dimensions)
    return Vector(space, data, crc32(data))


def write(key: str, text: str = "x", **more: object) -> Write:
    fields: dict[str, object] = {"at": 1_000, "expires_at": None, "by": "test", **more}
    return Write(key, f'"{text}"'.encode(), b'{"f":1}', **fields)  # type: ignore[arg-type]


async def refused(work: Awaitable[object]) -> None:
    try:
        await work
    except VersionConflict:
        return
    raise AssertionError("a wrong version was accepted")


async def check(open_store: Opened) -> None:
    """All of it, in namespaces of its own."""
    store = await open_store()
    for case in CASES:
        await case(store)
    await store.close()
    again = await open_store()
    kept = await again.get("kept", ["a", "b"])
    assert kept["a"].document == b'"first"' and "b" not in kept, kept
    await again.close()


async def records(store: LongTermStore) -> None:
    """Writing, reading, replacing, listing."""
    assert await store.namespace("n1") is None
    assert await store.get("n1", ["a"]) == {}
    assert await store.page("n1", "", 5) == []
    whole = write("a", "one", expires_at=5_000, run_id="r", effect_id="e", vector=vector(0.5))
    (made,) = await store.put("n1", [whole])
    assert made == Stored("a", 1, 1, b'"one"', b'{"f":1}', 1_000, 1_000, 5_000, "test", "r", "e", True), made
    assert (await store.get("n1", ["a", "nothing"])) == {"a": made}
    (second,) = await store.put("n1", [write("a", "two", at=2_000, by="other")])
    assert (second.version, second.change, second.document) == (2, 2, b'"two"')
    assert (second.created_at, second.updated_at, second.expires_at) == (1_000, 2_000, None)
    assert (second.by, second.run_id, second.effect_id, second.embedded) == ("other", None, None, False)
    many = [write(key) for key in ("b", "Z", "ä", "c c", "a" * 512)]
    assert [stored.key for stored in await store.put("n1", many)] == [each.key for each in many]
    listed = [stored.key for stored in await store.page("n1", "", 10)]
    assert listed == sorted(["a", *(each.key for each in many)])
    assert [stored.key for stored in await store.page("n1", listed[1], 2)] == listed[2:4]
    place = await store.namespace("n1")
    assert place is not None and (place.records, place.changes, place.space) == (6, 7, WORDS), place


async def versions(store: LongTermStore) -> None:
    """Expected versions, all or none, and counting on after a deletion."""
    await refused(store.put("n2", [write("a", expected=1)]))
    await store.put("n2", [write("a", expected=0)])
    await refused(store.put("n2", [write("a", expected=0)]))
    await refused(store.put("n2", [write("new"), write("a", expected=7)]))
    assert await store.get("n2", ["new"]) == {}
    (second,) = await store.put("n2", [write("a", expected=1)])
    assert second.version == 2
    await refused(store.delete("n2", "a", 1, 3_000))
    assert await store.delete("n2", "a", 2, 3_000)
    assert not await store.delete("n2", "a", None, 3_000)
    assert not await store.delete("nowhere", "a", None, 3_000)
    await refused(store.delete("nowhere", "a", 1, 3_000))
    assert await store.get("n2", ["a"]) == {} and await store.page("n2", "", 9) == []
    await refused(store.put("n2", [write("a", expected=2)]))
    (again,) = await store.put("n2", [write("a", at=4_000, expected=0)])
    assert again.version > 2


async def effects(store: LongTermStore) -> None:
    """A write that was made already is not made again, and answers the same."""
    (first,) = await store.put("n3", [write("a", "one", effect_id="e1", expected=0)])
    assert await store.put("n3", [write("a", "one", effect_id="e1", expected=0)]) == [first]
    (second,) = await store.put("n3", [write("a", "one", effect_id="e2")])
    assert second.version == 2


async def changes(store: LongTermStore) -> None:
    """The newest change of each key, in order."""
    await store.put("n4", [write("a", vector=vector(0.1)), write("b", expires_at=9_000), write("c")])
    await store.put("n4", [write("a", "again", vector=vector(0.2))])
    await store.delete("n4", "c", None, 2_000)
    found = await store.changes("n4", 0, 10)
    assert found == [
        Change(2, "b", 9_000, b'{"f":1}', None),
        Change(4, "a", None, b'{"f":1}', vector(0.2)),
        Change(5, "c", None, None, None),
    ], found
    assert await store.changes("n4", 2, 1) == found[1:2]
    assert await store.changes("n4", 5, 10) == [] == await store.changes("nowhere", 0, 10)


async def spaces(store: LongTermStore) -> None:
    """One space at a time; another one takes over at once."""
    await store.put("n5", [write("a", vector=vector(0.1)), write("b", vector=vector(0.2, OTHER)), write("c")])
    assert await store.vectors("n5", ["a", "b", "c"]) == {"a": vector(0.1)}
    assert [stored.key for stored in await store.lacking("n5", WORDS, "", 9)] == ["b", "c"]
    assert [stored.key for stored in await store.lacking("n5", OTHER, "", 2)] == ["a", "b"]
    b = (await store.get("n5", ["b"]))["b"]
    assert await store.put_vectors("n5", [("b", b.change, vector(0.3)), ("c", 99, vector(0.4))]) == 1
    moved = await store.changes("n5", 3, 9)
    assert moved == [Change(4, "b", None, b'{"f":1}', vector(0.3))], moved
    assert (await store.get("n5", ["b"]))["b"].version == b.version
    for stored in await store.lacking("n5", OTHER, "", 9):
        assert await store.put_vectors("n5", [(stored.key, stored.change, vector(0.9, OTHER))]) == 1
    assert await store.lacking("n5", OTHER, "", 9) == []
    assert (await store.vectors("n5", ["a"]))["a"] == vector(0.1)
    assert not await store.switch("n5", OTHER, 3) and not await store.switch("nowhere", OTHER, 0)
    assert await store.switch("n5", OTHER, 4)
    place = await store.namespace("n5")
    assert place is not None and place.space == OTHER and place.changes == 4
    assert await store.vectors("n5", ["a", "c"]) == {"a": vector(0.9, OTHER), "c": vector(0.9, OTHER)}
    assert await store.drop_others("n5", 1) == 1 and await store.drop_others("n5", 9) == 1
    assert await store.drop_others("n5", 9) == 0
    assert len(await store.lacking("n5", WORDS, "", 9)) == 3
    # A record that is written anew has no vector of what it was before.
    await store.put("n5", [write("a", "new")])
    assert await store.vectors("n5", ["a"]) == {}


async def ends(store: LongTermStore) -> None:
    """Records whose time is over, and what is left of deleted ones."""
    await store.put("n6", [write("old", expires_at=50), write("new", expires_at=LATE), write("ever")])
    assert ("n6", "old") in await store.expired(50, 100) and ("n6", "old") not in await store.expired(49, 100)
    assert ("n6", "new") not in await store.expired(50, 100)
    assert await store.delete("n6", "old", None, 7)
    assert ("n6", "old") not in await store.expired(50, 100)
    await store.put("n8", [write("k", expires_at=5_000)])
    await refused(store.put("n8", [write("k", at=4_999, expected=0)]))
    await refused(store.put("n8", [write("k", at=5_000, expected=1)]))
    (anew,) = await store.put("n8", [write("k", at=5_000, expected=0)])
    assert (anew.version, anew.created_at, anew.expires_at) == (2, 5_000, None), anew
    assert await store.forget(7, 100) == 0
    assert await store.forget(8, 100) == 1
    place = await store.namespace("n6")
    assert place is not None and place.forgotten == 4, place
    assert [change.key for change in await store.changes("n6", 0, 9)] == ["new", "ever"]


async def lists(store: LongTermStore) -> None:
    """Namespaces by name."""
    for name in ("list b", "list a", "list c"):
        await store.put(name, [write("k")])
    names = [place.name for place in await store.namespaces("list", 100) if place.name.startswith("list ")]
    assert names == ["list a", "list b", "list c"], names
    assert [place.name for place in await store.namespaces("list a", 1)] == ["list b"]


async def races(store: LongTermStore) -> None:
    """Of writers that expect the same version one is right, and changes have no gaps."""

    async def attempt(number: int) -> int:
        try:
            await store.put("n7", [write("hot", str(number), expected=1)])
        except VersionConflict:
            return 0
        return 1

    await store.put("n7", [write("hot")])
    assert sum(await asyncio.gather(*map(attempt, range(8)))) == 1
    await asyncio.gather(*(store.put("n7", [write(f"k{number}")]) for number in range(20)))
    found = [change.change for change in await store.changes("n7", 0, 100)]
    assert found == list(range(2, 23)), found


async def kept(store: LongTermStore) -> None:
    """What is looked for after the store was opened again."""
    await store.put("kept", [write("a", "first"), write("b")])
    await store.delete("kept", "b", None, 2_000)


CASES = (records, versions, effects, changes, spaces, ends, lists, races, kept)


@asynccontextmanager
async def opened(open_store: Opened) -> AsyncIterator[LongTermStore]:
    """A store for the time of a block."""
    store = await open_store()
    try:
        yield store
    finally:
        await store.close()
