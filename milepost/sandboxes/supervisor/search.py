"""grep and glob, inside the workspace only, bounded in results and in time."""

from __future__ import annotations

import os
import re
import selectors
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from .workspace import Detail, Place, Refused, Workspace, missing, refusal

MAX_RESULTS = 10_000
MAX_RESULT = 8 * 1024 * 1024
MAX_LINE = 400
MAX_SEARCH_FILE = 20 * 1024 * 1024
MAX_VISITED = 200_000
SECONDS = 20.0
SKIPPED = {"node_modules", "__pycache__", ".venv"}
"""Not searched unless the path or pattern names them; `.git` never is."""

Result = tuple[bytes, Detail]


def visible(text: str) -> str:
    """Control characters escaped, so that a name with a newline stays on its line."""
    return "".join(ch if ch >= " " and ch != "\x7f" else f"\\x{ord(ch):02x}" for ch in text)


def _encode(lines: list[str]) -> tuple[bytes, int]:
    """As many whole lines as fit, and how many those are."""
    room, kept = MAX_RESULT, []
    for line in lines:
        data = line.encode("utf-8", "surrogateescape")
        room -= len(data) + 1
        if room < 0:
            break
        kept.append(data)
    return b"\n".join(kept), len(kept)


def _start(place: Place) -> tuple[int, str | None]:
    """Directory to search in, and the one file in it if the path names a file."""
    try:
        mode = place.stat().st_mode
        if stat.S_ISDIR(mode):
            return place.open_directory(), None
    except FileNotFoundError:
        raise missing(place) from None
    except OSError as error:
        raise refusal(error, place.shown) from None
    if not stat.S_ISREG(mode):
        raise Refused("invalid", f"{place.shown} is neither a directory nor a regular file.")
    return place.dirfd, os.fsdecode(place.name)


def _prefix(path: str, single: str | None, root: str) -> str:
    if path == root or path.startswith(root + "/"):
        path = path[len(root) :].lstrip("/")
    base = os.path.normpath(path or ".")
    if single is not None:
        base = os.path.dirname(base)
    return "" if base in (".", "") else base + "/"


def grep(workspace: Workspace, request: dict[str, Any], _body: bytes) -> Result:
    """Lines `path:number:text` in path order, from ripgrep if the image has it, else from Python's `re`."""
    place = workspace.locate(request["path"])
    dirfd, single = _start(place)
    prefix = _prefix(request["path"], single, os.fsdecode(workspace.root))
    limit = min(int(request["limit"]), MAX_RESULTS)
    rg = shutil.which("rg")
    if rg:
        found, cut = _ripgrep(rg, dirfd, single, request, limit)
    else:
        found, cut = _scan(dirfd, single, request, limit)
    lines = [f"{visible(prefix + name)}:{text}" for name, text in found]
    result, count = _encode(lines)
    cut = cut or count < len(lines)
    return result, {"matches": count, "cut": int(cut), "engine": "ripgrep" if rg else "python"}


def _ripgrep(
    rg: str, dirfd: int, single: str | None, request: dict[str, Any], limit: int
) -> tuple[list[tuple[str, str]], bool]:
    command = [rg, "--no-config", "--line-number", "--with-filename", "--null", "--no-heading", "--color=never"]
    command += ["--hidden", "--sort=path", f"--max-columns={MAX_LINE}", "--max-columns-preview"]
    command += [f"--max-filesize={MAX_SEARCH_FILE}", "-e", request["pattern"]]
    if request.get("glob"):
        command += ["--glob", request["glob"]]
    command += ["--glob", "!.git", "--", "./" + single if single else "."]
    os.fchdir(dirfd)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, errors, cut = _collect(process, limit)
    if process.returncode == 2 and not output and not cut:
        reason = errors.decode("utf-8", "replace").strip()[:2000]
        if "regex" in reason or "glob" in reason:
            raise Refused("invalid", f"The pattern cannot be used: {reason}")
        raise Refused("invalid", f"The search failed: {reason}")
    found = []
    for line in output[:limit]:
        name, _, text = line.decode("utf-8", "surrogateescape").partition("\0")
        found.append((name[2:] if name.startswith("./") else name, text.rstrip("\r")))
    return found, cut


def _collect(process: subprocess.Popen[bytes], limit: int) -> tuple[list[bytes], bytes, bool]:
    """Lines of stdout until `limit` or the time is up, then the process is killed."""
    if process.stdout is None or process.stderr is None:
        raise ValueError("both outputs must be pipes")
    deadline = time.monotonic() + SECONDS
    pending, errors = b"", b""
    lines: list[bytes] = []
    cut = False
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stderr, selectors.EVENT_READ)
        while selector.get_map() and not cut:
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stderr:
                    errors = (errors + data)[:65536]
                else:
                    *complete, pending = (pending + data).split(b"\n")
                    lines.extend(complete)
            cut = len(lines) > limit or time.monotonic() >= deadline
    if cut:
        process.kill()
    process.wait()
    if pending:
        lines.append(pending)
    return lines, errors, cut


