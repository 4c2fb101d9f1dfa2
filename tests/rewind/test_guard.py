"""What turns record of their Workspace's files: snapshots around calls, who changed what, and who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from milepost.domain.errors import SnapshotFailed, WorkspaceBusy
from milepost.domain.events import WorkspaceSnapshotted
from milepost.domain.providers import ScriptedProvider
from milepost.domain.turns import TurnState, TurnStatus
from milepost.domain.workspaces import LeasePurpose
from milepost.ports.snapshots import Snapshot
from milepost.providers.gateway import Gateway
from milepost.services.changes import ChangesService
from milepost.services.workspaces import leased
from milepost.snapshots import GitSnapshots
from milepost.storage import FileBlobStore
from milepost.temporal.client import TemporalAddress
from tests.support.databases import OpenLedger
from tests.support.folders import FolderSandboxes
from tests.support.temporal import Stack, build_stack
from tests.turns.conftest import NoSecrets
from tests.turns.test_turns import call, events_of, script


class Watched(GitSnapshots):
    """Lets a test act right before the n-th state is taken, as a person who works beside the turn does."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.taken = 0
        self.acts: dict[int, Callable[[], object]] = {}

    async def take(self, workspace_id: str, folder: Path) -> Snapshot:
        self.taken += 1
        act = self.acts.pop(self.taken, None)
        if act is not None:
            act()
        return await super().take(workspace_id, folder)


@pytest.fixture
def snapshots(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "snapshots")


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    gateway = Gateway({"scripted": ScriptedProvider("scripted")}, NoSecrets())
    yield gateway
    await gateway.close()


@pytest.fixture
def sandboxes() -> FolderSandboxes:
    return FolderSandboxes()


