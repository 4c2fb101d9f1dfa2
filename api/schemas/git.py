"""Git work in a Session's sandbox."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.schemas.approvals import Person
from api.schemas.base import Body, Query, Shape, at_most
from milepost.domain.git import (
    MAX_HUNKS,
    MAX_PATHS,
    Branch,
    Commit,
    FileDiff,
    FileState,
    GitAction,
    GitDone,
    GitSide,
    GitStatus,
    Hunk,
)
from milepost.services.git import NewCommit, Picked

MAX_SHOWN_FILES = 300
MAX_SHOWN_BYTES = 4 * 1024 * 1024
"""Of the hunks on one page."""
Revision = Annotated[str, *at_most(500)]
ShortText = Annotated[str, *at_most(400)]
"""Of an address, which is 64 KiB long at most."""
MAX_QUERY_FILES = 5
GitPath = Annotated[str, *at_most(4096)]


def shown(path: str) -> str:
    """A path as text. Bytes of it that are no UTF-8 are shown as `\\xNN`."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class GitPick(Body):
    """Whole files, or hunks by their ids; one of the two."""

    paths: Annotated[list[GitPath], Field(max_length=MAX_PATHS, default_factory=list)]
    hunks: Annotated[
        list[Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]], Field(max_length=MAX_HUNKS, default_factory=list)
    ]
    actor: Person | None = None

    def picked(self, by: str) -> Picked:
        """What the service takes."""
        return Picked(by, tuple(self.paths), tuple(self.hunks))


class GitCommitBody(Body):
    """A commit of what is staged. `verify` false: the repository's hooks do not run."""

    message: Annotated[str, *at_most(65_536)]
    author_name: Annotated[str, *at_most(200)] | None = None
    author_email: Annotated[str, *at_most(320)] | None = None
    amend: bool = False
    verify: bool = True
    actor: Person | None = None

    def new(self, by: str) -> NewCommit:
        """What the service takes."""
        author = None
        if self.author_name and self.author_email:
            author = (self.author_name, self.author_email)
        return NewCommit(by, self.message, author, self.amend, self.verify)


class GitCheckout(Body):
    """A branch to check out; with `detach` any commit."""

    target: Revision
    detach: bool = False
    actor: Person | None = None


class GitNewBranch(Body):
    """A new branch, from `start` or from HEAD."""

    name: Revision
    start: Revision | None = None
    checkout: bool = True
    actor: Person | None = None


class GitDropBranch(Body):
    """A branch to delete. `force`: also if it is not merged."""

    name: Revision
    force: bool = False
    actor: Person | None = None


class GitDiffQuery(Query):
    """What is compared: the two states of `side`, or `from` with `to` or the files. `after`: files to leave out."""

    side: GitSide = GitSide.WORKTREE
    file: Annotated[tuple[ShortText, ...], Field(max_length=MAX_QUERY_FILES)] = ()
    from_: Annotated[ShortText | None, Field(alias="from")] = None
    to: ShortText | None = None
    after: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    limit: Annotated[int, Field(ge=1, le=MAX_SHOWN_FILES)] = 100


class GitLogQuery(Query):
    """Commits from `revision` on."""

    revision: ShortText = "HEAD"
    skip: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    limit: Annotated[int, Field(ge=1, le=500)] = 50


class GitFileShape(Shape):
    """A file that is not as in HEAD; `index` and `worktree` are git's letters, `.` is unchanged, `?` unknown to git."""

    path: str
    before: str | None
    index: str
    worktree: str
    conflict: bool
    submodule: bool

    @classmethod
    def of(cls, found: FileState) -> GitFileShape:
        before = None if found.before is None else shown(found.before)
        return cls(
            path=shown(found.path),
            before=before,
            index=found.index,
            worktree=found.worktree,
            conflict=found.conflict,
            submodule=found.submodule,
        )


class GitStatusShape(Shape):
    """`branch` null is a detached HEAD, `commit` null a branch without commits; `complete` false: there is more."""

    branch: str | None
    commit: str | None
    upstream: str | None
    ahead: int | None
    behind: int | None
    under_way: list[str]
    files: list[GitFileShape]
    complete: bool

    @classmethod
    def of(cls, found: GitStatus) -> GitStatusShape:
        return cls(
            branch=found.branch,
            commit=found.commit,
            upstream=found.upstream,
            ahead=found.ahead,
            behind=found.behind,
            under_way=list(found.under_way),
            files=[GitFileShape.of(each) for each in found.files],
            complete=found.complete,
        )


class GitHunkShape(Shape):
    hunk_id: str
    header: str
    text: str

    @classmethod
    def of(cls, found: Hunk) -> GitHunkShape:
        return cls(hunk_id=found.hunk_id, header=shown(found.header), text=shown(found.text))


class GitFileDiffShape(Shape):
    """A changed file. `left_out` are hunks that the page has no room for: ask for this file alone."""

    path: str
    before: str | None
    status: str
    old_mode: str | None
    new_mode: str | None
    binary: bool
    hunks: list[GitHunkShape]
    left_out: int


class GitDiffPage(Shape):
    """`total` files have changed; `next_after` goes on with the next ones."""

    files: list[GitFileDiffShape]
    total: int
    next_after: int | None

    @classmethod
    def of(cls, files: list[FileDiff], after: int, limit: int) -> GitDiffPage:
        room = MAX_SHOWN_BYTES
        page = []
        for found in files[after : after + limit]:
            hunks = []
            for hunk in found.hunks:
                room -= len(hunk.text)
                if room < 0:
                    break
                hunks.append(GitHunkShape.of(hunk))
            page.append(
                GitFileDiffShape(
                    path=shown(found.path),
                    before=None if found.before is None else shown(found.before),
                    status=found.status,
                    old_mode=found.old_mode,
                    new_mode=found.new_mode,
                    binary=found.binary,
                    hunks=hunks,
                    left_out=len(found.hunks) - len(hunks),
                )
            )
        more = after + len(page) < len(files)
        return cls(files=page, total=len(files), next_after=after + len(page) if more else None)


class GitBranchShape(Shape):
    name: str
    commit: str
    current: bool
    upstream: str | None
    subject: str

    @classmethod
    def of(cls, found: Branch) -> GitBranchShape:
        return cls(
            name=shown(found.name),
            commit=found.commit,
            current=found.current,
            upstream=found.upstream,
            subject=shown(found.subject),
        )


class GitBranchPage(Shape):
    branches: list[GitBranchShape]


class GitCommitShape(Shape):
    """`at` is seconds since the epoch."""

    commit: str
    parents: list[str]
    author: str
    email: str
    at: int
    subject: str

    @classmethod
    def of(cls, found: Commit) -> GitCommitShape:
        return cls(
            commit=found.commit,
            parents=list(found.parents),
            author=shown(found.author),
            email=shown(found.email),
            at=found.at,
            subject=shown(found.subject),
        )


class GitLogPage(Shape):
    commits: list[GitCommitShape]


class GitDoneShape(Shape):
    """What was done. `kept`: a patch of what was discarded can be had by `operation_id`."""

    operation_id: str
    action: GitAction
    branch: str | None
    commit: str | None
    kept: bool

    @classmethod
    def of(cls, found: GitDone) -> GitDoneShape:
        return cls(
            operation_id=found.operation_id,
            action=found.action,
            branch=found.branch,
            commit=found.commit,
            kept=found.kept is not None,
        )
