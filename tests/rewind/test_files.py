"""Rewind with files: what the turns changed comes back, what others changed stays; a kill in between is repaired."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from milepost.domain.errors import SnapshotFailed, WorkspaceBusy, WorkspaceChanged
from milepost.domain.events import WorkspaceRestored
from milepost.domain.workspaces import RestoreState
from milepost.ledger.codec import decode_event
from milepost.ports.snapshots import Restored
from milepost.services.rewinding import RestoredPath
from milepost.services.rewinds import RewindService, RewindTo
from milepost.services.turns import BeginTurn
from milepost.services.workspaces import WorkspaceGuard
from milepost.snapshots import GitSnapshots
from tests.rewind.conftest import Bench


async def _written(bench: Bench) -> str:
    """Turn 1 writes, turns 2 and 3 change, remove and add."""
    bench.write("kept", "0")()
    session = await bench.open()
    await bench.writes(session, bench.write("a", "1"), bench.write("b", "1"))
    await bench.writes(session, bench.write("a", "2"), bench.remove("b"))
    await bench.writes(session, bench.write("a", "3"), bench.write("dir/c", "3"))
    return session


async def test_files_come_back(bench: Bench) -> None:
    session = await _written(bench)
    dry = await bench.rewinds.plan(RewindTo(session, "a", 1, files=True))
    assert dry.files is not None and (dry.files.count, dry.files.conflicts) == (3, ())
    assert set(dry.files.paths) == {
        RestoredPath("a", "change"),
        RestoredPath("b", "create"),
        RestoredPath("dir/c", "remove"),
    }
    assert bench.files() == {"a": "3", "dir/c": "3", "kept": "0"}
    done = await bench.rewinds.rewind(RewindTo(session, "a", 1, files=True))
    assert done.restored is not None and done.restored.changed == 3
    assert (done.restored.archived, done.restored.kept, done.restored.failed) == (dry.files.present, (), ())
    assert bench.files() == {"a": "1", "b": "1", "kept": "0"}
    # The state before is kept, and what comes after is the next turn's alone.
    workspace = (await bench.sessions.get(session)).workspace.workspace_id
    assert len(await bench.snapshots.changes(workspace, dry.files.present, done.restored.tree)) == 3
    await bench.writes(session, bench.write("d", "4"))
    assert (await bench.rewinds.rewind(RewindTo(session, "a", 0, files=True))).plan.count == 2
    assert bench.files() == {"kept": "0"}


async def test_what_others_changed_stays(bench: Bench) -> None:
    session = await _written(bench)
    other = await bench.open()
    await bench.writes(other, bench.write("theirs", "other Session"), bench.write("dir/c", "other Session"))
    bench.write("kept", "person")()
    bench.write("mine", "person")()
    bench.write("b", "person")()
    before = bench.files()
    dry = await bench.rewinds.plan(RewindTo(session, "a", 1, files=True))
    assert dry.files is not None and dry.files.conflicts == ("b", "dir/c") and dry.files.count == 1
    await bench.rewinds.rewind(RewindTo(session, "a", 1, files=True))
    assert bench.files() == before | {"a": "1"}


async def test_conflicts_can_be_overwritten(bench: Bench) -> None:
    session = await _written(bench)
    bench.write("mine", "person")()
    bench.write("a", "person")()
    done = await bench.rewinds.rewind(RewindTo(session, "a", 1, files=True, overwrite=True))
    assert bench.files() == {"a": "1", "b": "1", "kept": "0", "mine": "person"}
    # The person's version is in the state that was kept.
    workspace = (await bench.sessions.get(session)).workspace.workspace_id
    assert done.restored is not None and done.restored.archived is not None
    entries = await bench.snapshots.entries(workspace, done.restored.archived, ["a"])
    assert entries["a"] is not None
    assert await bench.snapshots.content(workspace, entries["a"].content, 100) == b"person"


async def test_a_change_between_the_calls_of_a_turn_is_a_conflict(bench: Bench) -> None:
    session = await bench.open()
    turn = await bench.begin(session)
    await bench.call(session, turn, bench.write("a", "turn"), 1)
    bench.write("a", "person")()
    await bench.call(session, turn, bench.write("a", "turn again"), 2)
    await bench.end(session, turn)
    dry = await bench.rewinds.plan(RewindTo(session, "a", 0, files=True))
    assert dry.files is not None and dry.files.conflicts == ("a",) and dry.files.count == 0


async def test_a_call_whose_end_is_not_known(bench: Bench) -> None:
    session = await bench.open()
    turn = await bench.begin(session)

    def lost() -> None:
        bench.write("a", "maybe half")()
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await bench.call(session, turn, lost)
    await bench.end(session, turn)
    dry = await bench.rewinds.plan(RewindTo(session, "a", 0, files=True))
    assert dry.files is not None and dry.files.incomplete == (1,) and dry.files.count == 0
    await bench.rewinds.rewind(RewindTo(session, "a", 0, files=True))
    assert bench.files() == {"a": "maybe half"}


async def test_refused_while_somebody_has_the_workspace(bench: Bench) -> None:
    session, other = await _written(bench), await bench.open()
    turn = await bench.begin(other)
    await bench.call(other, turn, bench.write("x", "x"))
    for call in (bench.rewinds.plan, bench.rewinds.rewind):
        with pytest.raises(WorkspaceBusy, match=turn):
            await call(RewindTo(session, "a", 1, files=True))  # type: ignore[operator]
    assert (await bench.rewinds.rewind(RewindTo(session, "a", 2))).plan.count == 1, "without files nobody is in the way"
    await bench.end(other, turn)
    assert (await bench.rewinds.rewind(RewindTo(session, "a", 1, files=True))).plan.count == 1


async def test_without_snapshots(bench: Bench) -> None:
    session = await _written(bench)
    service = RewindService(bench.ledger, bench.guard._clock, bench.turns._ids)
    with pytest.raises(SnapshotFailed, match="off"):
        await service.rewind(RewindTo(session, "a", 1, files=True))
    assert (await bench.history.page(session)).entries[0].turn.number == 3


class Killed(BaseException):
    """What a kill looks like to the code it happens in: nothing of it runs any more."""


class Doomed(GitSnapshots):
    """Dies at one moment: `before` or `after` the n-th call of a method, or half way through the files."""

    def __init__(self, root: Path, method: str, number: int, when: str) -> None:
        super().__init__(root)
        self.left, self.method, self.when = number, method, when

    async def take(self, workspace_id: str, folder: Path):  # type: ignore[no-untyped-def]
        return await self._mortal("take", lambda: GitSnapshots.take(self, workspace_id, folder))

    async def compose(self, workspace_id: str, base: str, entries):  # type: ignore[no-untyped-def]
        return await self._mortal("compose", lambda: GitSnapshots.compose(self, workspace_id, base, entries))

    async def restore(self, workspace_id: str, folder: Path, present: str, target: str) -> Restored:
        if self.when == "half":
            # What a killed git leaves: some files done, one cut short, one gone, and a lock.
            (folder / "a").write_text("")
            (folder / "dir" / "c").unlink()
            (self._root / f"{workspace_id}.git" / "index.lock").write_text("")
            raise Killed
        return await self._mortal("restore", lambda: GitSnapshots.restore(self, workspace_id, folder, present, target))

    async def _mortal(self, method: str, call: Callable[[], object]):  # type: ignore[no-untyped-def]
        mine = method == self.method
        self.left -= mine
        if mine and self.left == 0 and self.when == "before":
            raise Killed
        result = await call()  # type: ignore[misc]
        if mine and self.left == 0:
            raise Killed
        return result


SLOW = pytest.mark.slow
MOMENTS = [
    pytest.param("take", 1, "before", marks=SLOW),
    pytest.param("take", 1, "after", marks=SLOW),
    pytest.param("compose", 1, "after"),
    pytest.param("take", 2, "before", marks=SLOW),
    pytest.param("compose", 2, "after", marks=SLOW),
    pytest.param("restore", 1, "before", marks=SLOW),
    pytest.param("restore", 1, "half"),
    pytest.param("restore", 1, "after"),
    pytest.param("take", 3, "after", marks=SLOW),
]


@pytest.mark.parametrize(("method", "number", "when"), MOMENTS)
async def test_a_kill_at_every_step(bench: Bench, tmp_path: Path, method: str, number: int, when: str) -> None:
    session = await _written(bench)
    doomed = Doomed(tmp_path / "snapshots", method, number, when)
    service = RewindService(bench.ledger, bench.guard._clock, bench.turns._ids, doomed)
    with pytest.raises(Killed):
        await service.rewind(RewindTo(session, "a", 1, files=True))
    # A killed process gives nothing back: its lease runs out, or is dropped when the instance starts again.
    await bench.ledger.write(lambda tx: tx.workspaces.forget_operations())
    recorded = bool(await bench.rewinds.page(session))
    pending = await bench.ledger.read(lambda tx: tx.workspaces.restores())
    if not recorded:
        assert pending == [] and bench.files() == {"a": "3", "dir/c": "3", "kept": "0"}
        return
    assert [turn.number for turn in await _live(bench, session)] == [1]
    assert len(pending) == 1
    # The next call finds the files as they have to be, whichever it is.
    turn = await bench.begin(session)
    seen: list[dict[str, str]] = []
    await bench.call(session, turn, lambda: seen.append(bench.files()))
    assert seen == [{"a": "1", "b": "1", "kept": "0"}]
    await bench.end(session, turn)
    assert await bench.ledger.read(lambda tx: tx.workspaces.restores()) == []
    restored = [event for event in await _events(bench, session) if isinstance(event, WorkspaceRestored)]
    assert len(restored) == 1 and restored[0].error is None


async def _live(bench: Bench, session: str) -> list:  # type: ignore[type-arg]
    return [entry.turn for entry in (await bench.history.page(session)).entries]


async def _events(bench: Bench, session: str) -> list[object]:
    stored = await bench.ledger.read(lambda tx: tx.events.read(session))
    return [decode_event(item.type, item.version, item.payload) for item in stored]


async def test_a_person_s_change_before_the_repair_stays(bench: Bench, tmp_path: Path) -> None:
    session = await _written(bench)
    doomed = Doomed(tmp_path / "snapshots", "restore", 1, "before")
    with pytest.raises(Killed):
        await RewindService(bench.ledger, bench.guard._clock, bench.turns._ids, doomed).rewind(
            RewindTo(session, "a", 1, files=True)
        )
    await bench.ledger.write(lambda tx: tx.workspaces.forget_operations())
    bench.write("a", "person")()
    bench.write("mine", "person")()
    await WorkspaceGuard(bench.ledger, bench.guard._clock, bench.snapshots, "another").repair_all()
    assert bench.files() == {"a": "person", "b": "1", "kept": "0", "mine": "person"}
    (restored,) = [event for event in await _events(bench, session) if isinstance(event, WorkspaceRestored)]
    assert restored.kept == ("a",)


async def test_a_restore_that_cannot_be_done_here_waits(bench: Bench, tmp_path: Path) -> None:
    session = await _written(bench)
    doomed = Doomed(tmp_path / "snapshots", "restore", 1, "before")
    with pytest.raises(Killed):
        await RewindService(bench.ledger, bench.guard._clock, bench.turns._ids, doomed).rewind(
            RewindTo(session, "a", 1, files=True)
        )
    await bench.ledger.write(lambda tx: tx.workspaces.forget_operations())
    without = WorkspaceGuard(bench.ledger, bench.guard._clock, None, "without")
    await without.repair_all()
    turn = (await bench.turns.begin(BeginTurn(session, "x"))).turn.turn_id
    with pytest.raises(SnapshotFailed):
        await without.enter(await bench.sessions.get(session), turn, "0" * 64, writes=False)
    (restore,) = await bench.ledger.read(lambda tx: tx.workspaces.restores())
    assert restore.state is RestoreState.PENDING


async def test_files_that_change_during_the_rewind(bench: Bench, tmp_path: Path) -> None:
    """A person saves a file between the look at the files and the switch."""
    session = await _written(bench)

    class Busy(GitSnapshots):
        async def restore(self, workspace_id: str, folder: Path, present: str, target: str) -> Restored:
            bench.write("a", "saved meanwhile")()
            return await super().restore(workspace_id, folder, present, target)

    service = RewindService(bench.ledger, bench.guard._clock, bench.turns._ids, Busy(tmp_path / "snapshots"))
    done = await service.rewind(RewindTo(session, "a", 1, files=True))
    assert done.restored is not None and done.restored.kept == ("a",)
    assert bench.files() == {"a": "saved meanwhile", "b": "1", "kept": "0"}


async def test_a_turn_that_begins_meanwhile(bench: Bench, tmp_path: Path) -> None:
    session = await _written(bench)

    class Slow(GitSnapshots):
        async def compose(self, workspace_id: str, base: str, entries):  # type: ignore[no-untyped-def]
            await bench.turn(session, "another")
            return await super().compose(workspace_id, base, entries)

    service = RewindService(bench.ledger, bench.guard._clock, bench.turns._ids, Slow(tmp_path / "snapshots"))
    with pytest.raises(WorkspaceChanged, match="went on"):
        await service.rewind(RewindTo(session, "a", 1, files=True))
    assert len(await _live(bench, session)) == 4
