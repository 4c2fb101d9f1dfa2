"""Reads what a Workspace proposes for its sandbox. The folder is an agent's: no link is followed, nothing blocks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from milepost.domain.environments import EnvironmentPlan, SetupSource
from milepost.domain.errors import InvalidInput
from milepost.engine import devcontainer, lockfiles

MAX_FILE_BYTES = 1024 * 1024
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
PLACES = (".devcontainer/devcontainer.json", ".devcontainer.json")


class FolderDetector:
    """Implements `milepost.ports.environments.Detector` for folders of this machine."""

    async def detect(self, path: str) -> EnvironmentPlan:
        return await asyncio.to_thread(detect, Path(path))


def detect(path: Path) -> EnvironmentPlan:
    """See the port. A devcontainer.json wins over lockfiles, also one that proposes no command."""
    with _opened(path) as folder:
        present = {name for name in lockfiles.NAMES if _is_file(folder, name)}
        node = "package.json" in present
        for place in PLACES:
            text = _read(folder, place)
            if text is not None:
                return _of_devcontainer(text, place, path.name, node)
    found = lockfiles.choose(present)
    if found is None:
        return EnvironmentPlan(node=node)
    lockfile = found.lockfile
    return EnvironmentPlan(
        image=lockfile.image,
        command=lockfile.command,
        source=SetupSource.LOCKFILE,
        files=(found.name,),
        variables=dict(lockfile.variables),
        node=node,
        notes=found.notes,
    )


def _of_devcontainer(text: str, place: str, folder_name: str, node: bool) -> EnvironmentPlan:
    found = devcontainer.parse(text, folder_name)
    return EnvironmentPlan(
        image=found.image,
        command=found.command,
        source=SetupSource.DEVCONTAINER,
        files=(place,),
        ports=found.ports,
        variables=found.variables,
        node=node,
        notes=tuple(found.notes),
    )


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """The folder, reached without any link on the way."""
    place = os.open("/", _FOLDER)
    try:
        try:
            for part in path.parts[1:]:
                below = os.open(part, _FOLDER, dir_fd=place)
                os.close(place)
                place = below
        except OSError as error:
            raise InvalidInput(
                f"The folder {path} cannot be looked at: {error.strerror}.",
                field="workspace",
                fix="Look at who moved it or put a link into its path, or open the Session on another folder.",
            ) from None
        yield place
    finally:
        os.close(place)


def _is_file(folder: int, name: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _read(folder: int, name: str) -> str | None:
    """The start of a regular file below the folder, None if there is none."""
    with contextlib.ExitStack() as stack:
        place = folder
        *parents, last = name.split("/")
        try:
            for parent in parents:
                place = os.open(parent, _FOLDER, dir_fd=place)
                stack.callback(os.close, place)
            file = os.open(last, _FILE, dir_fd=place)
        except OSError:
            return None
        stack.callback(os.close, file)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        with os.fdopen(os.dup(file), "rb") as reader:
            return reader.read(MAX_FILE_BYTES).decode("utf-8", "replace")
