"""Bounds on disk use, by measuring: without being set up for it no usual file system has a quota for one folder.

A single file is bounded by the kernel (RLIMIT_FSIZE). The rest is looked at while commands run: the free space of the
file system several times a second, which costs nothing, and the sum of all files as often as a walk is cheap. A command
that writes fast is therefore a little over its bound when it is ended.
"""

from __future__ import annotations

import json
import os
import resource
import time
from typing import Any

from . import tree

MEASURE_SECONDS = 120.0
"""After which a walk is given up; what is not known then is told, see `Disk.unknown`."""
PAUSE_SECONDS = 5.0
PAUSE_SHARE = 20
"""A walk begins at the earliest after so many times what the last one took, or at once if free space shrinks fast."""
SLACK = 16 * 1024 * 1024
"""How much more a command may write where a bound was met before it began: it may be the one that tidies up."""
TICK = 0.25
_MIB = 1024 * 1024


class Disk:
    """What is used and what may be. `places`: name -> {path, limit, skip}; `free` bytes of each must stay free.

    Limits are bytes, 0 is none. `skip` are paths below that are counted elsewhere.
    """

    def __init__(self, places: dict[str, dict[str, Any]], free: int) -> None:
        self.places = places
        self.floor = free
        self.unknown = False
        """Whether the last walk did not come to its end, so that only files and free space are bounded."""
        self.measuring = False
        self._used: dict[str, int] = {}
        self._allowed: dict[str, int] = {}
        self._free = self._free_now()
        self._free_allowed = self._bound_of_free()
        self._ended = 0.0
        self._took = 0.0
        self._dirty = True
        self._busy = False
        self._changed = False
        """Whether something that may have tidied up has ended since the last walk began."""

    @property
    def limited(self) -> bool:
        return bool(self.floor or any(place["limit"] for place in self.places.values()))

    def bound_files(self) -> None:
        """Let no process write a file that is over every bound. Cannot be undone from inside."""
        largest = max((place["limit"] for place in self.places.values()), default=0)
        if largest and all(place["limit"] for place in self.places.values()):
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            most = largest if hard == resource.RLIM_INFINITY else min(largest, hard)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    # --- when to look -------------------------------------------------------------------------------------------

    def began(self) -> None:
        """Something that may write begins. The first of several sets what all of them may use."""
        if not self._busy:
            self._busy = True
            self._allowed = {name: used + SLACK for name, used in self._used.items()}
            self._free = self._free_now()
            self._free_allowed = self._bound_of_free()
        self._dirty = True

    def ended(self, *, idle: bool, for_disk: bool) -> None:
        """What may have written has ended, and with `idle` nothing runs any more that could."""
        self._busy = not idle
        self._changed = self._changed or not for_disk

    def walks(self) -> None:
        """A walk begins."""
        self.measuring, self._changed = True, False

    def due(self, now: float) -> bool:
        """Whether a walk should begin."""
        if self.measuring or not self._dirty or not any(place["limit"] for place in self.places.values()):
            return False
        since = now - self._ended
        if since > max(PAUSE_SECONDS, PAUSE_SHARE * self._took):
            return True
        return since > max(TICK, 2 * self._took) and (self._is_over() or self._shrinks_fast())

    def _is_over(self) -> bool:
        """What a walk found last keeps files from being written, so it must not be old."""
        return any(self._used.get(name, 0) > place["limit"] for name, place in self._limits)

    def _shrinks_fast(self) -> bool:
        rooms = [
            max(place["limit"], self._allowed.get(name, 0)) - self._used.get(name, 0) for name, place in self._limits
        ]
        return bool(rooms) and self._free - self._free_now() > max(_MIB, min(rooms) // 2)

    @property
    def _limits(self) -> list[tuple[str, dict[str, Any]]]:
        return [(name, place) for name, place in self.places.items() if place["limit"]]

    # --- what follows -------------------------------------------------------------------------------------------

    def exhausted(self) -> str | None:
        """Why what runs must be ended for the sake of the host, by a look at the free space; or None."""
        if not self.floor or self._free_now() >= self._free_allowed:
            return None
        return f"The disk of this host has less than {_size(self.floor)} left, which must stay free."

    def measured(self, used: dict[str, int] | None, took: float) -> str | None:
        """Take the result of a walk (None: it was given up). Why what runs must be ended, or None."""
        self.measuring, self._ended, self._took = False, time.monotonic(), took
        self.unknown = used is None
        if used is None:
            return None
        self._used, self._free = used, self._free_now()
        if not self._busy:
            self._dirty = False
        for name, _ in self._limits:
            if used.get(name, 0) > self._bound(name):
                return self._over(name)
        return None

    def refusal(self, size: int) -> str | None:
        """Why a file of so many bytes may not be written to the Workspace, or None."""
        limit = self.places["workspace"]["limit"]
        if limit and not self._changed and self._used.get("workspace", 0) + size > limit:
            return self._over("workspace")
        if self.floor and self._free_now() - size < min(self.floor, self._free_allowed):
            return f"The disk of this host has less than {_size(self.floor)} left, which must stay free."
        return None

    def _bound(self, name: str) -> int:
        limit: int = self.places[name]["limit"]
        return max(limit, self._allowed.get(name, 0))

    def _over(self, name: str) -> str:
        limit, used = self.places[name]["limit"], self._used.get(name, 0)
        return f"{_TITLES[name]} has {_size(used)} and may have {_size(limit)}. Delete what is not needed."

    def _free_now(self) -> int:
        found = []
        for place in self.places.values():
            try:
                state = os.statvfs(place["path"])
            except OSError:
                continue
            found.append(state.f_bavail * state.f_frsize)
        return min(found, default=1 << 62)

    def _bound_of_free(self) -> int:
        """The floor, or less where the disk is fuller than that already."""
        return min(self.floor, self._free - 4 * SLACK)


_TITLES = {
    "workspace": "The Workspace",
    "home": "The volume of the home directory",
    "node_modules": "The volume of node_modules",
}


def _size(number: int) -> str:
    return f"{number / 1024**3:.1f} GiB" if number >= 1024**3 else f"{number / _MIB:.0f} MiB"


class Walk(tree.Tree):
    """Adding up what is there, in a process of its own at the lowest priority."""

    ask_first = ()

    def __init__(self, places: dict[str, dict[str, Any]]) -> None:
        super().__init__()
        self._places = places
        self._text = b""
        self._started = time.monotonic()
        self._ended = False
        self.took = 0.0
        self.used: dict[str, int] | None = None

    @property
    def settled(self) -> bool:
        return self._ended

    @property
    def adopts(self) -> bool:
        return False

    def start(self, _root: str, _home: str, _request: dict[str, Any], _body: bytes) -> None:
        """Fork the process. Raises OSError."""
        self.deadline = self._started + MEASURE_SECONDS
        read, write = os.pipe2(os.O_CLOEXEC)
        self.fork({read: "output"}, [write], lambda: _walk_all(self._places, write))

    def take(self, name: str, piece: bytes) -> None:
        self._text = (self._text + piece)[:4096]

    def settle(self, keeper_status: int) -> None:
        self.drain()
        self._ended, self.took = True, time.monotonic() - self._started
        try:
            found = json.loads(self._text or b"null")
        except ValueError:
            found = None
        self.used = found if isinstance(found, dict) else None


def _walk_all(places: dict[str, dict[str, Any]], out: int) -> None:
    """Never returns."""
    try:
        os.nice(19)
        found = {name: usage(place["path"], place["skip"]) for name, place in places.items() if place["limit"]}
        os.write(out, json.dumps(found).encode("ascii"))
    finally:
        os._exit(0)


def usage(path: str, skip: list[str]) -> int:
    """Bytes that a folder takes on its disk. A file with several names counts once, what may not be read not at all."""
    total = 0
    seen: set[tuple[int, int]] = set()
    todo = [path]
    while todo:
        try:
            entries = os.scandir(todo.pop())
        except OSError:
            continue
        with entries:
            for entry in entries:
                try:
                    found = entry.stat(follow_symlinks=False)
                    folder = entry.is_dir(follow_symlinks=False)
                except OSError:
                    continue
                if found.st_nlink > 1 and not folder:
                    if (found.st_dev, found.st_ino) in seen:
                        continue
                    if len(seen) < 1_000_000:
                        seen.add((found.st_dev, found.st_ino))
                if folder and entry.path in skip:
                    continue
                total += found.st_blocks * 512
                if folder:
                    todo.append(entry.path)
    return total
