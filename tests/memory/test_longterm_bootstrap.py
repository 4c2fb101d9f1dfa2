"""Long-term memory as the configuration says: stores of packages, collecting, and backups."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.bootstrap import longterm
from milepost.bootstrap.backing_up import back_up
from milepost.bootstrap.collecting import collect
from milepost.bootstrap.core import migrate
from milepost.bootstrap.data_root import DataRoot
from milepost.bootstrap.longterm import open_memory_alone
from milepost.bootstrap.restoring import restore
from milepost.bootstrap.verifying import verify_ledger
from milepost.config.loading import Config, load_config
from milepost.domain.errors import ConfigInvalid, MemoryStoreUnavailable, StorageUnavailable
from milepost.domain.longterm import ContentType, Entry, Provenance
from milepost.services.longterm.service import LongTermMemory, Put, SearchRequest

EXAMPLE = Path(__file__).parents[2] / "examples" / "memory-store-json"
LEXICAL = "embeddings: {default: lexical}\n"


def configured(folder: Path, text: str) -> tuple[Config, DataRoot]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "milepost.yaml"
    path.write_text(f"data_root: {folder / 'home'}\n{text}")
    config = load_config(path)
    root = DataRoot(config.data_root)
    root.prepare()
    return config, root


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example package as if it were installed."""
    info = tmp_path / "site" / "milepost_memory_json-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: milepost-memory-json\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(
        "[milepost.memory_stores]\njson = milepost_memory_json:open_store\nnothing = os:sep\ngone = os:gone\n"
    )
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


async def put(memory: LongTermMemory, namespace: str, key: str, text: str, days: int | None = None) -> None:
    await memory.put(namespace, Put(key, Entry(ContentType.TEXT, text), Provenance("test"), days))


async def keys(memory: LongTermMemory, namespace: str, query: str) -> list[str]:
    return [hit.record.key for hit in (await memory.search(namespace, SearchRequest(query))).hits]


@pytest.mark.usefixtures("example")
async def test_a_store_of_a_package(tmp_path: Path) -> None:
    text = LEXICAL + (
        "long_term_memory:\n  stores: {notes: {entry_point: json}, bad: {entry_point: nothing}, gone: {}, lost: {}}\n"
        "  namespaces: {here: {store: notes}, b: {store: bad}, g: {store: gone}, l: {store: lost}}\n"
    )
    config, root = configured(tmp_path, text)
    await migrate(config, root)
    async with open_memory_alone(config, root) as memory:
        await put(memory, "here", "a", "red car")
        await put(memory, "there", "b", "red bus")
        assert await keys(memory, "here", "red") == ["a"] and await keys(memory, "there", "red") == ["b"]
        for namespace, said in (("b", "nothing that can be called"), ("g", "cannot be loaded"), ("l", "no installed")):
            with pytest.raises(MemoryStoreUnavailable, match=f"Memory store '.*{said}"):
                await memory.get(namespace, "a")
    folder = root.path / "memory-stores" / "notes"
    assert len(list(folder.iterdir())) == 1
    async with open_memory_alone(config, root) as memory:
        assert (await memory.get("here", "a")).text == "red car"
        next(folder.iterdir()).write_text("{")
        with pytest.raises(StorageUnavailable, match="cannot be used"):
            await memory.get("here", "a")


async def test_a_store_that_hangs_or_breaks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    class Broken:
        async def get(self, *_: object) -> None:
            raise KeyError("x")

        async def page(self, *_: object) -> None:
            await asyncio.sleep(30)

    monkeypatch.setattr(longterm, "STORE_SECONDS", 0.05)
    store = longterm.GuardedStore("mine", Broken())
    with pytest.raises(StorageUnavailable, match="memory store 'mine' failed: KeyError"):
        await store.get("n", ["a"])
    with pytest.raises(StorageUnavailable, match="'mine' did not answer within"):
        await store.page("n", "", 1)


def test_what_the_configuration_refuses(tmp_path: Path) -> None:
    for text, said in (
        ("long_term_memory: {store: x}", "a store 'x' that is not configured"),
        ("long_term_memory: {stores: {database: {}}}", "name of the built-in store"),
        ("long_term_memory: {namespaces: {n: {store: x}}}", "a store 'x'"),
        ("long_term_memory: {namespaces: {n: {embedder: x}}}", "an embedder 'x'"),
        ("long_term_memory: {namespaces: {n: {retention_days: 0}}}", "retention_days"),
        ("tools: {long_term_memory_read: {type: python}}", "name of a built-in tool"),
        ("agents: {a: {tools: [long_term_memory_reed]}}", "neither built in nor configured"),
    ):
        with pytest.raises(ConfigInvalid, match=said):
            configured(tmp_path, text)
    config, _ = configured(
        tmp_path,
        "agents:\n  a: {tools: [long_term_memory_read], long_term_memory: {namespaces: [x, y], retention_days: 9}}\n"
        "  b: {}\ndefault_agent: a\n",
    )
    assert config.agents["a"].long_term is not None and config.agents["a"].long_term.namespaces == ("x", "y")
    assert config.agents["b"].long_term is not None and config.agents["b"].long_term.namespaces == ("b",)


@pytest.mark.parametrize(
    "target", ["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.slow])]
)
async def test_backups_have_it_and_collecting_ends_what_is_over(
    tmp_path: Path, target: str, request: pytest.FixtureRequest
) -> None:
    config, root = configured(tmp_path / "one", LEXICAL)
    await migrate(config, root)
    async with open_memory_alone(config, root) as memory:
        await put(memory, "n", "a", "red car")
        await put(memory, "n", "b", "red bus", 1)
        await put(memory, "n", "c", "red tram")
        await memory.delete("n", "c")
        store = await memory.open_store("database")
        records = await store.get("n", ["a", "b"])
        vectors = await store.vectors("n", ["a", "b"])
    assert len(vectors) == 2
    verified = await verify_ledger(config, root)
    assert (verified.findings, verified.records) == ([], 2)
    await back_up(config, root, tmp_path / "backup.tar.gz")

    database = ""
    if target == "postgresql":
        database = f"database: {{url: '{request.getfixturevalue('empty_postgres_url')}'}}\n"
    again, there = configured(tmp_path / "two", LEXICAL + database)
    restored = await restore(again, there, tmp_path / "backup.tar.gz", verify=True)
    assert restored.verification is not None and restored.verification.findings == []
    async with open_memory_alone(again, there) as memory:
        store = await memory.open_store("database")
        assert await store.get("n", ["a", "b", "c"]) == records
        assert await store.vectors("n", ["a", "b"]) == vectors
        assert await keys(memory, "n", "red") == ["a", "b"]
        # New namespaces get numbers that no restored one has.
        await put(memory, "m", "a", "new")
        assert await keys(memory, "m", "new") == ["a"] and await keys(memory, "n", "tram") == []
        await store.put("n", [])
    assert (await collect(again, there, grace_seconds=3600, dry_run=True)).expired == 0
    async with open_memory_alone(again, there) as memory:
        late = await memory.open_store("database")
        assert await late.expired(records["b"].expires_at or 0, 9) == [("n", "b")]
