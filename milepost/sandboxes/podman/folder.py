"""Which directory a Workspace's path leads to, without any symbolic link on the way."""

from __future__ import annotations

import os
from pathlib import Path

from milepost.domain.errors import InvalidInput

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
    if not path.is_absolute() or len(path.parts) == 1 or ".." in path.parts:
        raise InvalidInput(f"The workspace {str(path)!r} is not an absolute path below /.", field="workspace_path")
    place = os.open("/", _STEP)
    try:
        for part in path.parts[1:]:
            below = os.open(part, _STEP, dir_fd=place)
            os.close(place)
            place = below
        found = os.fstat(place)
    except OSError as error:
        raise _refusal(path, error) from None
    finally:
        os.close(place)
    return found.st_dev, found.st_ino


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
