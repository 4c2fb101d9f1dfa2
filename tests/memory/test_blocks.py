"""Core blocks on every store: values, limits, history, and many writers that lose nothing."""

from __future__ import annotations

import asyncio
import stat
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from milepost.domain.errors import BlockConflict, BlockNotFound, BlockTooLong, InvalidInput, MemoryDamaged
from milepost.domain.memory import DEFAULT_BLOCKS, MAX_BLOCK_VERSIONS, BlockSpec, BlockVersion, Scope
from milepost.memory.block_files import FileBlocks
from milepost.ports.ledger import Ledger
from milepost.services.blocks import Author, BlockService, appended, replaced, set_to
from tests.ledger.samples import NASTY, new_turn
from tests.memory.conftest import Stores
from tests.memory.writer import TEAM, write

OWNER = Scope.agent("ses_1", "coder")
HUMAN = DEFAULT_BLOCKS[1]


def author(key: str, **changes: str | int) -> Author:
    return Author(**{"by": "agent:coder", "key": key, "at": 5, **changes})  # type: ignore[arg-type]


async def test_a_block_holds_what_was_written(stores: Stores) -> None:
    blocks = BlockService(stores.ledger, stores.blocks)
    assert [block.value for block in await blocks.all(OWNER, DEFAULT_BLOCKS)] == ["", "", ""]
    await blocks.edit(OWNER, HUMAN, author("a"), set_to(NASTY))
    await blocks.edit(OWNER, HUMAN, author("b"), appended("Likes tests."))
    await blocks.edit(OWNER, HUMAN, author("c"), replaced("Likes", "Loves", "human"))
    block = await blocks.one(OWNER, HUMAN)
    assert block.value == f"{NASTY}\nLoves tests."
    assert [(version.number, version.key) for version, _ in await blocks.history(OWNER, HUMAN)] == [
        (3, "c"),
        (2, "b"),
        (1, "a"),
    ]
    assert (await blocks.one(Scope.agent("ses_1", "Coder"), HUMAN)).value == ""


async def test_the_same_edit_counts_once(stores: Stores) -> None:
    blocks = BlockService(stores.ledger, stores.blocks)
    first = await blocks.edit(OWNER, HUMAN, author("a"), appended("once"))
    await blocks.edit(OWNER, HUMAN, author("b"), appended("twice"))
    assert await blocks.edit(OWNER, HUMAN, author("a"), appended("once")) == first
    assert (await blocks.one(OWNER, HUMAN)).value == "once\ntwice"


async def test_refusals_name_what_is_wrong(stores: Stores) -> None:
    blocks = BlockService(stores.ledger, stores.blocks)
    with pytest.raises(BlockTooLong, match="2001 characters; its limit is 2000"):
        await blocks.edit(OWNER, HUMAN, author("a"), set_to("x" * 2001))
    await blocks.edit(OWNER, HUMAN, author("b"), set_to("\U0001f9ed" * 2000))
    with pytest.raises(BlockTooLong, match="limit is 2000"):
        await blocks.edit(OWNER, HUMAN, author("c"), appended(""))
    await blocks.edit(OWNER, HUMAN, author("d"), set_to("aa b"))
    for old, places in (("zz", "not"), ("a", "2 times"), ("", "not")):
        with pytest.raises(InvalidInput, match=f"'old' is {places} in the block 'human'"):
            await blocks.edit(OWNER, HUMAN, author("e"), replaced(old, "x", "human"))
    with pytest.raises(BlockConflict, match="version 2, not 1"):
        await blocks.edit(OWNER, HUMAN, author("f"), set_to("x"), expected=1)
    assert (await blocks.one(OWNER, HUMAN)).value == "aa b"


