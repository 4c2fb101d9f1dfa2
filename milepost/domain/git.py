"""Git work in a Session's sandbox: what a repository looks like, and what people did to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from milepost.domain.content import Content

HUNK_ID_LENGTH = 16
MAX_PATHS = 1000
MAX_HUNKS = 200


class GitSide(StrEnum):
    """Which two states a diff is between."""

    WORKTREE = "worktree"
    """The index and the files."""
    STAGED = "staged"
    """HEAD and the index."""
    HEAD = "head"
    """HEAD and the files."""


class GitAction(StrEnum):
    STAGE = "stage"
    UNSTAGE = "unstage"
    DISCARD = "discard"
    COMMIT = "commit"
    SWITCH = "switch"
    CREATE_BRANCH = "create_branch"
    DELETE_BRANCH = "delete_branch"


@dataclass(frozen=True, slots=True)
class FileState:
    """A file that is not as in HEAD. `index` and `worktree` are git's letters: M, A, D, R, C, T, U, `.` unchanged, `?`.

    `path` may hold bytes that are no UTF-8 as surrogates. `before` is its path in HEAD if it was renamed or copied.
    """

    path: str
    index: str
    worktree: str
    before: str | None = None
    conflict: bool = False
    submodule: bool = False


@dataclass(frozen=True, slots=True)
class GitStatus:
    """`branch` None is a detached HEAD, `commit` None a branch without commits. `under_way`: merge, rebase and such.

    `ahead` and `behind` are None without an upstream branch. `complete` is False if there are more files.
    """

    branch: str | None
    commit: str | None
    upstream: str | None = None
    ahead: int | None = None
    behind: int | None = None
    under_way: tuple[str, ...] = ()
    files: tuple[FileState, ...] = ()
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Hunk:
    """Changed lines with their surroundings. `hunk_id` depends on the file and the lines, not on their numbers."""

    hunk_id: str
    header: str
    text: str


@dataclass(frozen=True, slots=True)
class FileDiff:
    """`status` is git's letter; `before` the former path. A binary file, or a changed mode alone, has no hunks."""

    path: str
    status: str
    before: str | None = None
    old_mode: str | None = None
    new_mode: str | None = None
    binary: bool = False
    hunks: tuple[Hunk, ...] = ()
    head: str = field(default="", repr=False)
    """The lines of the patch before its first hunk."""


@dataclass(frozen=True, slots=True)
class Branch:
    name: str
    commit: str
    current: bool
    upstream: str | None
    subject: str


@dataclass(frozen=True, slots=True)
class Commit:
    """`at` is the committer's time, seconds since the epoch."""

    commit: str
    parents: tuple[str, ...]
    author: str
    email: str
    at: int
    subject: str


@dataclass(frozen=True, slots=True)
class GitDone:
    """A person's Git work in the sandbox. `commit` is what came to be; `kept` a patch of what was thrown away.

    `git apply` of `kept` brings it back. At most 100 `paths` are named.
    """

    TYPE: ClassVar[str] = "git.done"
    VERSION: ClassVar[int] = 1
    operation_id: str
    action: GitAction
    by: str
    paths: tuple[str, ...] = ()
    hunks: int = 0
    branch: str | None = None
    commit: str | None = None
    message: str | None = None
    kept: Content | None = None
