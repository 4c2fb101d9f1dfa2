"""Reading git's raw and unified diffs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace

from milepost.ports.snapshots import DiffLine, Entry, FileChange, FileDiff, Hunk

MAX_FILES = 2_000
MAX_PATCH_BYTES = 1024 * 1024
"""Of hunks in one diff; the files behind it are named without."""

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@ ?(.*)")
_STATUS = {"A": "added", "D": "deleted", "M": "modified", "T": "type_changed"}


def read_raw(data: bytes) -> list[tuple[str, FileChange]]:
    """(status letter, change) of each record of `git diff-tree -r -z --raw --no-renames --no-abbrev`."""
    items = data.split(b"\0")
    found: list[tuple[str, FileChange]] = []
    for position in range(0, len(items) - 1, 2):
        old_mode, new_mode, old, new, status = items[position].decode("ascii").lstrip(":").split(" ")
        path = os.fsdecode(items[position + 1])
        before = None if status == "A" else Entry(old_mode, old)
        after = None if status == "D" else Entry(new_mode, new)
        found.append((status, FileChange(path, before, after)))
    return found


def read_numbers(data: bytes) -> dict[str, tuple[int, int] | None]:
    """By path: added and deleted lines of `git diff-tree -r -z --numstat --no-renames`; None for a binary file."""
    found: dict[str, tuple[int, int] | None] = {}
    for item in data.split(b"\0"):
        if not item:
            continue
        added, deleted, path = item.split(b"\t", 2)
        found[os.fsdecode(path)] = None if added == b"-" else (int(added), int(deleted))
    return found


def file_diffs(
    raw: list[tuple[str, FileChange]], numbers: dict[str, tuple[int, int] | None], patch: bytes
) -> list[FileDiff]:
    """The files of a diff. The patch has one section a file, in the order of `raw`."""
    sections = _sections(patch)
    files: list[FileDiff] = []
    room = MAX_PATCH_BYTES
    for status, change in raw[:MAX_FILES]:
        counted = numbers.get(change.path, (0, 0))
        diff = FileDiff(
            path=change.path,
            status=_STATUS.get(status, "modified"),
            old_mode=change.before.mode if change.before else None,
            new_mode=change.after.mode if change.after else None,
            binary=counted is None,
            additions=0 if counted is None else counted[0],
            deletions=0 if counted is None else counted[1],
        )
        # A changed kind of file (a link for a text) is shown by git as a deletion and an addition.
        parts = [next(sections, b"") for _ in range(2 if status == "T" else 1)]
        room -= sum(map(len, parts))
        if room < 0:
            diff = replace(diff, truncated=not diff.binary)
        elif not diff.binary:
            diff = replace(diff, hunks=tuple(hunk for part in parts for hunk in _hunks(part)))
        files.append(diff)
    return files


def _sections(patch: bytes) -> Iterator[bytes]:
    """The part of each file. A line of a file begins with ' ', '+', '-' or '\\', so this mark is no part of one."""
    mark = b"diff --git "
    start = 0 if patch.startswith(mark) else -1
    while start >= 0:
        end = patch.find(b"\n" + mark, start)
        yield patch[start:] if end < 0 else patch[start : end + 1]
        start = end + 1 if end >= 0 else -1


def _hunks(section: bytes) -> Iterator[Hunk]:
    header: re.Match[bytes] | None = None
    lines: list[DiffLine] = []
    # Only "\n" ends a line of a patch: a file may hold any other line end in its lines.
    for line in section.split(b"\n")[:-1] if section.endswith(b"\n") else section.split(b"\n"):
        match = _HUNK.match(line) if line.startswith(b"@@ ") else None
        if match is not None:
            if header is not None:
                yield _hunk(header, lines)
            header, lines = match, []
        elif header is not None and line[:1] in (b" ", b"-", b"+"):
            lines.append(DiffLine(line[:1].decode("ascii"), _text(line[1:])))
        elif header is not None and line.startswith(b"\\") and lines:
            lines[-1] = replace(lines[-1], ended=False)
    if header is not None:
        yield _hunk(header, lines)


def _hunk(header: re.Match[bytes], lines: list[DiffLine]) -> Hunk:
    def number(index: int) -> int:
        return 1 if header[index] is None else int(header[index])

    return Hunk(number(1), number(2), number(3), number(4), _text(header[5]), tuple(lines))


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")
