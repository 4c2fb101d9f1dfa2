"""The daily log as files: a folder for each owner, in it one file for each day (UTC).

Format: `YYYY-MM-DD.jsonl`, one JSON object on each line with the fields of `DailyEntry`. Lines are only ever added.
A line that a crash cut short is passed over and counted, and the next one begins on a line of its own.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path

from milepost.domain.memory import DailyEntry, Scope
from milepost.memory.places import PRIVATE_FILE, Places, alone, make_folder, storage_errors, sync_folder
from milepost.ports.memory import DailyRange

_NAME = re.compile(r"(\d{4}-\d{2}-\d{2})\.jsonl")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 and 9999, in microseconds since the epoch."""

_FIELDS = frozenset(field.name for field in fields(DailyEntry))


class FileDailyLog:
    """`ports.memory.DailyLog` below the data root."""

    def __init__(self, root: Path) -> None:
        self._places = Places(root)

    async def append(self, scope: Scope, entries: Sequence[DailyEntry]) -> None:
        if entries:
            await asyncio.to_thread(_append, self._places.daily_log(scope), entries)

    async def read(
        self, scope: Scope, start: int, end: int, *, limit: int, after: tuple[int, str] | None = None
    ) -> DailyRange:
        return await asyncio.to_thread(_range, self._places.daily_log(scope), start, end, limit, after)

    async def days(self, scope: Scope) -> list[str]:
        return await asyncio.to_thread(_days, self._places.daily_log(scope))

    async def drop(self, scope: Scope) -> None:
        await asyncio.to_thread(_drop, self._places.daily_log(scope))


def day_of(at: int) -> str:
    """The date (UTC) of a time in microseconds since the epoch."""
    return (_EPOCH + timedelta(microseconds=min(max(at, _FIRST), _LAST))).date().isoformat()


def _append(folder: Path, entries: Sequence[DailyEntry]) -> None:
    with storage_errors(folder), alone(folder):
        make_folder(folder)
        ordered = sorted(entries, key=lambda entry: (entry.at, entry.id))
        for day, of_day in groupby(ordered, lambda entry: day_of(entry.at)):
            _append_day(folder / f"{day}.jsonl", list(of_day))


def _append_day(path: Path, entries: list[DailyEntry]) -> None:
    known, whole, new = set(), True, not path.exists()
    if not new:
        data = path.read_bytes()
        whole = data.endswith(b"\n") or not data
        known = {entry.id for entry in _entries(data) if entry is not None}
    lines = []
    for entry in entries:
        if entry.id not in known:
            known.add(entry.id)
            lines.append(json.dumps(asdict(entry), ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n")
    if not lines:
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE_FILE)
    with os.fdopen(descriptor, "ab", buffering=0) as file:
        file.write(b"" if whole else b"\n")
        left = memoryview(b"".join(lines))
        while left:
            left = left[file.write(left) :]
        os.fsync(descriptor)
    if new:
        sync_folder(path.parent)


def _entries(data: bytes) -> Iterator[DailyEntry | None]:
    """The entries of a file; None for a line that cannot be read."""
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            entry = DailyEntry(**{name: value[name] for name in _FIELDS & value.keys()})
            yield entry if isinstance(entry.at, int) and isinstance(entry.id, str) else None
        except (ValueError, TypeError, AttributeError, RecursionError):
            yield None


def _days(folder: Path) -> list[str]:
    with storage_errors(folder):
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(found[1] for found in map(_NAME.fullmatch, names) if found)


def _range(folder: Path, start: int, end: int, limit: int, after: tuple[int, str] | None) -> DailyRange:
    if end <= start:
        return DailyRange(())
    first, last = day_of(max(start, after[0]) if after else start), day_of(end - 1)
    found: list[DailyEntry] = []
    damaged = 0
    for day in _days(folder):
        if not first <= day <= last:
            continue
        with storage_errors(folder):
            data = (folder / f"{day}.jsonl").read_bytes()
        of_day: dict[str, DailyEntry] = {}
        for entry in _entries(data):
            if entry is None:
                damaged += 1
            elif start <= entry.at < end and (after is None or (entry.at, entry.id) > after):
                of_day.setdefault(entry.id, entry)
        found += heapq.nsmallest(limit - len(found), of_day.values(), key=lambda entry: (entry.at, entry.id))
        if len(found) >= limit:
            break
    return DailyRange(tuple(found), damaged)


def _drop(folder: Path) -> None:
    with storage_errors(folder), alone(folder):
        if folder.is_dir():
            shutil.rmtree(folder)