def _files(dirfd: int, keep: str, deadline: float) -> Iterator[tuple[str, int, str]]:
    """(relative path, directory descriptor, name) of regular files, sorted, links not followed."""
    visited = 0
    for top, dirs, names, fd in os.fwalk(".", dir_fd=dirfd, follow_symlinks=False):
        dirs[:] = sorted(name for name in dirs if name != ".git" and (name not in SKIPPED or name in keep))
        base = "" if top == "." else top[2:] + "/"
        for name in sorted(names):
            visited += 1
            if visited > MAX_VISITED or time.monotonic() > deadline:
                raise TimeoutError
            yield base + name, fd, name


def _scan(dirfd: int, single: str | None, request: dict[str, Any], limit: int) -> tuple[list[tuple[str, str]], bool]:
    try:
        pattern = re.compile(request["pattern"].encode("utf-8", "surrogateescape"))
    except re.error as error:
        raise Refused("invalid", f"The pattern is no valid regular expression: {error}.") from None
    wanted = glob_to_regex(request["glob"]) if request.get("glob") else None
    by_name = wanted is not None and "/" not in request["glob"]
    deadline = time.monotonic() + SECONDS
    found: list[tuple[str, str]] = []
    source: Iterator[tuple[str, int, str]]
    keep = request["path"] + " " + (request.get("glob") or "")
    source = iter([(single, dirfd, single)]) if single else _files(dirfd, keep, deadline)
    try:
        for path, fd, name in source:
            if wanted is None or wanted.fullmatch(name if by_name else path):
                for number, line in _matches(fd, name, pattern):
                    if len(found) >= limit:
                        return found, True
                    found.append((path, f"{number}:{line}"))
    except TimeoutError:
        return found, True
    return found, False


def _matches(dirfd: int, name: str, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, str]]:
    try:
        place = Place(dirfd, os.fsencode(name), name)
        with os.fdopen(place.open_file(), "rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_SEARCH_FILE:
                return
            head = file.read(8192)
            if b"\0" in head:
                return
            file.seek(0)
            for number, line in enumerate(file, 1):
                text = line.rstrip(b"\r\n")
                if pattern.search(text):
                    yield number, text[:MAX_LINE].decode("utf-8", "surrogateescape")
    except (OSError, Refused):
        return


def glob(workspace: Workspace, request: dict[str, Any], _body: bytes) -> Result:
    """Paths of files and links that match, one a line, in path order."""
    dirfd, single = _start(workspace.locate(request["path"]))
    if single is not None:
        raise Refused("not_directory", f"{request['path']} is not a directory.")
    pattern = request["pattern"]
    root = os.fsdecode(workspace.root)
    if pattern.startswith(root + "/"):
        pattern = pattern[len(root) + 1 :]
    if pattern.startswith("/") or ".." in pattern.split("/"):
        raise Refused("outside_workspace", "The pattern must be relative and may not contain '..'.")
    wanted = glob_to_regex(pattern[2:] if pattern.startswith("./") else pattern)
    prefix = _prefix(request["path"], None, root)
    limit = min(int(request["limit"]), MAX_RESULTS)
    found: list[str] = []
    cut = False
    try:
        for path, _, _ in _files(dirfd, request["path"] + " " + pattern, time.monotonic() + SECONDS):
            if wanted.fullmatch(path):
                if len(found) >= limit:
                    cut = True
                    break
                found.append(visible(prefix + path))
    except TimeoutError:
        cut = True
    result, count = _encode(found)
    return result, {"matches": count, "cut": int(cut or count < len(found))}


def glob_to_regex(pattern: str) -> re.Pattern[str]:
    """`**/` any directories, `**` anything, `*` and `?` within a name, `[...]` a set, `{a,b}` alternatives."""
    out, at, depth = "", 0, 0
    while at < len(pattern):
        ch = pattern[at]
        if pattern.startswith("**/", at):
            out, at = out + "(?:[^/]+/)*", at + 3
            continue
        if pattern.startswith("**", at):
            out, at = out + ".*", at + 2
            continue
        end = pattern.find("]", at + 2) if ch == "[" else -1
        if end > 0:
            body = pattern[at + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            out += "[" + ("^" + body[1:] if body[0] in "!^" else body) + "]"
            at = end
        elif ch == "{" and "}" in pattern[at:]:
            out, depth = out + "(?:", depth + 1
        elif ch == "}" and depth:
            out, depth = out + ")", depth - 1
        elif ch == "," and depth:
            out += "|"
        else:
            out += {"*": "[^/]*", "?": "[^/]"}.get(ch) or re.escape(ch)
        at += 1
    try:
        return re.compile(out, re.DOTALL)
    except re.error as error:
        raise Refused("invalid", f"The pattern is no valid glob: {error}.") from None
