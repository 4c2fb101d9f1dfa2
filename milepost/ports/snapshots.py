"""The snapshot port: states of a Workspace's files, kept outside of it.

A snapshot is named by the id of its tree: equal states have equal ids. Paths are relative to the Workspace; bytes that
are no UTF-8 are lone surrogates (`os.fsdecode`). Files that the Workspace's ignore rules name are no part of a state,
nor is what git itself keeps (`.git`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state. `omitted` are files that could not be taken: unreadable or over the size limit (the first 100)."""

    tree: str
    omitted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a state: git's mode (`100644`, `100755`, `120000`) and the id of its content."""

    mode: str
    content: str


@dataclass(frozen=True, slots=True)
class FileChange:
    """A path that differs between two states; None where it does not exist."""

    path: str
    before: Entry | None
    after: Entry | None


@dataclass(frozen=True, slots=True)
class DiffLine:
    """`kind` is ' ' (both), '-' or '+'. `text` has no line end; `ended` is False for a last line without one."""

    kind: str
    text: str
    ended: bool = True


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines count from 1. `heading` is what stands behind the second @@."""

    old_start: int
    old_lines: int
    new_start: int
    new_lines: int
    heading: str
    lines: tuple[DiffLine, ...]


@dataclass(frozen=True, slots=True)
class FileDiff:
    """One file of a diff. `status`: added, deleted, modified, type_changed.

    `binary` files and those behind the bound (`truncated`) have no hunks; `additions` and `deletions` count lines.
    """

    path: str
    status: str
    old_mode: str | None
    new_mode: str | None
    binary: bool
    additions: int
    deletions: int
    hunks: tuple[Hunk, ...] = ()
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did: paths written or removed, and paths that could not be, with the reason."""

    changed: int
    failed: tuple[tuple[str, str], ...] = ()


class Snapshots(Protocol):
    """Snapshots of this host's Workspaces. Every method raises SnapshotFailed; those given ids, SnapshotNotFound."""

    async def check(self) -> str:
        """What makes snapshots here. Raises SnapshotFailed with what to do if nothing can."""

    async def take(self, workspace_id: str, folder: Path) -> Snapshot:
        """The present state of the folder, kept for good."""

    async def changes(self, workspace_id: str, before: str, after: str) -> list[FileChange]:
        """Paths that differ, in order."""

    async def diff(self, workspace_id: str, before: str, after: str) -> list[FileDiff]:
        """Files that differ with their hunks, in order, bounded."""

    async def entries(self, workspace_id: str, tree: str, paths: Sequence[str]) -> dict[str, Entry | None]:
        """What these paths are in a state."""

    async def content(self, workspace_id: str, content: str, limit: int) -> bytes | None:
        """The bytes of a file's content (a link's target); None if there are more than `limit`."""

    async def compose(self, workspace_id: str, base: str, entries: dict[str, Entry | None]) -> str:
        """The state `base` with these paths replaced (None: removed)."""

    async def restore(self, workspace_id: str, folder: Path, present: str, target: str) -> Restored:
        """Turn the folder from the state `present` into `target`, touching only paths that differ between them.

        Raises WorkspaceChanged if a file that is to be touched is not as `present` has it; nothing is changed then.
        """

    async def export(self, workspace_id: str, tree: str, folder: Path) -> int:
        """Write a state into a folder that does not exist or is empty; return the number of files."""
