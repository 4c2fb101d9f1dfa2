"""Running git so that nothing a Workspace holds can steer it.

A Workspace is written by agents. Git runs what configuration and hooks of a repository name (fsmonitor, filters, text
conversion, hooks, aliases), so it is never run on the Workspace's own repository: it works on one of ours (`GIT_DIR`),
with the Workspace as its work tree, with no configuration but ours and no variable of this process's environment.
Attributes that a Workspace sets are overruled by `info/attributes` of our repository, which has the highest precedence.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from milepost.domain.errors import SnapshotFailed

INSTALL = "Install git from your distribution: apt-get install git"
OLDEST = (2, 30)
MAX_OUTPUT_BYTES = 512 * 1024 * 1024
"""Of one command; more is a Workspace that no snapshot is made of."""

_SAFE = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.attributesFile=/dev/null",
    "core.autocrlf=false",
    "core.safecrlf=false",
    "core.quotePath=true",
    "core.symlinks=true",
    "core.fileMode=true",
    "core.ignoreCase=false",
    "core.precomposeUnicode=false",
    # On Linux `git~1` is a name like any other; `.git` itself is refused whatever these say.
    "core.protectNTFS=false",
    # What a snapshot needs is on disk before its id is recorded; one flush for many files.
    "core.fsync=loose-object,index,reference",
    "core.fsyncMethod=batch",
    "core.looseCompression=1",
    "core.bigFileThreshold=16m",
    "index.threads=true",
    "diff.ignoreSubmodules=all",
    "diff.external=",
    "protocol.allow=never",
    "gc.auto=0",
    "maintenance.auto=false",
)
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/opt/homebrew/bin",
    "LC_ALL": "C.UTF-8",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
}


def find_git() -> str:
    """The path of git. Raises SnapshotFailed without a usable one."""
    program = shutil.which("git")
    if program is None:
        raise SnapshotFailed("git is not installed, so no snapshots of Workspaces can be made.", fix=INSTALL)
    return program


def version_of(program: str) -> str:
    """The version, like `2.39.5`. Raises SnapshotFailed for one that is too old."""
    try:
        done = subprocess.run(  # noqa: S603
            [program, "--version"], capture_output=True, timeout=20, check=True, env=_ENVIRONMENT, cwd="/"
        )
        found = done.stdout.decode("ascii", "replace").split()[2]
        parts = tuple(int(part) for part in found.split(".")[:2])
    except (OSError, subprocess.SubprocessError, IndexError, ValueError) as error:
        raise SnapshotFailed(f"{program} does not tell its version ({type(error).__name__}).", fix=INSTALL) from error
    if parts < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise SnapshotFailed(f"git {found} is too old for snapshots; at least {oldest} is needed.", fix=INSTALL)
    return found


@dataclass
class Git:
    """Git on one repository of ours, with a folder as its work tree. `deadline` is of `time.monotonic`.

    `lock` is an open file whose advisory lock the caller holds: a child inherits it, so that the lock lasts as long as
    a child that outlives this process.
    """

    program: str
    directory: Path
    work_tree: Path
    deadline: float
    lock: int
    index: Path | None = None
    excludes: Path | None = None
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.environment = {
            **_ENVIRONMENT,
            "HOME": str(self.directory),
            "GIT_DIR": str(self.directory),
            "GIT_WORK_TREE": str(self.work_tree),
            "GIT_INDEX_FILE": str(self.index or self.directory / "index"),
        }

    def run(self, *arguments: str, data: bytes | None = None) -> bytes:
        """Standard output of a git command. Raises SnapshotFailed if it fails or the time is over."""
        code, out, err = self.attempt(*arguments, data=data)
        if code != 0:
            raise SnapshotFailed(f"git {arguments[0]} failed: {_short(err)}")
        return out

    def attempt(self, *arguments: str, data: bytes | None = None) -> tuple[int, bytes, bytes]:
        """(exit code, output, errors). Raises SnapshotFailed if the time is over or git cannot be run."""
        settings = [*_SAFE, f"core.excludesFile={self.excludes or '/dev/null'}"]
        options = [part for setting in settings for part in ("-c", setting)]
        remaining = self.deadline - time.monotonic()
        if remaining <= 0:
            raise timed_out()
        try:
            done = subprocess.run(  # noqa: S603
                [self.program, *options, *arguments],
                input=data if data is not None else b"",
                capture_output=True,
                timeout=remaining,
                check=False,
                env=self.environment,
                cwd=self.work_tree if self.work_tree.is_dir() else self.directory,
                pass_fds=(self.lock,),
            )
        except subprocess.TimeoutExpired as error:
            raise timed_out() from error
        except OSError as error:
            raise SnapshotFailed(f"git cannot be run: {error.strerror or error}.", fix=INSTALL) from error
        if len(done.stdout) > MAX_OUTPUT_BYTES:
            raise SnapshotFailed("The Workspace has too many files for a snapshot.")
        return done.returncode, done.stdout, done.stderr


def timed_out() -> SnapshotFailed:
    """The refusal of what takes too long."""
    return SnapshotFailed(
        "The snapshot of the Workspace took too long and was given up.",
        fix="Name large generated folders in .gitignore, or raise snapshots.seconds.",
    )


def split(data: bytes) -> list[bytes]:
    """The NUL-terminated items of an output."""
    return [item for item in data.split(b"\0") if item]


def joined(items: Sequence[bytes]) -> bytes:
    """Items as NUL-terminated input."""
    return b"".join(item + b"\0" for item in items)


def _short(err: bytes) -> str:
    text = os.fsdecode(err).encode("utf-8", "replace").decode("utf-8", "replace").strip()
    return " ".join(text.split())[:500] or "no reason given"