async def test_a_version_can_be_reverted_to(stores: Stores) -> None:
    blocks = BlockService(stores.ledger, stores.blocks)
    spec = BlockSpec("style", "How to write.", value="Short.")
    for key in "ab":
        await blocks.edit(OWNER, spec, author(key), appended(key))
    assert (await blocks.one(OWNER, spec)).value == "Short.\na\nb"
    reverted = await blocks.revert(OWNER, spec, author("c", by="person"), 1)
    assert (reverted.number, reverted.value, reverted.note) == (3, "Short.\na", "reverted to version 1")
    await blocks.revert(OWNER, spec, author("d"), 0)
    assert (await blocks.one(OWNER, spec)).value == "Short."
    with pytest.raises(BlockNotFound, match="no version 9; kept are 1 to 4"):
        await blocks.revert(OWNER, spec, author("e"), 9)


async def test_old_versions_make_room(stores: Stores) -> None:
    for number in range(1, MAX_BLOCK_VERSIONS + 6):
        await stores.blocks.write(OWNER, "human", BlockVersion(number, str(number), number, "x", str(number)))
    versions = await stores.blocks.versions(OWNER, "human")
    assert [versions[0].number, versions[-1].number, len(versions)] == [6, MAX_BLOCK_VERSIONS + 5, MAX_BLOCK_VERSIONS]
    await stores.blocks.drop(OWNER)
    assert await stores.blocks.all(OWNER) == {}


async def test_a_rewind_takes_private_values_back_and_leaves_shared_ones(stores: Stores) -> None:
    first = await new_turn(stores.ledger)
    owner = Scope.agent(first.session_id, "coder")
    blocks = BlockService(stores.ledger, stores.blocks)
    await blocks.edit(owner, HUMAN, author("a"), set_to("kept"))
    for spec in (HUMAN, TEAM):
        await blocks.edit(owner, spec, author("b", turn_id=first.turn_id), set_to("of the turn"))
    await stores.ledger.write(lambda tx: tx.turns.supersede(first.session_id, after_number=0))
    assert [block.value for block in await blocks.all(owner, (HUMAN, TEAM))] == ["kept", "of the turn"]
    assert [hidden for _, hidden in await blocks.history(owner, HUMAN)] == [True, False]
    # What is written next stands on the value that counts, and both versions stay.
    await blocks.edit(owner, HUMAN, author("c"), appended("more"))
    block = await blocks.one(owner, HUMAN)
    assert (block.value, block.number) == ("kept\nmore", 3)


async def test_many_writers_in_one_process_lose_nothing(stores: Stores) -> None:
    names = ["one", "two", "three"]
    await asyncio.gather(*(write(stores, "block", name, 8) for name in names))
    value = (await BlockService(stores.ledger, stores.blocks).one(OWNER, TEAM)).value
    assert Counter(value.split("\n")) == Counter(f"{name} {number}" for name in names for number in range(8))


async def in_processes(stores: Stores, ledger_url: str, what: str, names: list[str], count: int) -> None:
    command = [sys.executable, "-m", "tests.memory.writer", stores.place, ledger_url, what]
    started = [
        await asyncio.create_subprocess_exec(*command, name, str(count), stdout=asyncio.subprocess.PIPE)
        for name in names
    ]
    for process in started:
        out, _ = await asyncio.wait_for(process.communicate(), 120)
        assert (process.returncode, out.strip()) == (0, str(count).encode())


@pytest.fixture
def ledger_place(stores: Stores, request: pytest.FixtureRequest) -> str:
    return stores.place if "://" in stores.place else str(request.getfixturevalue("sqlite_url"))


async def test_agents_of_two_processes_share_a_block(stores: Stores, ledger_place: str) -> None:
    names = ["coder", "reviewer"]
    await in_processes(stores, ledger_place, "block", names, 15)
    blocks = BlockService(stores.ledger, stores.blocks)
    values = {(await blocks.one(Scope.agent("ses_1", name), TEAM)).value for name in names}
    (value,) = values
    assert Counter(value.split("\n")) == Counter(f"{name} {number}" for name in names for number in range(15))


