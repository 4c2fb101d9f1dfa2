"""One Workspace's repository of snapshots: taking a state, comparing states, putting one back."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from milepost.domain.errors import SnapshotFailed, SnapshotNotFound, WorkspaceChanged
from milepost.ports.snapshots import Entry, FileChange, FileDiff, Restored, Snapshot
from milepost.snapshots.git import Git, joined, split
from milepost.snapshots.ignores import outer_patterns
from milepost.snapshots.patches import file_diffs, read_numbers, read_raw

MAX_OMITTED = 100
MAX_NESTING = 32
EMPTY_BLOB = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
_PLACEHOLDER = b".milepost-nested"
_ATTRIBUTES = "* -text !eol -filter -ident -working-tree-encoding !diff !merge\n"
"""Bytes are taken and put back as they are, whatever the Workspace's own attributes say."""
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tlogAllRefUpdates = false\n"


@dataclass(frozen=True, slots=True)
class _Found:
    """Paths by what to do with them: take (or drop, if they do not exist), drop, enter, leave out.

    `folders`: folders are where files were; what is in them shows after the files are dropped.
    """

    usable: list[bytes]
    gone: list[bytes]
    nested: list[bytes]
    omitted: tuple[str, ...]
    folders: bool


class Shadow:
    """Works on the repository behind `git`; the caller holds its lock. Everything here blocks."""

    def __init__(self, git: Git, max_file_bytes: int) -> None:
        self._git = git
        self._max = max_file_bytes
        self._folder = git.work_tree
        self._state = git.directory / "milepost-state.json"
        self._ignores = git.directory / "info" / "milepost-excludes"

    def open(self) -> None:
        """Make the repository if there is none; take away what a killed process left locked."""
        directory = self._git.directory
        if not (directory / "HEAD").exists():
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in ("info", "objects/info", "objects/pack", "refs/heads"):
                (directory / folder).mkdir(parents=True, exist_ok=True)
            _write(directory / "info" / "attributes", _ATTRIBUTES.encode())
            _write(directory / "config", _CONFIG.encode())
            _write(directory / "HEAD", b"ref: refs/heads/none\n")
        # The lock is ours, also against children of a process that was killed: nobody is at work here.
        for left in ("index.lock", "packed-refs.lock"):
            (directory / left).unlink(missing_ok=True)

    # --- taking -------------------------------------------------------------------------------------------------

    def take(self) -> Snapshot:
        """The present state. An index that cannot be used is made anew, once."""
        if not self._folder.is_dir():
            raise SnapshotFailed(
                f"The Workspace's folder {self._folder} does not exist.",
                fix="Put it back, or have its last known files in a new folder: "
                "milepost session fork SESSION --files --workspace DIR",
            )
        _write(self._ignores, outer_patterns(self._folder))
        self._git.excludes = self._ignores
        try:
            return self._take()
        except SnapshotFailed as error:
            if not (self._git.directory / "index").exists() or "took too long" in error.message:
                raise
            self.forget_index()
            return self._take()

    def present(self) -> str | None:
        """The state that was taken last, if it is known."""
        tree = self._read_state().get("tree")
        return tree if isinstance(tree, str) else None

    def forget_index(self) -> None:
        """Begin with an empty index: every file is read again."""
        self._state.unlink(missing_ok=True)
        (self._git.directory / "index").unlink(missing_ok=True)

    def _take(self) -> Snapshot:
        state = self._read_state()
        user_index = self._user_index()
        wanted = self._differing()
        if state.get("user_index") != user_index:
            wanted |= self._tracked_but_ignored()
        found = self._sorted_out(wanted)
        tree, omitted = state.get("tree"), tuple(state.get("omitted", ()))
        if tree and not found.usable and not found.gone and not found.nested and found.omitted == omitted:
            return Snapshot(self._keep(tree), omitted)
        self._state.unlink(missing_ok=True)
        omitted = self._update(found)
        tree = self._keep(self._git.run("write-tree").decode("ascii").strip())
        _write(self._state, json.dumps({"tree": tree, "user_index": user_index, "omitted": omitted}).encode())
        return Snapshot(tree, omitted)

    def _differing(self) -> set[bytes]:
        """Paths that are not as the index has them; with '/' at the end, repositories inside that were not entered."""
        return set(split(self._git.run("ls-files", "-z", "-o", "-m", "-d", "--exclude-standard")))

    def _update(self, found: _Found) -> tuple[str, ...]:
        """Bring these paths of the index up to date; return those that are left out."""
        omitted: set[str] = set()
        entered: set[bytes] = set()
        for _ in range(MAX_NESTING):
            dropped = [*found.gone, *map(os.fsencode, found.omitted)]
            if dropped:
                self._git.run("update-index", "-z", "--force-remove", "--stdin", data=joined(dropped))
            if found.usable:
                paths = joined(found.usable)
                self._git.run("update-index", "-z", "--add", "--remove", "--replace", "--stdin", data=paths)
            omitted.update(found.omitted)
            if not found.nested and not found.folders:
                break
            self._enter(found.nested)
            entered.update(found.nested)
            found = self._sorted_out(self._differing() - entered - set(map(os.fsencode, omitted)))
        return tuple(sorted(omitted))[:MAX_OMITTED]

    def _enter(self, nested: Iterable[bytes]) -> None:
        """Have git look into repositories inside the Workspace: it does where it knows of a file.

        Their files are taken as plain files. The entry that opens a folder is of no file: the next update drops it.
        """
        entries = [b"100644 %s\t%s%s" % (EMPTY_BLOB.encode(), path, _PLACEHOLDER) for path in nested]
        self._git.run("hash-object", "-w", "--stdin", data=b"")
        self._git.run("update-index", "-z", "--index-info", data=joined(entries))

    def _sorted_out(self, paths: Iterable[bytes]) -> _Found:
        found = _Found([], [], [], (), False)
        omitted: list[str] = []
        folders = False
        root = os.fsencode(self._folder)
        for path in sorted(paths):
            if path.endswith(b"/"):
                found.nested.append(path)
                continue
            where = os.path.join(root, path)  # noqa: PTH118 - bytes
            try:
                status = os.lstat(where)
            except (FileNotFoundError, NotADirectoryError):
                found.usable.append(path)
                continue
            except OSError:
                omitted.append(os.fsdecode(path))
                continue
            kind = stat.S_IFMT(status.st_mode)
            if kind in (stat.S_IFLNK, stat.S_IFDIR):
                folders = folders or kind == stat.S_IFDIR
                found.usable.append(path)
            elif kind != stat.S_IFREG:
                found.gone.append(path)
            elif status.st_size > self._max or not os.access(where, os.R_OK):
                omitted.append(os.fsdecode(path))
            else:
                found.usable.append(path)
        return replace(found, omitted=tuple(omitted), folders=folders)

    def _tracked_but_ignored(self) -> set[bytes]:
        """Files that the Workspace's repository tracks although a rule ignores them: they count as its files."""
        index = self._folder / ".git" / "index"
        if self._user_index() is None:
            return set()
        reader = Git(
            self._git.program, self._git.directory, self._folder, self._git.deadline, self._git.lock, index=index
        )
        code, out, _ = reader.attempt("ls-files", "-z", "-c")
        if code != 0 or not out:
            return set()  # another object format, a split index: such files are left out
        code, ignored, _ = self._git.attempt("check-ignore", "-z", "--stdin", "--no-index", data=out)
        root = os.fsencode(self._folder)
        return {path for path in split(ignored) if os.path.lexists(os.path.join(root, path))}  # noqa: PTH118

    def _user_index(self) -> list[int] | None:
        try:
            found = (self._folder / ".git" / "index").lstat()
        except OSError:
            return None
        return [found.st_ino, found.st_size, found.st_mtime_ns] if stat.S_ISREG(found.st_mode) else None

    def _keep(self, tree: str) -> str:
        """Name the tree, so that nothing collects it; one that is named already is as good as new."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._git.directory / "refs" / "snapshots" / tree)
            return tree
        self._git.run("update-ref", f"refs/snapshots/{tree}", tree)
        return tree

    def _read_state(self) -> dict[str, Any]:
        try:
            value = json.loads(self._state.read_bytes())
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    # --- comparing ----------------------------------------------------------------------------------------------

    def require(self, *trees: str) -> None:
        """Raise SnapshotNotFound unless these states are kept here."""
        for tree in trees:
            code, out, _ = self._git.attempt("cat-file", "-t", tree)
            if code != 0 or out.strip() != b"tree":
                raise SnapshotNotFound(
                    f"There is no snapshot {tree} of this Workspace on this host.",
                    fix="Snapshots lie in the data root of the host whose sandbox worked on the Workspace.",
                )

    def raw(self, before: str, after: str) -> list[tuple[str, FileChange]]:
        """What differs, with git's status letters."""
        return read_raw(self._git.run("diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", before, after))

    def entries(self, tree: str, paths: Sequence[str]) -> dict[str, Entry | None]:
        """What these paths are in a state."""
        found: dict[str, Entry | None] = dict.fromkeys(paths)
        for item in split(self._git.run("ls-tree", "-r", "-z", "--full-tree", tree)):
            described, path = item.split(b"\t", 1)
            name = os.fsdecode(path)
            if name in found:
                mode, _, content = described.decode("ascii").split(" ")
                found[name] = Entry(mode, content)
        return found

    def content(self, content: str, limit: int) -> bytes | None:
        """The bytes behind an id, unless there are too many."""
        if int(self._git.run("cat-file", "-s", content)) > limit:
            return None
        return self._git.run("cat-file", "blob", content)

    def diff(self, before: str, after: str) -> list[FileDiff]:
        """What differs, with hunks."""
        options = ("-r", "-z", "--no-renames", "--no-ext-diff", "--no-textconv")
        numbers = read_numbers(self._git.run("diff-tree", *options, "--numstat", before, after))
        plain = ("-r", "-p", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--full-index")
        patch = self._git.run("diff-tree", *plain, "--src-prefix=a/", "--dst-prefix=b/", before, after)
        return file_diffs(self.raw(before, after), numbers, patch)

    def compose(self, base: str, entries: dict[str, Entry | None]) -> str:
        """The state `base` with these paths replaced; removals first, so that a folder may take a file's place."""
        index = self._git.directory / "compose-index"
        index.unlink(missing_ok=True)
        index.with_name("compose-index.lock").unlink(missing_ok=True)
        git = Git(self._git.program, self._git.directory, self._folder, self._git.deadline, self._git.lock, index=index)
        try:
            git.run("read-tree", base)
            removed = [b"0 %s\t%s" % (b"0" * 40, os.fsencode(path)) for path in entries]
            added = [
                b"%s %s\t%s" % (entry.mode.encode(), entry.content.encode(), os.fsencode(path))
                for path, entry in entries.items()
                if entry is not None
            ]
            git.run("update-index", "-z", "--index-info", data=joined([*removed, *added]))
            return self._keep(git.run("write-tree").decode("ascii").strip())
        finally:
            index.unlink(missing_ok=True)

    # --- putting back -------------------------------------------------------------------------------------------

    def restore(self, present: str, target: str) -> Restored:
        """Two-way switch of the work tree: git refuses if a file to be touched is not as `present` has it."""
        taken = self.take()
        if taken.tree != present:
            raise WorkspaceChanged("The Workspace's files were changed while they were to be restored.")
        differ = [change for _, change in self.raw(present, target)]
        if not differ:
            return Restored(0)
        self._require_free(differ)
        self._state.unlink(missing_ok=True)
        code, _, err = self._git.attempt("read-tree", "-m", "-u", present, target)
        now = self.take()
        left = {change.path for _, change in self.raw(now.tree, target)} & {change.path for change in differ}
        if code != 0 and len(left) == len(differ):
            raise WorkspaceChanged(f"The Workspace's files cannot be restored: {_reason(err)}")
        reasons = tuple((path, _reason(err) if code else "it could not be written") for path in sorted(left))
        return Restored(len(differ) - len(left), reasons)

    def _require_free(self, differ: list[FileChange]) -> None:
        """Raise WorkspaceChanged where a file that no state knows (an ignored one) is in the way: git replaces it."""
        removed = {change.path for change in differ if change.before is not None}
        for change in differ:
            if change.before is None:
                in_the_way = _in_the_way(self._folder, change.path, removed)
                if in_the_way is not None:
                    raise WorkspaceChanged(
                        f"{in_the_way!r} is in the way of {change.path!r} and in no snapshot.",
                        fix="Move it away, then do it again.",
                    )

    def export(self, tree: str, folder: Path) -> int:
        """Write a state into a folder beside the final one, then put it in place at once."""
        part = folder.with_name(f".{folder.name}.milepost-part")
        if part.exists():
            shutil.rmtree(part)
        part.mkdir(mode=0o755)
        index = self._git.directory / "export-index"
        index.unlink(missing_ok=True)
        index.with_name("export-index.lock").unlink(missing_ok=True)
        git = Git(self._git.program, self._git.directory, part, self._git.deadline, self._git.lock, index=index)
        try:
            git.run("read-tree", tree)
            git.run("checkout-index", "-a", "-q")
            files = len(split(git.run("ls-files", "-z")))
            part.rename(folder)
        except OSError as error:
            raise SnapshotFailed(f"The folder {folder} cannot be made: {error.strerror or error}.") from error
        finally:
            index.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                shutil.rmtree(part)
        return files


def _in_the_way(folder: Path, path: str, removed: set[str]) -> str | None:
    """A file at, above or below `path` that is not among those to be removed."""
    place = Path(path)
    for above in list(place.parents)[:-1]:
        found = folder / above
        if found.is_symlink() or (found.exists() and not found.is_dir()):
            return None if str(above) in removed else str(above)
    target = folder / place
    if not target.is_dir() or target.is_symlink():
        return path if os.path.lexists(target) else None
    for root, folders, files in os.walk(target):
        links = [name for name in folders if (Path(root) / name).is_symlink()]
        for name in [*files, *links]:
            inside = str((Path(root) / name).relative_to(folder))
            if inside not in removed:
                return inside
    return None


def _reason(err: bytes) -> str:
    text = err.decode("utf-8", "replace").strip().splitlines()
    return " ".join(line.strip() for line in text[:5])[:300] or "no reason given"


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(data)
    temporary.replace(path)
