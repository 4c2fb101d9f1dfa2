"""Reading files of before 1.0: exact names below the data root, bounded, never through a link, never written."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from milepost.domain.errors import LegacyUnusable
from milepost.domain.memory import OwnerKind, Scope
from milepost.ports.legacy import LegacyFile

MAX_NAMES = 10_000
MAX_CHECKPOINTS = 1000
MAX_CORE_BYTES = 1024 * 1024
MAX_DAY_BYTES = 16 * 1024 * 1024
MAX_RECORDS_BYTES = 64 * 1024 * 1024
MAX_CHECKPOINT_BYTES = 64 * 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@%-]{0,199}")
_OURS = frozenset({"v1", "shared"})
_DAY = re.compile(r"(\d{4}-\d{2}-\d{2})\.jsonl")
_VERSION = re.compile(r"(0|[1-9]\d{0,11})\.json")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class LegacyFiles:
    """The layout in docs/legacy.md. What is not exactly as it says does not exist. Its calls block."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def core(self, scope: Scope) -> LegacyFile | None:
        """`memory/core/NAME.json`."""
        name = legacy_name(scope)
        return None if name is None else self._read(("memory", "core"), f"{name}.json", MAX_CORE_BYTES)

    def days(self, scope: Scope) -> list[str]:
        """Dates of `memory/daily_log/NAME/`, ascending."""
        name = legacy_name(scope)
        return sorted(self._names(("memory", "daily_log", name), _DAY)) if name else []

    def day(self, scope: Scope, date: str) -> LegacyFile | None:
        """`memory/daily_log/NAME/DATE.jsonl`."""
        name = legacy_name(scope)
        return self._read(("memory", "daily_log", name), f"{date}.jsonl", MAX_DAY_BYTES) if name else None

    def records(self, scope: Scope) -> LegacyFile | None:
        """`memory/semantic/NAME/records.jsonl`."""
        name = legacy_name(scope)
        return self._read(("memory", "semantic", name), "records.jsonl", MAX_RECORDS_BYTES) if name else None

    def checkpoints(self, name: str) -> list[int]:
        """Versions of `checkpoints/NAME/`, newest first, at most 1,000. Raises LegacyUnusable: no such name."""
        check_name(name)
        versions = sorted((int(found) for found in self._names(("checkpoints", name), _VERSION)), reverse=True)
        return versions[:MAX_CHECKPOINTS]

    def checkpoint(self, name: str, version: int) -> LegacyFile | None:
        """`checkpoints/NAME/VERSION.json`."""
        return self._read(("checkpoints", check_name(name)), f"{version}.json", MAX_CHECKPOINT_BYTES)

    def _names(self, parts: tuple[str, ...], pattern: re.Pattern[str]) -> list[str]:
        with self._folder(parts) as folder:
            names = [] if folder is None else os.listdir(folder)  # noqa: PTH208 - by the descriptor
        return [match[1] for match in map(pattern.fullmatch, names[:MAX_NAMES]) if match]

    def _read(self, parts: tuple[str, ...], name: str, limit: int) -> LegacyFile | None:
        with self._folder(parts) as folder:
            if folder is None:
                return None
            try:
                handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
            except OSError:
                return None
            with os.fdopen(handle, "rb") as file:
                status = os.fstat(handle)
                if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size > limit:
                    return None
                return LegacyFile(file.read(limit), status.st_mtime_ns // 1000)

    @contextlib.contextmanager
    def _folder(self, parts: tuple[str, ...]) -> Iterator[int | None]:
        """A folder below the root, each part opened in the one before; None if one is missing or a link."""
        with contextlib.ExitStack() as stack:
            try:
                handle = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, handle)
                for part in parts:
                    handle = os.open(part, _FOLDER, dir_fd=handle)
                    stack.callback(os.close, handle)
            except OSError:
                yield None
                return
            yield handle


def legacy_name(scope: Scope) -> str | None:
    """The name an owner had: its key as it is. None for what is shared, and for keys that were no names."""
    usable = scope.kind is not OwnerKind.SHARED and _NAME.fullmatch(scope.key) and not scope.key.endswith(".")
    return scope.key if usable else None


def check_name(name: str) -> str:
    """Raises LegacyUnusable for what cannot be a name of before 1.0."""
    if not _NAME.fullmatch(name) or name.endswith(".") or name in _OURS:
        raise LegacyUnusable(f"{name[:100]!r} is no name of a legacy folder.", fix="Name one folder, without a path.")
    return name