@pytest.fixture
async def stack(
    opened: OpenLedger,
    gateway: Gateway,
    sandboxes: FolderSandboxes,
    snapshots: Watched,
    temporal_address: TemporalAddress,
    tmp_path: Path,
) -> Stack:
    blobs = FileBlobStore(tmp_path / "blobs")
    return await build_stack(
        opened.ledger, opened.notifier, blobs, gateway, sandboxes, temporal_address, snapshots=snapshots
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def bash(*commands: str) -> str:
    """A turn that runs these commands, one a round."""
    return script(*({"calls": [call("bash", command=command)]} for command in commands), {"text": "Done."})


async def snapshots_of(stack: Stack, session: str) -> list[WorkspaceSnapshotted]:
    return [event for event in await events_of(stack, session) if isinstance(event, WorkspaceSnapshotted)]


@pytest.fixture
def changes(stack: Stack) -> ChangesService:
    return ChangesService(stack.parts.ledger, stack.parts.snapshots)


async def test_a_turn_s_changes_by_shell_and_by_file_tool(stack: Stack, changes: ChangesService, folder: Path) -> None:
    (folder / "a").write_text("one\n")
    session = await stack.open(folder)
    responses = script(
        {"calls": [call("bash", command="write a two && write made/by/shell x")]},
        {"calls": [call("write_file", path="b", content="b\n")]},
        {"calls": [call("bash", command="touch nothing")]},
        {"text": "Done."},
    )
    async with stack.worker():
        first = (await stack.send(session, script=responses)).turn.turn_id
        assert (await stack.ended(first)).state is TurnState.COMPLETED
        second = (await stack.send(session, script=bash("rm b"))).turn.turn_id
        await stack.ended(second)
        third = (await stack.send(session, script=script({"calls": [call("list_dir")]}, {"text": "x"}))).turn.turn_id
        await stack.ended(third)
    taken = await snapshots_of(stack, session)
    assert [event.moment for event in taken] == ["before", "after", "after", "after", "before", "after"]
    # The state after one turn is the one before the next: nobody was there in between.
    assert taken[4].tree == taken[3].tree == taken[2].tree and taken[4].previous_turn == first
    found = await changes.of_turn(first)
    assert {file.path: file.status for file in found.files} == {"a": "modified", "b": "added", "made/by/shell": "added"}
    assert (found.outside_before, found.outside_during, found.unclear, found.shared) == ((), (), (), ())
    gone = await changes.of_turn(second)
    assert [(file.path, file.status) for file in gone.files] == [("b", "deleted")]
    read = await changes.of_turn(third)
    assert read.before is None and read.files == ()
    workspace = (await stack.sessions.get(session)).workspace
    assert await stack.parts.ledger.read(lambda tx: tx.workspaces.holder(workspace, 0)) is None


async def test_what_a_person_changes_is_not_the_turn_s(
    stack: Stack, changes: ChangesService, snapshots: Watched, folder: Path
) -> None:
    (folder / "mine").write_text("1\n")
    session = await stack.open(folder)
    async with stack.worker():
        first = (await stack.send(session, script=bash("write first x"))).turn.turn_id
        await stack.ended(first)
        (folder / "mine").write_text("2\n")
        # Before the second call, while the model thinks.
        snapshots.acts[snapshots.taken + 3] = lambda: (folder / "both").write_text("person\n")
        commands = ("write both turn && write early x", "write both again && write late x")
        second = (await stack.send(session, script=bash(*commands))).turn.turn_id
        await stack.ended(second)
    found = await changes.of_turn(second)
    assert found.outside_before == ("mine",) and found.previous_turn == first
    assert found.outside_during == ("both",) and found.shared == ("both",)
    files = {file.path: [line.text for hunk in file.hunks for line in hunk.lines] for file in found.files}
    assert files == {"both": ["again"], "early": ["x"], "late": ["x"]}


async def test_two_sessions_wait_for_each_other(
    stack: Stack, changes: ChangesService, sandboxes: FolderSandboxes, folder: Path
) -> None:
    one, two = await stack.open(folder), await stack.open(folder)
    inner = folder / "inner"
    inner.mkdir()
    three = await stack.open(inner)
    async with stack.worker():
        holding = (await stack.send(one, script=bash("write a 1", "hang"))).turn.turn_id
        while "hang" not in "".join(sandboxes.by_session[one].commands() if one in sandboxes.by_session else ()):
            await asyncio.sleep(0.02)
        reading = (await stack.send(two, script=script({"calls": [call("list_dir")]}, {"text": "x"}))).turn.turn_id
        assert (await stack.ended(reading)).state is TurnState.COMPLETED, "who only reads need not wait"
        waiting = [(await stack.send(session, script=bash("write b 2"))).turn.turn_id for session in (two, three)]
        for turn_id in waiting:
            while (await stack.turns.get(turn_id)).status is not TurnStatus.WAITING_FOR_WORKSPACE:
                await asyncio.sleep(0.02)
        assert not (folder / "b").exists()
        workspace = (await stack.sessions.get(two)).workspace
        with pytest.raises(WorkspaceBusy, match=holding):
            async with leased(stack.parts.ledger, stack.parts.clock, workspace, "rwd_1", LeasePurpose.REWIND, two):
                raise AssertionError("the turn holds it")
        await stack.turns.stop(holding, actor="test")
        assert (await stack.ended(holding)).state is TurnState.STOPPED
        for turn_id in waiting:
            assert (await stack.ended(turn_id)).state is TurnState.COMPLETED
    assert [file.path for file in (await changes.of_turn(holding)).files] == ["a"]
    assert [file.path for file in (await changes.of_turn(waiting[0])).files] == ["b"]
    assert [file.path for file in (await changes.of_turn(waiting[1])).files] == ["b"]


async def test_a_turn_can_be_stopped_while_it_waits(stack: Stack, folder: Path) -> None:
    session = await stack.open(folder)
    workspace = (await stack.sessions.get(session)).workspace
    async with stack.worker():
        async with leased(stack.parts.ledger, stack.parts.clock, workspace, "frk_1", LeasePurpose.FORK, session):
            waiting = (await stack.send(session, script=bash("write a 1"))).turn.turn_id
            while (await stack.turns.get(waiting)).status is not TurnStatus.WAITING_FOR_WORKSPACE:
                await asyncio.sleep(0.02)
            await stack.turns.stop(waiting, actor="test")
            assert (await stack.ended(waiting)).state is TurnState.STOPPED
        again = (await stack.send(session, script=bash("write a 1"))).turn.turn_id
        assert (await stack.ended(again)).state is TurnState.COMPLETED
    assert (folder / "a").exists()


async def test_a_snapshot_that_fails_is_recorded_and_the_turn_goes_on(
    stack: Stack, changes: ChangesService, snapshots: Watched, folder: Path
) -> None:
    def fail() -> None:
        raise SnapshotFailed("The disk is full.")

    session = await stack.open(folder)
    snapshots.acts[2] = fail
    async with stack.worker():
        turn = (await stack.send(session, script=bash("write a 1", "write b 1"))).turn.turn_id
        assert (await stack.ended(turn)).state is TurnState.COMPLETED
        later = (await stack.send(session, script=bash("write c 1"))).turn.turn_id
        await stack.ended(later)
    assert [event.error for event in await snapshots_of(stack, session)] == [None, "The disk is full.", None, None]
    found = await changes.of_turn(turn)
    assert found.problems == ("The disk is full.",) and found.files == () and len(found.lost_calls) == 2
    # What the turn did after its last snapshot is not laid to the next one.
    after = await changes.of_turn(later)
    assert [file.path for file in after.files] == ["c"] and set(after.outside_before) == {"a", "b"}


async def test_a_killed_command_s_files_are_the_turn_s(
    stack: Stack, changes: ChangesService, sandboxes: FolderSandboxes, folder: Path
) -> None:
    session = await stack.open(folder)
    async with stack.worker():
        turn = (await stack.send(session, script=bash("hang && write a 1"))).turn.turn_id
        while session not in sandboxes.by_session or not sandboxes.by_session[session].commands():
            await asyncio.sleep(0.02)
        (folder / "half").write_text("written before it was killed")
        await stack.turns.stop(turn, actor="test")
        assert (await stack.ended(turn)).state is TurnState.STOPPED
    assert [file.path for file in (await changes.of_turn(turn)).files] == ["half"]


async def test_our_own_secrets_are_not_in_a_diff(stack: Stack, folder: Path) -> None:
    session = await stack.open(folder)
    async with stack.worker():
        turn = (await stack.send(session, script=bash("write .env KEY=sk-secret-value"))).turn.turn_id
        await stack.ended(turn)
    changes = ChangesService(
        stack.parts.ledger, stack.parts.snapshots, lambda text: text.replace("sk-secret-value", "[hidden]")
    )
    (file,) = (await changes.of_turn(turn)).files
    assert [line.text for line in file.hunks[0].lines] == ["KEY=[hidden]"]
