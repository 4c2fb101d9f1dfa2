"""Records of long-term memory: forms, versions, expiry, vectors that are missing, foreign or damaged, reindexing."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from milepost.domain.errors import (
    EmbeddingFailed,
    EmbeddingMismatch,
    InvalidInput,
    NamespaceNotFound,
    PayloadTooLarge,
    RecordNotFound,
    RecordUnreadable,
    VectorCorrupt,
    VersionConflict,
)
from milepost.domain.longterm import ContentType, Entry, LongTermConfig, NamespaceRule, Provenance, SearchMode
from milepost.ports.ledger import Ledger
from milepost.ports.longterm import Write
from milepost.services.longterm import entries, upkeep
from milepost.services.longterm.checking import check_records
from milepost.services.longterm.indexes import Indexes
from milepost.services.longterm.service import Put, SearchRequest
from milepost.services.longterm.tools import value_of
from milepost.services.longterm.upkeep import reindex, remove_expired
from milepost.storage.tables import long_term_records, long_term_vectors
from tests.memory.longterm import DAY, START, Bench, Known, bench


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.slow])])
def ledger_url(request: pytest.FixtureRequest) -> str:
    """The stores are tested on both databases with their own suite; here the second one is for the slow run."""
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))


async def keys(bench: Bench, query: str, mode: str = "hybrid") -> list[str]:
    found = await bench.memory.search("n", SearchRequest(query, SearchMode(mode)))
    return [hit.record.key for hit in found.hits]


async def alter(ledger: Ledger, statement: Any) -> None:
    """Change rows behind the back of everything."""
    await ledger.write(lambda tx: tx.connection.execute(statement))  # type: ignore[attr-defined]


# --- forms ------------------------------------------------------------------------------------------------------


def test_the_stored_form() -> None:
    text = Entry(ContentType.TEXT, "customer prefers concise release notes", metadata={"team": "docs", "priority": 2})
    assert entries.document(text) == (
        b'{"content":{"text":"customer prefers concise release notes","type":"text"},"format":1,'
        b'"metadata":{"priority":2,"team":"docs"}}'
    )
    assert entries.read(entries.document(text), "x") == (text, False)
    whole = Entry(ContentType.JSON, None, {"name": "Ada", "tags": ["x", 2, True, None], "deep": {"a": 1.5}})
    assert entries.read(entries.document(whole), "x") == (whole, False)
    assert entries.searchable(whole) == "name Ada tags x 2 deep a 1.5"
    assert entries.searchable(replace(whole, text="other words")) == "other words"
    assert json.loads(entries.facts(text)) == {
        "v": 1,
        "t": {"custom": 1, "prefer": 1, "concis": 1, "releas": 1, "note": 1},
        "m": ["priority=2", 'team="docs"'],
    }


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("text", "no known type"),
        ({"type": "image"}, "no known type"),
        ({"type": "text"}, "no text"),
        ({"type": "text", "text": "x", "value": 1}, "unknown field 'value'"),
        ({"type": "json"}, "no value"),
        ({"type": "json", "value": 1, "text": 2}, "no text"),
    ],
)
def test_contents_of_no_known_form(content: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        entries.from_content(content, {})


async def test_entries_are_bounded(ledger: Ledger) -> None:
    bench_ = bench(ledger)
    await bench_.put("most", "x" * (1024 * 1024 - 65))
    with pytest.raises(PayloadTooLarge, match="at most 1048576"):
        await bench_.put("more", "x" * (1024 * 1024 - 60))
    for text in ("lone \ud800", "nul \0 and escape \x1b"):
        kept = await bench_.put("odd", text)
        assert (await bench_.memory.get("n", "odd")).entry.text == text == kept.record.text
    with pytest.raises(InvalidInput, match="more than 64 entries"):
        await bench_.put("a", "x", metadata={str(number): 1 for number in range(65)})
    with pytest.raises(InvalidInput, match="cannot be written as JSON"):
        await bench_.put("a", value=float("nan"))
    for key in ("", "x" * 513, "a\0b", "\ud800"):
        with pytest.raises(InvalidInput, match="key"):
            await bench_.put(key, "x")
    await bench_.put("ä" * 256, "x")
    for days in (0, 36_501, -1):
        with pytest.raises(InvalidInput, match="1 to 36,500"):
            await bench_.put("a", "x", retention_days=days)
    await bench_.put("a", "x", retention_days=36_500)


async def test_older_and_damaged_documents(ledger: Ledger) -> None:
    bench_ = bench(ledger)
    documents = {
        "bare": b'{"customer":"Ada","visits":3}',
        "bare-text": b'"prefers concise notes"',
        "bare-like": b'{"content":{},"format":"1","metadata":{}}',
        "later": b'{"content":{},"format":2,"metadata":{}}',
        "damaged": b'{"content":{"type":"text"},"format":1,"metadata":{}}',
        "broken": b"{",
    }
    for key, document in documents.items():
        # Facts of another release: they are made anew from the document, where that can be read.
        facts = b'{"v":0}' if key.startswith("bare") else entries.facts(Entry(ContentType.TEXT, ""))
        await bench_.store.put("n", [Write(key, document, facts, START, None, "old")])
    record = await bench_.memory.get("n", "bare")
    assert record.legacy and record.entry == Entry(ContentType.JSON, None, {"customer": "Ada", "visits": 3})
    assert record.text == "customer Ada visits 3" and record.provenance == Provenance("old")
    assert (await bench_.memory.get("n", "bare-text")).text == "prefers concise notes"
    assert (await bench_.memory.get("n", "bare-like")).legacy
    assert await keys(bench_, "Ada") == ["bare"] and await keys(bench_, "concise") == ["bare-text"]
    for key, said in (("later", "format 2"), ("damaged", "damaged"), ("broken", "no JSON")):
        with pytest.raises(RecordUnreadable, match=f"'{key}' of namespace 'n'.*{said}"):
            await bench_.memory.get("n", key)
    assert sum([len(problems) async for problems in check_records(bench_.store)]) == 3


# --- versions ---------------------------------------------------------------------------------------------------


async def test_versions_and_provenance(ledger: Ledger) -> None:
    bench_ = bench(ledger)
    first = (await bench_.put("a", "one", expected=0)).record
    assert (first.version, first.created_at, first.updated_at, first.expires_at) == (1, START, START, None)
    bench_.clock.at += 5
    put = Put("a", Entry(ContentType.TEXT, "two"), Provenance("agent x", "turn_1", "effect_1"), expected=1)
    second = (await bench_.memory.put("n", put)).record
    assert (second.version, second.created_at, second.updated_at) == (2, START, START + 5)
    # The same effect again, after a crash: nothing is written a second time.
    assert (await bench_.memory.put("n", put)).record == second
    assert (await bench_.memory.get("n", "a")).provenance == Provenance("agent x", "turn_1", "effect_1")
    with pytest.raises(VersionConflict, match=r"'a' is not of version 1: it has version 2\."):
        await bench_.put("a", "three", expected=1)
    with pytest.raises(VersionConflict):
        await bench_.memory.delete("n", "a", 1)
    await bench_.memory.delete("n", "a", 2)
    with pytest.raises(RecordNotFound, match="no record 'a'"):
        await bench_.memory.get("n", "a")
    with pytest.raises(RecordNotFound):
        await bench_.memory.delete("n", "a")
    assert (await bench_.put("a", "again", expected=0)).record.version > 2


async def test_of_many_writers_of_one_version_one_wins(ledger: Ledger) -> None:
    bench_ = bench(ledger)
    await bench_.put("a", "0")

    async def attempt(number: int) -> int:
        try:
            await bench_.put("a", str(number), expected=1)
        except VersionConflict:
            return 0
        return 1

    assert sum(await asyncio.gather(*map(attempt, range(10)))) == 1
    assert (await bench_.memory.get("n", "a")).version == 2


async def test_lists(ledger: Ledger) -> None:
    bench_ = bench(ledger)
    for number in range(7):
        await bench_.put(f"k{number}", "x", retention_days=1 if number % 2 else None)
    bench_.clock.at += DAY
    first, after = await bench_.memory.page("n", limit=3)
    assert [record.key for record in first] == ["k0", "k2", "k4"] and after is not None
    rest, end = await bench_.memory.page("n", after=after, limit=3)
    assert [record.key for record in rest] == ["k6"] and end is None
    whole, end = await bench_.memory.page("n", limit=4)
    assert len(whole) == 4 and end is None
    with pytest.raises(NamespaceNotFound):
        await bench_.memory.page("nowhere")
    for number in range(10):
        await bench_.put(f"large{number}", "x" * 1_000_000)
    large, after = await bench_.memory.page("n", after="k9")
    assert [record.key for record in large] == [f"large{number}" for number in range(8)] and after == "large7"
    (info,) = await bench_.memory.namespaces()
    assert (info.name, info.store, info.records, str(info.space)) == ("n", "database", 17, "known (8 dimensions)")


# --- time -------------------------------------------------------------------------------------------------------


async def test_a_record_whose_time_is_over_is_gone(ledger: Ledger) -> None:
    config = LongTermConfig(namespaces={"n": NamespaceRule(retention_days=10)})
    bench_ = bench(ledger, config=config)
    await bench_.put("short", "red car", retention_days=1)
    await bench_.put("usual", "red car")
    assert (await bench_.memory.get("n", "usual")).expires_at == START + 10 * DAY
    bench_.clock.at += DAY - 1
    assert await keys(bench_, "car", "text") == ["short", "usual"]
    bench_.clock.at += 1
    assert await keys(bench_, "car", "text") == ["usual"]
    with pytest.raises(RecordNotFound):
        await bench_.memory.get("n", "short")
    with pytest.raises(RecordNotFound):
        await bench_.memory.delete("n", "short")
    assert await remove_expired(bench_.store, bench_.clock.at, dry_run=True) == 1
    assert set(await bench_.store.get("n", ["short"])) == {"short"}
    assert await remove_expired(bench_.store, bench_.clock.at, dry_run=False) == 1
    assert await bench_.store.get("n", ["short"]) == {}
    assert await remove_expired(bench_.store, bench_.clock.at, dry_run=False) == 0
    # Written anew, it lives again.
    await bench_.put("short", "red car")
    assert await keys(bench_, "car", "text") == ["short", "usual"]
    bench_.clock.at += 100 * DAY
    assert await remove_expired(bench_.store, bench_.clock.at, dry_run=False) == 2
    bench_.clock.at += 100 * DAY
    assert await remove_expired(bench_.store, bench_.clock.at, dry_run=False) == 0
    assert await bench_.store.changes("n", 0, 10) == []
    await bench_.put("new", "red car")
    assert await keys(bench_, "car") == ["new"]


# --- vectors ----------------------------------------------------------------------------------------------------


async def test_a_damaged_vector_closes_what_needs_it(ledger: Ledger) -> None:
    bench_ = bench(ledger)
    for key in ("a", "b", "c"):
        await bench_.put(key, f"red car {key}")
    of_b = sa.update(long_term_vectors).where(long_term_vectors.c.key == "b")
    for statement in (of_b.values(data=b"\0" * 32), of_b.values(data=b"\0" * 8), of_b.values(data=b"")):
        await alter(ledger, statement)
        fresh = bench(ledger)
        for mode in ("vector", "hybrid", "best"):
            with pytest.raises(VectorCorrupt, match=r"record 'b' of namespace 'n'.*milepost memory reindex n"):
                await keys(fresh, "car", mode)
        for mode in ("text", "bm25"):
            assert await keys(fresh, "car", mode) == ["a", "b", "c"]
    assert [problems async for problems in check_records(fresh.store) if problems] == [
        ["The vector of record 'b' of namespace 'n' is damaged."]
    ]
    done = await reindex(fresh.memory, "n")
    assert (done.embedded, done.finished) == (3, True)
    assert [problems async for problems in check_records(fresh.store)] == [[], [], []]
    assert sorted(await keys(fresh, "car")) == ["a", "b", "c"]


async def test_a_damaged_vector_is_found_above_the_exact_limit_too(sqlite_ledger: Ledger) -> None:
    one = bench(sqlite_ledger, exact_candidates=3)
    for number in range(8):
        await one.put(f"k{number}", f"red car {number}")
    assert len(await keys(one, "car")) == 8
    # After the index was made, so only reading the original can tell.
    await alter(sqlite_ledger, sa.update(long_term_vectors).values(data=b"\0" * 32))
    with pytest.raises(VectorCorrupt, match=r"record 'k\d' of namespace 'n'"):
        await keys(one, "car")


async def test_vectors_of_another_embedder_are_never_compared(ledger: Ledger) -> None:
    old, new = Known("old"), Known("new", dimensions=16)
    await bench(ledger, old).put("a", "red car")
    without = bench(ledger, new)
    named = bench(ledger, old, new, config=LongTermConfig(namespaces={"n": NamespaceRule(embedder="new")}))
    for closed, why in ((without, "no embedder of this instance makes such"), (named, "configuration names 'new'")):
        for mode in ("vector", "hybrid", "best"):
            with pytest.raises(EmbeddingMismatch, match=rf"old \(8 dimensions\), .*{why}.*memory reindex n"):
                await keys(closed, "car", mode)
        assert await keys(closed, "car", "text") == ["a"] == await keys(closed, "car", "bm25")
    # The recorded embedder goes on, whatever the default is.
    assert await keys(bench(ledger, new, old), "car") == ["a"]
    kept = await without.put("b", "blue car")
    assert kept.record.space is None and "reindex" in str(kept.embedding_error)
    assert sorted(await keys(bench(ledger, new, old), "car")) == ["a", "b"]


@pytest.mark.parametrize("size", [8, 16])
async def test_reindexing_with_another_embedder(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(upkeep, "PAGE", 4)
    old, new = Known("old"), Known("new", dimensions=size, table={"car": (1, 0), "red car 3": (1, 0)})
    bench_ = bench(ledger, new, old)
    writer = bench(ledger, old)
    for number in range(10):
        await writer.put(f"k{number}", f"red car {number}")
    first = await reindex(bench_.memory, "n", seconds=0)
    second = await reindex(bench_.memory, "n", after=first.after, seconds=0)
    assert (first.embedded, first.after, first.finished) == (4, "k3", False)
    assert (second.embedded, second.after, second.finished) == (4, "k7", False)
    new.failing = True
    with pytest.raises(EmbeddingFailed):
        await reindex(bench_.memory, "n", after=second.after)
    # Cut short: everything is as it was.
    assert len(await keys(bench_, "car")) == 10
    assert (await bench_.memory.namespaces())[0].space == old.space
    new.failing = False
    await writer.put("k0", "red car again")
    # What was made before counts: 2 of 10 were missing, one was written anew.
    done = await reindex(bench_.memory, "n", "new")
    assert (done.space, done.embedded, done.finished) == (new.space, 3, True)
    assert (await bench_.memory.namespaces())[0].space == new.space
    found = await bench_.memory.search("n", SearchRequest("car", SearchMode.VECTOR, 1))
    assert [(hit.record.key, hit.score) for hit in found.hits] == [("k3", 1_000_000)]
    assert found.space == new.space and found.without_vector == 0
    rows = await ledger.read(lambda tx: tx.connection.execute(sa.select(long_term_vectors.c.embedder)).all())  # type: ignore[attr-defined]
    assert {row.embedder for row in rows} == {"new"}
    with pytest.raises(NamespaceNotFound):
        await reindex(bench_.memory, "nowhere")


async def test_records_without_a_vector_get_theirs(ledger: Ledger) -> None:
    embedder = Known(failing=True)
    bench_ = bench(ledger, embedder)
    await bench_.put("a", "red car")
    found = await bench_.memory.search("n", SearchRequest("car", SearchMode.VECTOR))
    assert (found.hits, found.without_vector, found.space) == ((), 1, None)
    assert await keys(bench_, "car") == ["a"]
    embedder.failing = False
    await reindex(bench_.memory, "n")
    found = await bench_.memory.search("n", SearchRequest("car", SearchMode.VECTOR))
    assert [hit.record.key for hit in found.hits] == ["a"] and found.without_vector == 0


async def test_words_carry_the_whole_score_of_best_without_a_neural_embedder(ledger: Ledger) -> None:
    bench_ = bench(ledger, Known(neural=False))
    await bench_.put("a", "red car")
    best = await bench_.memory.search("n", SearchRequest("car", SearchMode.BEST))
    bm25 = await bench_.memory.search("n", SearchRequest("car", SearchMode.BM25))
    assert [hit.score for hit in best.hits] == [hit.score for hit in bm25.hits]


async def test_indexes_are_bounded(ledger: Ledger) -> None:
    bench_ = bench(ledger)
    memory = bench_.memory
    indexes = Indexes(max_records=5)
    memory._indexes = indexes
    for name in ("n1", "n2", "n3"):
        puts = [Put(f"k{number}", Entry(ContentType.TEXT, "red car"), Provenance("t")) for number in range(3)]
        await memory.put_many(name, puts)
        assert len((await memory.search(name, SearchRequest("car"))).hits) == 3
    assert sum(slot.index is not None for slot in indexes._slots.values()) == 1
    assert len((await memory.search("n1", SearchRequest("car"))).hits) == 3


async def test_what_a_promotion_copies(ledger: Ledger) -> None:
    bench_ = bench(ledger)
    await bench_.put("text", "red car")
    await bench_.put("json", value={"a": [1, 2]})
    assert value_of(await bench_.memory.get("n", "text")) == "red car"
    assert value_of(await bench_.memory.get("n", "json")) == {"a": [1, 2]}


async def test_rows_keep_their_form(ledger: Ledger) -> None:
    """What a deleted record leaves has neither text nor vector."""
    bench_ = bench(ledger)
    await bench_.put("a", "a secret")
    await bench_.memory.delete("n", "a")
    rows = await ledger.read(lambda tx: tx.connection.execute(sa.select(long_term_records)).all())  # type: ignore[attr-defined]
    assert [(row.key, row.document, row.facts) for row in rows] == [("a", None, None)]
    vectors = await ledger.read(lambda tx: tx.connection.execute(sa.select(long_term_vectors)).all())  # type: ignore[attr-defined]
    assert vectors == []
