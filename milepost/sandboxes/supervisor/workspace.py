"""Paths that cannot leave the workspace.

Each component is opened relative to the directory before it and never through a symlink; links are read and walked
by hand. A directory that is renamed or swapped for a link during the walk therefore changes nothing: every step
starts from a directory that is held open. This is what openat2's RESOLVE_BENEATH does in the kernel, except that a
link to an absolute path inside the workspace works; it needs no particular kernel or seccomp profile.
"""

from __future__ import annotations

import difflib
import errno
import os
import stat
from typing import Union

MAX_LINKS = 40
MAX_PATH = 4096

Detail = dict[str, Union[int, str]]


class Refused(Exception):
    """An operation that failed for a reason to tell: a code of the port's `Outcome` and one sentence."""

    def __init__(self, code: str, text: str, detail: Detail | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.detail: Detail = detail or {}


_CODES = {
    errno.ENOENT: "not_found",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EROFS: "permission",
    errno.EISDIR: "is_directory",
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.EFBIG: "too_large",
}


def refusal(error: OSError, shown: str) -> Refused:
    """The error of a system call in the port's terms."""
    code = _CODES.get(error.errno or 0, "invalid")
    return Refused(code, f"{shown}: {os.strerror(error.errno or 0)}.")


def show(path: bytes) -> str:
    """A path as text; what is not UTF-8 is kept as lone surrogates."""
    return path.decode("utf-8", "surrogateescape")


class Place:
    """A directory held open and a name in it; an empty name means the directory itself."""

    def __init__(self, dirfd: int, name: bytes, shown: str) -> None:
        self.dirfd = dirfd
        self.name = name
        self.shown = shown

    def stat(self) -> os.stat_result:
        """Raises FileNotFoundError; a link swapped in meanwhile is reported as a link, never followed."""
        if not self.name:
            return os.fstat(self.dirfd)
        return os.stat(self.name, dir_fd=self.dirfd, follow_symlinks=False)

    def open_directory(self) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self.name or b".", flags, dir_fd=self.dirfd)

    def open_file(self) -> int:
        """Open a regular file for reading; never waits on a FIFO and never opens a device's driver."""
        if not self.name:
            raise Refused("is_directory", f"{self.shown} is a directory.")
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        kind = self.stat().st_mode
        if stat.S_ISDIR(kind):
            raise Refused("is_directory", f"{self.shown} is a directory.")
        if not stat.S_ISREG(kind):
            raise Refused("invalid", f"{self.shown} is not a regular file.")
        fd = os.open(self.name, flags, dir_fd=self.dirfd)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise Refused("invalid", f"{self.shown} is not a regular file.")
        return fd


class Workspace:
    """The one directory that file operations work on."""

    def __init__(self, root: str) -> None:
        self.root = os.path.normpath(os.fsencode(root))
        self.fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def parts(self, path: bytes, shown: str) -> list[bytes]:
        """Components below the root. An absolute path counts if it begins with the root."""
        if b"\0" in path:
            raise Refused("invalid", "The path contains a NUL byte.")
        if len(path) > MAX_PATH:
            raise Refused("invalid", f"The path is longer than {MAX_PATH} bytes.")
        if path.startswith(b"/"):
            if path != self.root and not path.startswith(self.root + b"/"):
                text = f"{shown} is outside the workspace {show(self.root)}; use a path relative to it."
                raise Refused("outside_workspace", text)
            path = path[len(self.root) :]
        return [part for part in path.split(b"/") if part not in (b"", b".")]

    def locate(self, path: str, create_parents: bool = False) -> Place:
        """Walk to `path`; its last component need not exist. Raises Refused."""
        shown = path if len(path) <= 200 else path[:200] + "..."
        todo = self.parts(os.fsencode(path), shown)
        stack = [os.dup(self.fd)]
        kept = -1
        try:
            name = self._walk(stack, todo, shown, create_parents)
            kept = stack[-1]
        except OSError as error:
            if error.errno == errno.ENOTDIR:
                raise Refused("not_found", f"{shown}: a part of the path is not a directory.") from None
            raise refusal(error, shown) from None
        finally:
            for fd in stack:
                if fd != kept:
                    os.close(fd)
        return Place(kept, name, shown)

    def _walk(self, stack: list[int], todo: list[bytes], shown: str, create: bool) -> bytes:
        links = 0
        while todo:
            part = todo.pop(0)
            if part == b"..":
                if len(stack) == 1:
                    raise Refused("outside_workspace", f"{shown} leads outside the workspace.")
                os.close(stack.pop())
                continue
            try:
                mode = os.stat(part, dir_fd=stack[-1], follow_symlinks=False).st_mode
            except FileNotFoundError:
                if not todo:
                    return part
                if not create:
                    raise
                os.mkdir(part, 0o777, dir_fd=stack[-1])
                mode = stat.S_IFDIR
            if stat.S_ISLNK(mode):
                links += 1
                if links > MAX_LINKS:
                    raise Refused("invalid", f"{shown} goes through more than {MAX_LINKS} symbolic links.")
                target = os.readlink(part, dir_fd=stack[-1])
                if target.startswith(b"/"):
                    while len(stack) > 1:
                        os.close(stack.pop())
                todo[:0] = self.parts(target, f"{shown} (a symbolic link to {show(target)})")
            elif todo:
                flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                stack.append(os.open(part, flags, dir_fd=stack[-1]))
            else:
                return part
        return b""


def missing(place: Place) -> Refused:
    """A not_found that names similar entries of the same directory, so that a misspelt path is corrected at once."""
    try:
        fd = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place.dirfd)
        try:
            names = os.listdir(fd)[:5000]
        finally:
            os.close(fd)
    except OSError:
        names = []
    close = difflib.get_close_matches(show(place.name), names, n=3, cutoff=0.6)
    hint = f" Similar names there: {', '.join(close)}." if close else ""
    return Refused("not_found", f"{place.shown} does not exist.{hint}")
