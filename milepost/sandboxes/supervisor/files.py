"""read, write, edit and list, inside the workspace only."""

from __future__ import annotations

import difflib
import json
import os
import stat
from typing import Any

from .workspace import Detail, Place, Refused, Workspace, missing, refusal, show

MAX_RESULT = 16 * 1024 * 1024
MAX_EDIT_FILE = 16 * 1024 * 1024
MAX_LINE_COUNT_FILE = 64 * 1024 * 1024
MAX_ENTRIES = 10_000
_BLOCK = 1024 * 1024

Result = tuple[bytes, Detail]


def _open(place: Place) -> int:
    try:
        return place.open_file()
    except FileNotFoundError:
        raise missing(place) from None
    except OSError as error:
        raise refusal(error, place.shown) from None


def read(workspace: Workspace, request: dict[str, Any], _body: bytes) -> Result:
    """File bytes from `offset`, at most `limit`; both count bytes, or lines when `unit` is `lines`."""
    offset, limit = int(request["offset"]), int(request["limit"])
    fd = _open(workspace.locate(request["path"]))
    with os.fdopen(fd, "rb", buffering=0) as file:
        size = os.fstat(fd).st_size
        if request.get("unit") == "lines":
            return _read_lines(file, size, offset, limit)
        file.seek(offset)
        data = _read_up_to(file, min(limit, MAX_RESULT))
    return data, {"size": size, "offset": offset, "end": int(offset + len(data) >= size)}


def _read_up_to(file: Any, limit: int) -> bytes:
    parts: list[bytes] = []
    while limit > 0:
        block = file.read(min(limit, _BLOCK))
        if not block:
            break
        parts.append(block)
        limit -= len(block)
    return b"".join(parts)


def _read_lines(file: Any, size: int, offset: int, limit: int) -> Result:
    """Lines `offset` (from 0) up to `offset + limit`; the total is counted for files up to 64 MiB."""
    taken = bytearray()
    first = seen = 0
    wanted_end = offset + limit
    cut = False
    at_end = True
    last = b"\n"
    while True:
        block = file.read(_BLOCK)
        if not block:
            break
        last = block[-1:]
        newlines = block.count(b"\n")
        if not cut and seen < wanted_end and seen + newlines >= offset:
            start = _nth_line(block, offset - seen) if seen < offset else 0
            stop = _nth_line(block, wanted_end - seen)
            taken += block[start:stop]
            first = offset
            if len(taken) > MAX_RESULT:
                del taken[MAX_RESULT:]
                cut = True
        seen += newlines
        if (cut or seen >= wanted_end) and size > MAX_LINE_COUNT_FILE:
            at_end = False
            break
    lines = taken.count(b"\n") + (1 if taken and not taken.endswith(b"\n") else 0)
    detail: Detail = {"size": size, "first_line": first + 1, "lines": lines}
    total = seen + (0 if last == b"\n" else 1)
    if at_end:
        detail["total_lines"] = total
    detail["end"] = int(at_end and not cut and offset + lines >= total)
    return bytes(taken), detail


def _nth_line(block: bytes, number: int) -> int:
    """Index behind the `number`-th newline, or the length if there are fewer."""
    at = 0
    for _ in range(number):
        at = block.find(b"\n", at) + 1
        if at == 0:
            return len(block)
    return at


def write(workspace: Workspace, request: dict[str, Any], body: bytes) -> Result:
    """Create or replace a file atomically; missing parent directories are made."""
    place = workspace.locate(request["path"], create_parents=True)
    existed = _replace(place, body)
    return b"", {"bytes": len(body), "created": int(not existed)}


def _replace(place: Place, data: bytes) -> bool:
    """Write beside the target and rename over it, keeping its mode. Returns whether it existed."""
    if not place.name:
        raise Refused("is_directory", f"{place.shown} is a directory.")
    mode = None
    try:
        old = place.stat()
        if stat.S_ISDIR(old.st_mode):
            raise Refused("is_directory", f"{place.shown} is a directory.")
        if not stat.S_ISREG(old.st_mode):
            raise Refused("invalid", f"{place.shown} is not a regular file.")
        if not os.access(place.name, os.W_OK, dir_fd=place.dirfd):
            raise Refused("permission", f"{place.shown} is not writable.")
        mode = stat.S_IMODE(old.st_mode) & 0o777
    except FileNotFoundError:
        pass
    temporary = b".milepost-" + os.urandom(8).hex().encode() + b".tmp"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o666, dir_fd=place.dirfd)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if mode is not None:
                os.fchmod(fd, mode)
        finally:
            os.close(fd)
        os.rename(temporary, place.name, src_dir_fd=place.dirfd, dst_dir_fd=place.dirfd)
    except OSError as error:
        try:
            os.unlink(temporary, dir_fd=place.dirfd)
        except OSError:
            pass
        raise refusal(error, place.shown) from None
    return mode is not None


