"""Which directory a Workspace's path leads to, without any symbolic link on the way."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from milepost.domain.errors import InvalidInput, SandboxUnavailable

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Identity = tuple[int, int]
"""Device and inode: what the mount in the container must have as well."""


def identity(path: Path) -> Identity:
    """Walk to the directory, one component after the other.

    Whoever may write a directory above it (an agent on an outer Workspace) can put a link in the place of the one
    that the person chose, at any moment: so links are never followed, and what was found is compared with the mount.

    Raises:
        InvalidInput: the path is not absolute, is /, has a link in it or leads to no directory.
    """
    place = _reached(path)
    try:
        found = os.fstat(place)
    finally:
        os.close(place)
    return found.st_dev, found.st_ino


def _reached(path: Path) -> int:
    """A descriptor of the directory. Raises InvalidInput."""
    if not path.is_absolute() or len(path.parts) == 1 or ".." in path.parts:
        raise InvalidInput(f"The workspace {str(path)!r} is not an absolute path below /.", field="workspace_path")
    place = os.open("/", _STEP)
    try:
        for part in path.parts[1:]:
            below = os.open(part, _STEP, dir_fd=place)
            os.close(place)
            place = below
    except OSError as error:
        os.close(place)
        raise _refusal(path, error) from None
    return place


def make_mountpoint(path: Path, name: str) -> None:
    """Make the directory `name` in the Workspace, of the Workspace's owner, for a volume to be mounted over.

    Podman would make it as a user that the person's own one cannot delete. One that is there stays as it is.

    Raises:
        InvalidInput: something else has the name.
    """
    place = _reached(path)
    try:
        owner = os.fstat(place)
        try:
            os.mkdir(name, 0o755, dir_fd=place)
            if os.getuid() == 0:
                os.chown(name, owner.st_uid, owner.st_gid, dir_fd=place, follow_symlinks=False)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(name, dir_fd=place, follow_symlinks=False).st_mode):
                raise InvalidInput(
                    f"{path / name} is not a directory, and a volume goes there in the sandbox.",
                    field="workspace_path",
                    fix=f"Move it away: {shlex.quote(str(path / name))}",
                ) from None
        except OSError as error:
            raise SandboxUnavailable(
                f"{path / name} cannot be made: {error.strerror}.", fix="Make the workspace writable for its owner."
            ) from None
    finally:
        os.close(place)


def not_writable(path: Path, *, rootless: bool) -> SandboxUnavailable:
    """Why commands cannot write to the Workspace, as far as can be told from outside, and what ends that."""
    found = path.stat()
    mode, other = stat.S_IMODE(found.st_mode), "Or open the Session on another folder."
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return SandboxUnavailable(
            f"The workspace {path} is on a read-only file system.", fix=f"Mount it writable. {other}"
        )
    if rootless and found.st_uid != os.getuid():
        return SandboxUnavailable(
            f"The workspace {path} belongs to user {found.st_uid}, not to the one who runs Milepost ({os.getuid()}).",
            fix=f'Run: sudo chown -R "$USER" {shlex.quote(str(path))}  {other}',
        )
    return SandboxUnavailable(
        f"The workspace {path} is not writable for its owner (user {found.st_uid}, mode {mode:04o}).",
        fix=f"Run: chmod u+rwx {shlex.quote(str(path))}  {other}",
    )


def _refusal(path: Path, error: OSError) -> InvalidInput:
    for step in (*reversed(path.parents), path):
        if step.is_symlink():
            return InvalidInput(
                f"The workspace {path} is not used: {step} has become a symbolic link.",
                field="workspace_path",
                fix=f"Look at who made it: ls -ld {step}. Then remove the link, or open a Session on another folder.",
            )
    return InvalidInput(
        f"The workspace {path} does not exist or is no directory ({error.strerror}).",
        field="workspace_path",
        fix="Create it, or open the Session on another folder.",
    )
