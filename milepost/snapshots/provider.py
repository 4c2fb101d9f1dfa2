"""`ports.snapshots.Snapshots` with git: work in threads, one at a time for each Workspace, within a time limit."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from milepost.domain.errors import SnapshotFailed
from milepost.ports.snapshots import Entry, FileChange, FileDiff, Restored, Snapshot
from milepost.snapshots.git import Git, find_git, timed_out, version_of
from milepost.snapshots.shadow import Shadow

T = TypeVar("T")

POLL_SECONDS = 0.02
MAX_THREADS = 4
_WORKSPACE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_TREE = re.compile(r"[0-9a-f]{40}")


class GitSnapshots:
    """Repositories below `root`, one for each Workspace. Nothing is created before a snapshot is taken.

    `seconds` bounds each operation; files over `max_file_bytes` are left out of states and named.
    """

    def __init__(self, root: Path, *, seconds: float = 60.0, max_file_bytes: int = 256 * 1024**2) -> None:
        self._root = root
        self._seconds = seconds
        self._max = max_file_bytes
        self._program: str | None = None
        # Of its own, so that slow disks under Workspaces do not hold up what else runs in threads.
        self._threads = ThreadPoolExecutor(MAX_THREADS, "snapshots")

    async def check(self) -> str:
        return f"git {await asyncio.to_thread(lambda: version_of(find_git()))}"

    async def take(self, workspace_id: str, folder: Path) -> Snapshot:
        return await self._on(workspace_id, folder, lambda shadow: shadow.take())

    async def changes(self, workspace_id: str, before: str, after: str) -> list[FileChange]:
        def work(shadow: Shadow) -> list[FileChange]:
            shadow.require(before, after)
            return [change for _, change in shadow.raw(before, after)]

        return await self._on(workspace_id, None, work, before, after)

    async def diff(self, workspace_id: str, before: str, after: str) -> list[FileDiff]:
        def work(shadow: Shadow) -> list[FileDiff]:
            shadow.require(before, after)
            return shadow.diff(before, after)

        return await self._on(workspace_id, None, work, before, after)

    async def entries(self, workspace_id: str, tree: str, paths: Sequence[str]) -> dict[str, Entry | None]:
        def work(shadow: Shadow) -> dict[str, Entry | None]:
            shadow.require(tree)
            return shadow.entries(tree, paths)

        return await self._on(workspace_id, None, work, tree)

    async def content(self, workspace_id: str, content: str, limit: int) -> bytes | None:
        return await self._on(workspace_id, None, lambda shadow: shadow.content(content, limit), content)

    async def compose(self, workspace_id: str, base: str, entries: dict[str, Entry | None]) -> str:
        def work(shadow: Shadow) -> str:
            shadow.require(base)
            return shadow.compose(base, entries) if entries else base

        return await self._on(workspace_id, None, work, base)

    async def restore(self, workspace_id: str, folder: Path, present: str, target: str) -> Restored:
        def work(shadow: Shadow) -> Restored:
            shadow.require(present, target)
            return shadow.restore(present, target)

        return await self._on(workspace_id, folder, work, present, target)

    async def export(self, workspace_id: str, tree: str, folder: Path) -> int:
        def work(shadow: Shadow) -> int:
            shadow.require(tree)
            return shadow.export(tree, folder)

        return await self._on(workspace_id, None, work, tree)

    async def _on(self, workspace_id: str, folder: Path | None, work: Callable[[Shadow], T], *trees: str) -> T:
        if not _WORKSPACE_ID.fullmatch(workspace_id) or not all(_TREE.fullmatch(tree) for tree in trees):
            raise SnapshotFailed("A snapshot's name has another form.")
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._run, workspace_id, folder, work)
        except OSError as error:
            raise SnapshotFailed(f"The snapshots cannot be used: {error.strerror or error}.") from error

    def _run(self, workspace_id: str, folder: Path | None, work: Callable[[Shadow], T]) -> T:
        deadline = time.monotonic() + self._seconds
        if self._program is None:
            program = find_git()
            version_of(program)
            self._program = program
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = self._root / f"{workspace_id}.git"
        lock = os.open(self._root / f"{workspace_id}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(lock, deadline)
            git = Git(self._program, directory, folder or directory, deadline, lock)
            shadow = Shadow(git, self._max)
            shadow.open()
            return work(shadow)
        finally:
            os.close(lock)


def _lock(handle: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise timed_out() from None
            time.sleep(POLL_SECONDS)
