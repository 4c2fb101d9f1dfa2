"""Semantic memory: the same on files and on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from milepost.domain.errors import EmbeddingMismatch, InvalidInput, MemoryDamaged, PayloadTooLarge, RecordNotFound
from milepost.domain.memory import Scope
from milepost.domain.semantic import AddOutcome, EmbeddingState, MemoryEntry
from milepost.memory.semantic import IndexedMemory
from milepost.ports.semantic_records import Embedded
from milepost.storage import open_ledger, open_notifier
from tests.memory.conftest import Stores, stores_at
from tests.memory.semantic_support import ANN, BOB, Embedding, fact, found, said, semantic_store


@dataclass
class Opened:
    """Memory over a store that others may open as well."""

    memory: IndexedMemory
    embedder: Embedding
    stores: Stores

    def again(self, embedder: Embedding | None = None, **options: int) -> IndexedMemory:
        """The same memory as another process sees it."""
        store = semantic_store(self.stores.place, self.stores.ledger)
        return IndexedMemory(store, embedder or self.embedder, **options)


@pytest.fixture(
    params=[
        "files",
        pytest.param("sqlite", marks=pytest.mark.slow),  # the same SQL on the same database as files
        pytest.param("postgresql", marks=pytest.mark.postgres),
    ]
)
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    url = str(request.getfixturevalue("postgres_url" if request.param == "postgresql" else "sqlite_url"))
    notifier = await open_notifier(url)
    ledger = await open_ledger(url, notifier)
    yield stores_at(str(tmp_path / "home") if request.param == "files" else url, ledger)
    await ledger.close()
    await notifier.close()


@pytest.fixture
async def opened(stores: Stores) -> AsyncIterator[Opened]:
    embedder = Embedding()
    memory = IndexedMemory(semantic_store(stores.place, stores.ledger), embedder, clock=lambda: 1_000_000)
    yield Opened(memory, embedder, stores)
    await memory.close()


async def test_what_was_said_is_found_with_its_reasons(opened: Opened) -> None:
    memory = opened.memory
    assert (await memory.search(ANN, "piano")).items == ()
    added = await memory.add(
        ANN,
        [
            said(1, "Do you play anything?", speaker="Ann"),
            said(2, "I play the piano since I was six.", speaker="Ben", effect_id="eff_2"),
            said(3, "The weather is nice.", speaker="Ann", captions=("a lake at dawn",)),
        ],
    )
    assert [(item.outcome, item.embedding) for item in added] == [(AddOutcome.STORED, EmbeddingState.EMBEDDED)] * 3
    recall = await memory.search(ANN, "Who plays the piano?")
    best = recall.items[0]
    assert (best.id, best.text, best.turn_id, best.turn_number) == ("e2", "I play the piano since I was six.", "t2", 2)
    assert (best.kind, best.speaker, recall.searched, recall.incomplete) == ("request", "Ben", 3, 0)
    assert set(best.parts) == {"words", "meaning", "context"}
    assert abs(sum(best.parts.values()) - best.score) <= 2
    assert best.reason.startswith(f"Score {best.score / 1e6:.2f}: its ")
    assert best.reason.endswith("said by Ben in turn 2 on 1970-01-01.")
    # Words of neighbors count for a record; the reason does not call them its own.
    why = {item.id: item.reason for item in (await memory.search(ANN, "lake dawn", min_score=1)).items}
    assert ": its words (" in why["e3"] or ", its words (" in why["e3"]
    assert "words of the records beside it (" in why["e2"] and "its words" not in why["e2"]
    both = {item.id: item.reason for item in (await memory.search(ANN, "play", min_score=1)).items}
    assert "its words and those of the records beside it (" in both["e2"]
    assert await found(memory, ANN, "lake dawn") == ["e3", "e2", "e1"]  # a caption
    assert (await found(memory, ANN, "What did Ann say on 1 January, 1970?"))[0] in ("e1", "e3")
    assert (await memory.get(ANN, "e2")).sources[0].effect_id == "eff_2"
    assert await found(memory, ANN, "piano", min_score=900_000) == []
    assert (await memory.search(ANN, "zebra crossing")).items == ()


async def test_a_text_is_stored_once(opened: Opened) -> None:
    memory = opened.memory
    first = await memory.add(ANN, [said(1, "The port is 8080."), said(2, "the  PORT is 8080")])
    assert [(item.outcome, item.record_id) for item in first] == [
        (AddOutcome.STORED, "e1"),
        (AddOutcome.DUPLICATE, "e1"),
    ]
    again = await memory.add(ANN, [said(1, "The port is 8080."), said(2, "the  PORT is 8080")])
    assert [(item.outcome, item.record_id) for item in again] == [(AddOutcome.KNOWN, "e1")] * 2
    other = await memory.add(ANN, [said(3, "The port is 8080.", speaker="Ben"), said(4, "The port is 8081.")])
    assert [item.outcome for item in other] == [AddOutcome.STORED] * 2
    [record] = [record for record in await memory.page(ANN) if record.id == "e1"]
    assert [source.entry_id for source in record.sources] == ["e1", "e2"]
    stats = await memory.stats(ANN)
    assert (stats.entries, stats.records, stats.current, stats.duplicate_rate) == (4, 3, 3, 250_000)


async def test_what_is_forgotten_does_not_come_back(opened: Opened) -> None:
    memory = opened.memory
    entries = [
        said(1, "The safe's code is swordfish."),
        said(2, "The Safe's code is swordfish"),
        said(3, "Hello there."),
    ]
    await memory.add(ANN, entries)
    other = opened.again()
    assert "e1" in await found(other, ANN, "swordfish")
    assert await memory.entries_of(ANN, ["nothing", "e2", "e3"]) == ["e2", "e3", "e1"]
    assert await memory.entries_of(BOB, ["e2"]) == []
    assert await memory.forget(ANN, ["e2", "nothing"], "a person") == ["e1"]
    assert await memory.forget(ANN, ["e2"], "a person") == []
    for view in (memory, other):
        assert await found(view, ANN, "swordfish code safe") == []
        assert [record.id for record in await view.page(ANN)] == ["e3"]
        with pytest.raises(RecordNotFound):
            await view.get(ANN, "e1")
    assert [item.outcome for item in await memory.add(ANN, entries)] == [
        AddOutcome.FORGOTTEN,
        AddOutcome.FORGOTTEN,
        AddOutcome.KNOWN,
    ]
    assert (await memory.stats(ANN)).forgotten == 1
    assert await found(opened.again(), ANN, "swordfish") == []
    [said_anew] = await memory.add(ANN, [said(9, "The safe's code is swordfish.")])
    assert said_anew.outcome is AddOutcome.STORED
    assert await memory.forget(BOB, ["e1"], "a person") == []


async def test_what_supersedes_outranks(opened: Opened) -> None:
    memory = opened.memory
    await memory.add(ANN, [said(1, "Ann lives in Berlin, Germany."), said(2, "The dog barks.")])
    await memory.add(ANN, [said(3, "Moved to Oslo.", supersedes=("e1", "unknown"))])
    recall = await memory.search(ANN, "Ann lives in Berlin, Germany", min_score=1)
    assert recall.items[0].id == "e3"
    assert recall.items[0].reason.endswith("; it replaces an older record that fits.")
    assert "e1" not in [item.id for item in recall.items]
    assert (await memory.get(ANN, "e1")).superseded_by == "e3"
    assert (await memory.get(ANN, "e3")).supersedes == ("e1",)
    assert [record.id for record in await memory.page(ANN, current=True)] == ["e3", "e2"]
    # Without the turn that corrected it, it holds again; so it does when it is said again.
    assert (await found(memory, ANN, "Ann lives in Berlin", exclude_turns=frozenset({"t3"})))[0] == "e1"
    [record] = [item for item in await memory.page(ANN, exclude_turns=frozenset({"t3"})) if item.id == "e1"]
    assert record.superseded_by is None
    await memory.add(ANN, [said(4, "Ann lives in Berlin, Germany.")])
    assert (await found(memory, ANN, "Ann lives in Berlin"))[0] == "e1"
    assert (await memory.stats(ANN)).current == 3
    assert (await found(memory, ANN, "Ann lives in Berlin", exclude_turns=frozenset({"t4"})))[0] == "e3"
    assert await memory.forget(ANN, ["e3"], "a person") == ["e3"]
    assert (await memory.get(ANN, "e1")).superseded_by is None


async def test_rewound_turns_are_hidden(opened: Opened) -> None:
    memory = opened.memory
    await memory.add(
        ANN, [said(1, "We use tabs."), said(2, "Which linter?"), said(3, "Ruff it is."), said(4, "We use tabs.")]
    )
    assert "e3" in await found(memory, ANN, "ruff")
    hidden = frozenset({"t3", "t4"})
    assert await found(memory, ANN, "ruff", exclude_turns=hidden, min_score=1) == []
    assert (await found(memory, ANN, "tabs", exclude_turns=hidden))[0] == "e1"
    recall = await memory.search(ANN, "tabs", exclude_turns=frozenset({"t4"}))
    assert (recall.items[0].turn_id, recall.searched) == ("t1", 3)
    assert (await memory.search(ANN, "tabs")).items[0].turn_id == "t4"  # the last time it was said
    assert await found(memory, ANN, "tabs", exclude_turns=frozenset({"t1", "t4"}), min_score=1) == []
    assert [record.id for record in await memory.page(ANN, exclude_turns=frozenset({"t1", "t4"}))] == ["e3", "e2"]
    shown = await found(memory, ANN, "tabs", shown_turns=frozenset({"t4"}))
    assert "e1" not in shown
    assert "e2" in shown


async def test_a_failed_embedding_is_seen_and_tried_again(opened: Opened) -> None:
    memory, embedder = opened.memory, opened.embedder
    await memory.add(ANN, [said(1, "Apples are red.")])
    embedder.down = True
    [added] = await memory.add(ANN, [said(2, "Pears are green.")])
    assert (added.outcome, added.embedding) == (AddOutcome.STORED, EmbeddingState.FAILED)
    recall = await memory.search(ANN, "pears")
    assert (recall.items[0].id, recall.incomplete) == ("e2", 1)
    assert recall.problem == "Only words were compared: The embedder is down."
    assert (await memory.get(ANN, "e2")).embedding_error == "The embedder is down."
    stats = await memory.stats(ANN)
    assert (stats.failed, stats.pending) == (1, 0)
    embedder.down = False
    assert (await memory.search(ANN, "pears")).incomplete == 1  # its time has not come
    later = IndexedMemory(
        semantic_store(opened.stores.place, opened.stores.ledger), embedder, clock=lambda: 3600 * 1_000_000
    )
    recall = await later.search(ANN, "pears")
    assert (recall.items[0].id, recall.incomplete, recall.problem) == ("e2", 0, "")
    assert (await later.get(ANN, "e2")).embedding is EmbeddingState.EMBEDDED
    assert (await memory.search(ANN, "pears")).incomplete == 0


async def test_a_text_that_cannot_be_embedded_keeps_no_other_from_it(opened: Opened) -> None:
    opened.embedder.refused = "poison"
    added = await opened.memory.add(ANN, [said(n, "poison" if n == 3 else f"Line {n}.") for n in range(6)])
    assert {item.embedding for item in added} == {EmbeddingState.FAILED}
    later = IndexedMemory(
        semantic_store(opened.stores.place, opened.stores.ledger), opened.embedder, clock=lambda: 3600 * 1_000_000
    )
    await later.search(ANN, "line")
    states = {record.text: record.embedding for record in await later.page(ANN)}
    assert states.pop("poison") is EmbeddingState.FAILED
    assert set(states.values()) == {EmbeddingState.EMBEDDED}
    assert (await later.search(ANN, "poison line")).incomplete == 1


async def test_another_embedder_is_refused_until_the_vectors_are_made_anew(opened: Opened) -> None:
    memory = opened.memory
    await memory.add(ANN, [said(number, f"Sentence number {number}.") for number in range(1, 71)])
    new = opened.again(Embedding("other", 16))
    with pytest.raises(EmbeddingMismatch, match="milepost memory reindex-records ses_1 --agent ann"):
        await new.search(ANN, "sentence")
    [added] = await new.add(ANN, [said(99, "Said meanwhile.")])  # nothing is lost by it
    assert added.embedding is EmbeddingState.PENDING
    assert (await memory.search(ANN, "meanwhile")).items[0].id == "e99"
    steps: list[tuple[int, int]] = []
    stats = await new.reindex(ANN, lambda done, total: steps.append((done, total)))
    assert steps == [(32, 71), (64, 71), (71, 71)]
    assert (stats.space, stats.pending, stats.records) == (new._embedder.space, 0, 71)
    recall = await new.search(ANN, "meanwhile")
    assert (recall.items[0].id, recall.incomplete) == ("e99", 0)
    with pytest.raises(EmbeddingMismatch):
        await memory.search(ANN, "sentence")


async def test_a_reindex_goes_on_where_it_failed(opened: Opened) -> None:
    memory = opened.memory
    await memory.add(ANN, [said(number, f"Sentence number {number}.") for number in range(1, 71)])
    other = Embedding("other", 16)
    new = opened.again(other)

    def stop(done: int, _total: int) -> None:
        other.down = done >= 32

    with pytest.raises(Exception, match="down"):
        await new.reindex(ANN, stop)
    assert (await memory.search(ANN, "number 7")).incomplete == 0  # with the old vectors
    other.down = False
    other.texts.clear()
    await new.reindex(ANN)
    assert len(other.texts) == 70 - 32
    assert (await new.search(ANN, "number 7")).items


async def test_owners_never_meet(opened: Opened) -> None:
    memory, other = opened.memory, opened.again()
    workers = Scope.worker("ses_1", "ann", "ben")

    async def write(view: IndexedMemory, scope: Scope, name: str) -> None:
        for number in range(12):
            await view.add(scope, [said(number, f"Secret {number} of {name}."), said(100 + number, "The same words.")])
            assert all(name in item.text for item in (await view.search(scope, "secret")).items if "Sec" in item.text)

    await asyncio.gather(
        write(memory, ANN, "ann"), write(other, BOB, "bob"), write(memory, BOB, "bob"), write(other, workers, "ben")
    )
    for scope, name in ((ANN, "ann"), (BOB, "bob"), (workers, "ben")):
        records = await memory.page(scope)
        assert len(records) == 13
        assert {record.text.rsplit(" ", 1)[1] for record in records} == {f"{name}.", "words."}
    await memory.delete(ANN)
    assert (await memory.stats(ANN)).records == 0
    assert await found(other, ANN, "secret") == []
    assert len(await other.page(BOB)) == 13
    assert [item.outcome for item in await other.add(ANN, [said(1, "Anew.")])] == [AddOutcome.STORED]


async def test_processes_see_what_others_write(opened: Opened) -> None:
    here, there = opened.memory, opened.again()
    for number in range(20):
        writer, reader = (here, there) if number % 2 else (there, here)
        await writer.add(ANN, [said(number, f"Item {number} is here.")])
        assert (await reader.search(ANN, f"item {number}")).searched == number + 1
    results = await asyncio.gather(*(view.add(ANN, [said(7, "x"), said(50, "Both add it.")]) for view in (here, there)))
    assert sorted(item[1].outcome for item in results) == [AddOutcome.KNOWN, AddOutcome.STORED]
    positions = [record.position for record in await here.page(ANN)]
    assert positions == list(range(21, 0, -1))


async def test_indexes_in_memory_are_bounded(opened: Opened) -> None:
    few = opened.again(max_indexes=3, max_rows=1000)
    scopes = [Scope.agent("ses_1", f"agent{number}") for number in range(8)]
    for scope in scopes:
        await few.add(scope, [said(1, f"My name is {scope.owner}.")])
        await few.search(scope, "name")
    assert len(few._indexes._slots) == 3
    assert [(await few.search(scope, "name")).items[0].text for scope in scopes] == [
        f"My name is {s.owner}." for s in scopes
    ]
    small = opened.again(max_indexes=8, max_rows=2)
    for scope in scopes:
        await small.search(scope, "name")
    assert len(small._indexes._slots) == 2


async def test_facts_that_say_the_same_leave_one_current(opened: Opened) -> None:
    memory, embedder = opened.memory, opened.embedder
    texts = [
        "The tests take about ten minutes.",
        "Running all tests needs roughly ten minutes altogether.",
        "Running all tests needs roughly 12 minutes altogether.",
        "Ten minutes is what a whole test run costs.",
    ]
    embedder.vectors = dict(zip(texts, [(1.0,), (0.9, 0.4359), (0.95, 0.3122), (0.93, 0.3676)], strict=True))
    added = await memory.add(ANN, [fact(1, texts[0])])
    added += await memory.add(ANN, [fact(2, texts[1]), fact(3, texts[2]), fact(4, texts[3])])
    assert [item.outcome for item in added] == [
        AddOutcome.STORED,
        AddOutcome.NEAR_DUPLICATE,
        AddOutcome.STORED,  # another number
        AddOutcome.NEAR_DUPLICATE,
    ]
    assert [record.id for record in await memory.page(ANN, current=True)] == ["e4", "e3"]
    stats = await memory.stats(ANN)
    assert (stats.near_duplicates, stats.current, stats.duplicate_rate) == (2, 2, 500_000)
    assert (await found(memory, ANN, texts[0]))[0] == "e4"
    await memory.add(ANN, [fact(5, texts[0])])  # said again, so it is the current one
    assert [record.id for record in await memory.page(ANN, current=True)] == ["e3", "e1"]
    await memory.forget(ANN, ["e1"], "a person")
    assert [record.id for record in await memory.page(ANN, current=True)] == ["e4", "e3"]


async def test_pages(opened: Opened) -> None:
    memory = opened.memory
    await memory.add(ANN, [said(number, f"Line {number}.") for number in range(1, 131)])
    seen: list[str] = []
    before: int | None = None
    while page := await memory.page(ANN, before=before, limit=60):
        seen += [record.id for record in page]
        before = page[-1].position
    assert seen == [f"e{number}" for number in range(130, 0, -1)]
    assert await memory.page(BOB) == []


async def test_bounds(opened: Opened) -> None:
    memory = opened.memory
    wrong: list[MemoryEntry] = [
        said(1, " "),
        said(1, "x", kind="Not a kind"),
        said(1, "x", id=""),
        said(1, "x", captions=("c",) * 21),
        said(1, "x", supersedes=("s",) * 101),
    ]
    for entry in wrong:
        with pytest.raises(InvalidInput):
            await memory.add(ANN, [entry])
    with pytest.raises(PayloadTooLarge):
        await memory.add(ANN, [said(1, "x" * (1024 * 1024 + 1))])
    with pytest.raises(InvalidInput):
        await memory.add(ANN, [said(number, "x") for number in range(1001)])
    with pytest.raises(PayloadTooLarge):
        await memory.search(ANN, "x" * 65_537)
    for limit in (0, 101):
        with pytest.raises(InvalidInput):
            await memory.search(ANN, "x", limit=limit)
    with pytest.raises(InvalidInput):
        await memory.page(ANN, limit=0)
    assert (await memory.stats(ANN)).records == 0


async def test_strange_and_long_texts(opened: Opened) -> None:
    memory = opened.memory
    long = " ".join(f"w{number}" for number in range(4000))
    texts = ["nul \0 and \ud800 surrogate", "???", "日本語のメモ", long]
    await memory.add(ANN, [said(number, text, speaker="\ud800") for number, text in enumerate(texts)])
    assert sorted(record.text for record in await memory.page(ANN)) == sorted(texts)
    assert (await found(memory, ANN, "w3999"))[0] == "e3"
    assert (await found(memory, ANN, "日本"))[0] == "e2"
    assert len([text for text in opened.embedder.texts if " w" in text]) == 16
    for query in ("", "   ", "???", "\ud800"):
        await memory.search(ANN, query)


async def test_a_damaged_vector_is_named(opened: Opened) -> None:
    memory, space = opened.memory, opened.embedder.space
    await memory.add(ANN, [said(1, "One."), said(2, "Two.")])
    store = semantic_store(opened.stores.place, opened.stores.ledger)
    await store.write(ANN, lambda records: records.store(space, [Embedded("e2", (b"short",))]))
    fresh = opened.again()
    with pytest.raises(MemoryDamaged, match="vector of record e2 has 5 bytes instead of 128"):
        await fresh.search(ANN, "two")
    await fresh.reindex(ANN)
    assert (await found(fresh, ANN, "two"))[0] == "e2"


async def test_conversations_apart_are_no_neighbors(opened: Opened) -> None:
    memory = opened.memory
    await memory.add(
        ANN, [said(1, "What is the wifi password?"), said(2, "Tuesday.", day=0), said(3, "Wednesday.", day=1)]
    )
    assert await found(memory, ANN, "wifi password", min_score=1) == ["e1", "e2"]
