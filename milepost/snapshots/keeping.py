"""Repositories of snapshots as files: still copies, and taking away states that nothing mentions."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from milepost.snapshots.git import Git, find_git, timed_out
from milepost.snapshots.shadow import Shadow

LOCK_SECONDS = 120.0
WORK_SECONDS = 1800.0
_POLL_SECONDS = 0.05
_COPY = re.compile(r"\.copy-[0-9a-f]{16}")
_TREE = re.compile(r"[0-9a-f]{40}")
_KEPT = ("HEAD", "config", "packed-refs", "info", "refs", "objects")
"""What is truth in a repository. Index and remembered state are made anew."""


@dataclass(frozen=True, slots=True)
class State:
    """A state that is kept, and when it was last taken, in seconds since the epoch."""

    repository: Path
    tree: str
    at: float


def repositories(root: Path) -> list[Path]:
    """Every Workspace's repository. Raises OSError."""
    return sorted(path for path in root.glob("*.git") if path.is_dir()) if root.is_dir() else []


@contextmanager
def still_copy(repository: Path) -> Iterator[list[tuple[str, Path]]]:
    """The files of a repository as they are at one moment, by their names below the root of all repositories.

    Objects and references are never changed in place, so links to them are a copy; snapshots of this Workspace wait
    while the links are made. Raises OSError, SnapshotFailed.
    """
    copy = repository.parent / f".copy-{secrets.token_hex(8)}"
    try:
        with _locked(repository):
            files = _link(repository, copy)
        yield files
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _link(repository: Path, copy: Path) -> list[tuple[str, Path]]:
    files: list[tuple[str, Path]] = []
    for top in _KEPT:
        found = repository / top
        for path in [found] if found.is_file() else sorted(found.rglob("*")):
            inside = path.relative_to(repository)
            if path.is_file() and not path.name.startswith("tmp_") and path.suffix != ".lock":
                target = copy / inside
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                try:
                    os.link(path, target)
                except OSError:  # a file system without links
                    shutil.copyfile(path, target)
                files.append((f"{repository.name}/{inside.as_posix()}", target))
    return files


def complete(root: Path) -> None:
    """Make the empty folders that git expects in restored repositories. Raises OSError."""
    for repository in repositories(root):
        for folder in ("info", "objects", "objects/info", "objects/pack", "refs", "refs/heads"):
            (repository / folder).mkdir(mode=0o700, exist_ok=True)


def states(root: Path) -> Iterator[State]:
    """Every state that is kept, but for each Workspace's last one. Raises OSError."""
    for repository in repositories(root):
        present = _present(repository)
        folder = repository / "refs" / "snapshots"
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if _TREE.fullmatch(path.name) and path.name != present:
                with contextlib.suppress(FileNotFoundError):
                    yield State(repository, path.name, path.stat().st_mtime)


def forget(repository: Path, trees: set[str], older_than: float) -> int:
    """Let go of these states unless they were taken again since; return how many. Objects of theirs alone go too.

    Raises SnapshotFailed, OSError.
    """
    with _locked(repository) as lock:
        git = Git(find_git(), repository, repository, time.monotonic() + WORK_SECONDS, lock)
        Shadow(git, 0).open()
        gone = 0
        for state in states(repository.parent):
            wanted = state.repository == repository and state.tree in trees
            if wanted and state.at < older_than:
                git.run("update-ref", "-d", f"refs/snapshots/{state.tree}")
                gone += 1
        if gone:
            git.run("prune", f"--expire={int(older_than)}")
        return gone


def _present(repository: Path) -> str | None:
    git = Git("git", repository, repository, 0.0, -1)
    return Shadow(git, 0).present()


def leftovers(root: Path, older_than: float) -> Iterator[Path]:
    """Copies of backups that were killed. Raises OSError."""
    for path in root.iterdir() if root.is_dir() else ():
        if _COPY.fullmatch(path.name) and path.stat().st_mtime < older_than:
            yield path


@contextmanager
def _locked(repository: Path) -> Iterator[int]:
    deadline = time.monotonic() + LOCK_SECONDS
    lock = os.open(repository.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise timed_out() from None
                time.sleep(_POLL_SECONDS)
        yield lock
    finally:
        os.close(lock)