class TestFiles:
    async def test_files_are_their_owners_alone(self, tmp_path: Path) -> None:
        store = FileBlocks(tmp_path / "home")
        await store.write(OWNER, "human", BlockVersion(1, "x", 1, "me", "a"))
        await store.write(Scope.shared("team"), "team", BlockVersion(1, "x", 1, "me", "a"))
        made = sorted(tmp_path.joinpath("home").rglob("*"))
        assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_file()} == {0o600}
        assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_dir()} == {0o700}
        names = [str(path.relative_to(tmp_path / "home")) for path in made if path.suffix == ".json"]
        assert names == [
            f"memory/core/shared/v1/{Scope.shared('team').component}.json",
            f"memory/core/v1/{OWNER.component}.json",
        ]

    @pytest.mark.parametrize(
        "change",
        [
            lambda data: data[:-20],
            lambda data: b"\xff" + data,
            lambda data: data.replace(b"ses_1:coder", b"ses_1:other"),
            lambda data: data.replace(b'"version":1', b'"version":2'),
            lambda data: b"[]",
        ],
    )
    async def test_a_damaged_file_is_told_and_left(self, tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
        store = FileBlocks(tmp_path)
        await store.write(OWNER, "human", BlockVersion(1, "x", 1, "me", "a"))
        path = tmp_path / f"memory/core/v1/{OWNER.component}.json"
        damaged = change(path.read_bytes())
        path.write_bytes(damaged)
        with pytest.raises(MemoryDamaged, match=r"core blocks in .*\.json cannot be read"):
            await store.all(OWNER)
        with pytest.raises(MemoryDamaged):
            await store.write(OWNER, "human", BlockVersion(2, "y", 1, "me", "b"))
        assert path.read_bytes() == damaged

    async def test_a_reader_never_sees_half_a_file(self, tmp_path: Path) -> None:
        store = FileBlocks(tmp_path)
        done = asyncio.Event()

        async def read() -> int:
            seen = 0
            while not done.is_set():
                versions = await store.versions(OWNER, "human")
                assert len(versions) >= seen
                seen = len(versions)
            return seen

        reading = asyncio.create_task(read())
        for number in range(1, 31):
            await store.write(OWNER, "human", BlockVersion(number, "x" * 3000, 1, "me", str(number)))
        done.set()
        await reading
        assert len(await store.versions(OWNER, "human")) == 30


edits = st.lists(
    st.tuples(
        st.sampled_from(["append", "set", "replace", "revert", "rewind"]), st.text(max_size=40), st.integers(0, 12)
    ),
    max_size=12,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=edits)
async def test_edits_in_any_order_end_in_the_value_of_a_model(
    sqlite_ledger: Ledger, tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[str, str, int]]
) -> None:
    """Against a list of values with the turns that wrote them."""
    store = FileBlocks(tmp_path_factory.mktemp("blocks"))
    blocks = BlockService(sqlite_ledger, store)
    spec = BlockSpec("own", "", limit=60, value="start")
    turn = await new_turn(sqlite_ledger)
    owner = Scope.agent(turn.session_id, "a")
    model: list[tuple[str, bool]] = []
    hidden = False

    def now() -> str:
        return next((value for value, of_turn in reversed(model) if not (of_turn and hidden)), "start")

    for number, (kind, text, at) in enumerate(edits):
        of_turn = at % 2 == 0 and not hidden
        by = author(str(number), turn_id=turn.turn_id if of_turn else "")
        if kind == "rewind":
            await sqlite_ledger.write(lambda tx: tx.turns.supersede(turn.session_id, after_number=0))
            hidden = True
            assert (await blocks.one(owner, spec)).value == now()
            continue
        try:
            if kind == "revert":
                wanted = "start" if at == 0 else model[at - 1][0] if at <= len(model) else None
                await blocks.revert(owner, spec, by, at)
                assert wanted is not None
            else:
                before = now()
                change = {"append": appended(text), "set": set_to(text), "replace": replaced("a", text, "own")}[kind]
                wanted = {
                    "append": f"{before}\n{text}" if before else text,
                    "set": text,
                    "replace": before.replace("a", text) if before.count("a") == 1 else None,
                }[kind]
                await blocks.edit(owner, spec, by, change)
                assert wanted is not None
        except (BlockTooLong, InvalidInput, BlockNotFound):
            assert wanted is None or len(wanted) > 60
        else:
            model.append((wanted, of_turn))
        assert (await blocks.one(owner, spec)).value == now()