def edit(workspace: Workspace, request: dict[str, Any], body: bytes) -> Result:
    """Replace the first `split` bytes of `body` by the rest: exactly one match unless `all`."""
    old, new = body[: request["split"]], body[request["split"] :]
    place = workspace.locate(request["path"])
    fd = _open(place)
    with os.fdopen(fd, "rb", buffering=0) as file:
        if os.fstat(fd).st_size > MAX_EDIT_FILE:
            text = f"{place.shown} has {os.fstat(fd).st_size} bytes; files up to {MAX_EDIT_FILE} bytes can be edited."
            raise Refused("too_large", text)
        data = _read_up_to(file, MAX_EDIT_FILE + 1)
    if not old:
        raise Refused("invalid", "The text to replace is empty; use write_file to create or replace a whole file.")
    if old == new:
        raise Refused("invalid", "The old and the new text are the same; nothing would change.")
    count = data.count(old)
    crlf = False
    if count == 0 and b"\r\n" in data and b"\n" in old and b"\r" not in old:
        # Models write \n; a file with Windows line ends keeps them.
        crlf = True
        old, new = old.replace(b"\n", b"\r\n"), new.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        count = data.count(old)
    if count == 0:
        raise _no_match(place.shown, data, body[: request["split"]])
    if count > 1 and not request.get("all"):
        raise _many_matches(place.shown, data, old, count)
    first = data.find(old)
    result = data.replace(old, new)
    if len(result) > MAX_EDIT_FILE:
        raise Refused("too_large", f"The result would have {len(result)} bytes; at most {MAX_EDIT_FILE} are accepted.")
    _replace(place, result)
    detail: Detail = {"replacements": count, "line": data.count(b"\n", 0, first) + 1, "bytes": len(result)}
    if crlf:
        detail["line_ends"] = "crlf"
    return b"", detail


def _many_matches(shown: str, data: bytes, old: bytes, count: int) -> Refused:
    lines: list[str] = []
    at = data.find(old)
    while at >= 0 and len(lines) < 10:
        lines.append(str(data.count(b"\n", 0, at) + 1))
        at = data.find(old, at + len(old))
    more = ", ..." if count > len(lines) else ""
    text = (
        f"The text to replace occurs {count} times in {shown} (lines {', '.join(lines)}{more}). "
        "Give more of the surrounding text so that it occurs once, or replace all."
    )
    return Refused("many_matches", text, {"matches": count})


def _no_match(shown: str, data: bytes, old: bytes) -> Refused:
    text = f"The text to replace does not occur in {shown}."
    lines = data.decode("utf-8", "replace").splitlines()
    wanted = old.decode("utf-8", "replace").splitlines() or [""]
    near = _nearest(lines, wanted)
    if near is None:
        return Refused("no_match", f"{text} Nothing similar was found; read the file again.", {"matches": 0})
    line, same_but_space = near
    height = min(len(wanted), 12)
    excerpt = "\n".join(
        f"{number + 1}: {lines[number][:300]}" for number in range(line, min(line + height, len(lines)))
    )
    reason = " It differs only in white space." if same_but_space else ""
    text = f"{text} The most similar text begins at line {line + 1}.{reason} That text is:\n{excerpt}"
    return Refused("no_match", text, {"matches": 0, "nearest_line": line + 1})


def _nearest(lines: list[str], wanted: list[str]) -> tuple[int, bool] | None:
    """Index of the most similar place, and whether only white space differs. Bounded by 4,000 comparisons."""
    squeezed = [" ".join(line.split()) for line in lines]
    target = [" ".join(line.split()) for line in wanted]
    while target and not target[-1]:
        target.pop()
    lead = 0
    while lead < len(target) and not target[lead]:
        lead += 1
    target = target[lead:]
    if not target:
        return None
    for start in range(len(squeezed) - len(target) + 1):
        if squeezed[start] == target[0] and squeezed[start : start + len(target)] == target:
            return max(0, start), True
    matcher = difflib.SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(target[0][:400])
    best, found = 0.6, None
    for index, line in enumerate(squeezed[:4000]):
        matcher.set_seq1(line[:400])
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and matcher.ratio() > best:
            best, found = matcher.ratio(), index
    return None if found is None else (found, False)


def list_dir(workspace: Workspace, request: dict[str, Any], _body: bytes) -> Result:
    """One JSON object a line: name, kind (file, dir, link, other), size in bytes, target of a link."""
    place = workspace.locate(request["path"])
    limit = min(int(request["limit"]), MAX_ENTRIES)
    try:
        fd = place.open_directory()
    except FileNotFoundError:
        raise missing(place) from None
    except NotADirectoryError:
        raise Refused("not_directory", f"{place.shown} is not a directory.") from None
    except OSError as error:
        raise refusal(error, place.shown) from None
    try:
        names = sorted(os.fsencode(name) for name in os.listdir(fd))
        lines = [json.dumps(_entry(fd, name)) for name in names[:limit]]
    finally:
        os.close(fd)
    return "\n".join(lines).encode(), {"entries": len(names), "shown": len(lines)}


def _entry(dirfd: int, name: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": show(name), "kind": "other", "size": 0}
    try:
        found = os.stat(name, dir_fd=dirfd, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            entry.update(kind="link", target=show(os.readlink(name, dir_fd=dirfd)))
        elif stat.S_ISDIR(found.st_mode):
            entry["kind"] = "dir"
        elif stat.S_ISREG(found.st_mode):
            entry.update(kind="file", size=found.st_size)
    except OSError:
        pass
    return entry
