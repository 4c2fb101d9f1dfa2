"""Ignore rules that lie outside the Workspace's folder but hold in it.

Patterns as in gitignore(5): one without a slash in front of its end matches at any depth, others are relative to the
folder of the file they stand in.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

MAX_BYTES = 256 * 1024


def outer_patterns(folder: Path) -> bytes:
    """The patterns for `folder` of its repository's `info/exclude` and of `.gitignore` files above it, as bytes."""
    lines: list[bytes] = []
    for above in (folder, *folder.parents):
        prefix = bytes(folder.relative_to(above))
        if above != folder:
            lines = [*_inside(_read(above / ".gitignore"), prefix), *lines]
        if (above / ".git").is_dir():
            return b"".join(line + b"\n" for line in [*_inside(_read(above / ".git/info/exclude"), prefix), *lines])
        if (above / ".git").exists():
            return b"".join(line + b"\n" for line in lines)
    # In no repository: a .gitignore further up is nobody's rule for this folder.
    return b""


def _inside(lines: list[bytes], prefix: bytes) -> list[bytes]:
    """Patterns of a file above, as they hold in the folder `prefix` below it."""
    if prefix == b".":
        return lines
    found: list[bytes] = []
    for line in lines:
        negated, pattern = line[:1] == b"!", line.lstrip(b"!")
        sign = b"!" if negated else b""
        if b"/" not in pattern.rstrip(b"/") or pattern.startswith(b"**/"):
            found.append(line)
        elif pattern.lstrip(b"/").startswith(prefix + b"/"):
            found.append(sign + b"/" + pattern.lstrip(b"/")[len(prefix) + 1 :])
    return found


def _read(path: Path) -> list[bytes]:
    try:
        # An agent may have put anything there: a link to elsewhere is not followed, a pipe is not waited for.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return []
        data = file.read(MAX_BYTES)
    lines = (line.rstrip(b"\r") for line in data.split(b"\n"))
    return [line for line in lines if line.strip() and not line.startswith(b"#")]
