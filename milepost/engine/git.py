"""Git's commands as they are run in the sandbox, and its answers. Pure.

Formats: `git-status(1)` porcelain version 2 with NUL, `git-diff(1)` raw and patch, `git-for-each-ref(1)`, `git-log(1)`.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

from milepost.domain.git import HUNK_ID_LENGTH, Branch, Commit, FileDiff, FileState, GitSide, GitStatus, Hunk

# The repository is not trusted: nothing that its configuration names is started by a command that only looks.
_SETTINGS = (
    *("core.fsmonitor=false", "core.quotePath=false", "core.pager=cat", "core.editor=true", "color.ui=false"),
    *("diff.external=", "diff.noprefix=false", "diff.mnemonicPrefix=false", "diff.relative=false"),
    *("diff.ignoreSubmodules=untracked", "status.submoduleSummary=false", "submodule.recurse=false"),
    *("commit.gpgSign=false", "tag.gpgSign=false", "log.showSignature=false", "gc.auto=0", "maintenance.auto=false"),
    *("protocol.allow=never", "advice.detachedHead=false", "safe.directory=*"),
)
_VARIABLES = "GIT_CONFIG_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0 GIT_EDITOR=true GIT_PAGER=cat GIT_ASKPASS=true LC_ALL=C"
_LOOKING = "GIT_OPTIONAL_LOCKS=0"
DIFF = (
    "diff",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--full-index",
    "-M",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)
UNDER_WAY = {
    "MERGE_HEAD": "merge",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "BISECT_LOG": "bisect",
}
_FIELD, _RECORD = "\x1f", "\x1e"
_HUNK = re.compile(r"^@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@", re.MULTILINE)


def command(*arguments: str, looking: bool = False, hooks: bool = False) -> str:
    """A shell command that runs git. `looking`: it takes no lock, not even for the index. `hooks`: they may run."""
    settings = (*_SETTINGS, *(() if hooks else ("core.hooksPath=/dev/null",)))
    options = [part for setting in settings for part in ("-c", setting)]
    words = ["git", "--no-pager", "--literal-pathspecs", *options, *arguments]
    return f"{_VARIABLES} {_LOOKING if looking else ''} {shlex.join(words)}".replace("  ", " ")


def paths_input(paths: Iterable[str]) -> bytes:
    """Paths for `--pathspec-from-file=- --pathspec-file-nul`."""
    return b"".join(path.encode("utf-8", "surrogateescape") + b"\0" for path in paths)


def quoted(paths: Iterable[str]) -> str:
    """Paths as words of a shell command, to come after `--`."""
    return shlex.join(paths)


FROM_INPUT = ("--pathspec-from-file=-", "--pathspec-file-nul")


# --- status ---------------------------------------------------------------------------------------------------------


def status_command() -> str:
    """First what is under way, a line each, then NUL, then the status."""
    looks = "; ".join(f'[ -e "$(git rev-parse --git-path {name} 2>/dev/null)" ] && echo {name}' for name in UNDER_WAY)
    status = command("status", "--porcelain=v2", "-z", "--branch", "--untracked-files=all", looking=True)
    return f"({looks}; printf '\\0'); {status}"


def parse_status(data: bytes, limit: int) -> GitStatus:
    """Raises ValueError for what git does not write."""
    first, _, rest = data.partition(b"\0")
    under_way = tuple(dict.fromkeys(UNDER_WAY[line] for line in first.decode().split() if line in UNDER_WAY))
    heads: dict[str, str] = {}
    files: list[FileState] = []
    records = iter(rest.split(b"\0"))
    for raw in records:
        line = raw.decode("utf-8", "surrogateescape")
        if line.startswith("# branch."):
            name, _, value = line[len("# branch.") :].partition(" ")
            heads[name] = value
        elif line.startswith("# ") or not line:
            continue
        else:
            files.append(_file(line, records))
    ahead = behind = None
    if "ab" in heads:
        plus, minus = heads["ab"].split()
        ahead, behind = int(plus), -int(minus)
    head, oid = heads.get("head"), heads.get("oid")
    return GitStatus(
        branch=None if head == "(detached)" else head,
        commit=None if oid == "(initial)" else oid,
        upstream=heads.get("upstream"),
        ahead=ahead,
        behind=behind,
        under_way=under_way,
        files=tuple(files[:limit]),
        complete=len(files) <= limit,
    )


def _file(line: str, records: Iterator[bytes]) -> FileState:
    kind = line[0]
    if kind in "?!":
        return FileState(line[2:], ".", kind)
    if kind == "1":
        _, states, sub, *_, path = line.split(" ", 8)
        return FileState(path, states[0], states[1], submodule=sub != "N...")
    if kind == "2":
        _, states, sub, *_, path = line.split(" ", 9)
        return FileState(path, states[0], states[1], _text(next(records)), submodule=sub != "N...")
    if kind == "u":
        _, states, sub, *_, path = line.split(" ", 10)
        return FileState(path, states[0], states[1], conflict=True, submodule=sub != "N...")
    raise ValueError(f"unknown status line {line[:40]!r}")


# --- diff -----------------------------------------------------------------------------------------------------------


def between(side: GitSide, revision: str | None, to: str | None, *, unborn: bool = False) -> tuple[str, ...]:
    """The arguments that say what is compared."""
    if revision is not None:
        return (revision, to) if to is not None else (revision,)
    if side is GitSide.WORKTREE:
        return ()
    if side is GitSide.STAGED:
        return ("--cached",)
    return ("--cached",) if unborn else ("HEAD",)


def diff_commands(compared: Sequence[str], paths: Sequence[str]) -> tuple[str, str]:
    """The list of changed files, and the patch of the same files in the same order."""
    where = ("--", *paths)
    common = (*DIFF, *compared)
    return (
        command(*common, "--raw", "-z", "--abbrev=40", *where, looking=True),
        command(*common, "--diff-filter=u", "--patch", *where, looking=True),
    )


def parse_diff(raw: bytes, patch: bytes) -> list[FileDiff]:
    """Changed files with their hunks, but for those in conflict.

    Raises ValueError if the two do not tell of the same files (they changed).
    """
    every = list(_listed(raw))
    # A file in conflict is listed twice, and has a patch of another form.
    conflicts = {found.path for found in every if found.status == "U"}
    listed = [found for found in every if found.path not in conflicts]
    sections = _sections(_text(patch))
    if len(sections) != len(listed):
        raise ValueError("the files changed while they were compared")
    return [_with_hunks(found, section) for found, section in zip(listed, sections, strict=True)]


def _listed(raw: bytes) -> Iterator[FileDiff]:
    records = iter(raw.split(b"\0"))
    for record in records:
        if not record:
            continue
        old, new, _, _, status = _text(record)[1:].split(" ")
        path = _text(next(records))
        before = None
        if status[0] in "RC":
            before, path = path, _text(next(records))
        yield FileDiff(path, status[0], before, _mode(old), _mode(new))


def _mode(text: str) -> str | None:
    return None if text == "000000" else text


def _sections(patch: str) -> list[str]:
    """Text of each file; a line of a file's content never begins at the first column."""
    starts = [found.start() for found in re.finditer(r"^diff --git ", patch, re.MULTILINE)]
    return [patch[start:end] for start, end in itertools.pairwise((*starts, len(patch)))] if starts else []


def _with_hunks(found: FileDiff, section: str) -> FileDiff:
    starts = [each.start() for each in _HUNK.finditer(section)]
    head = section[: starts[0]] if starts else section
    seen: dict[str, int] = {}
    hunks = []
    for start, end in itertools.pairwise((*starts, len(section))):
        header, _, text = section[start:end].partition("\n")
        occurrence = seen[text] = seen.get(text, 0) + 1
        hunks.append(Hunk(_hunk_id(found.path, text, occurrence), header, text))
    binary = not hunks and re.search(r"^(?:Binary files |GIT binary patch)", head, re.MULTILINE) is not None
    return FileDiff(found.path, found.status, found.before, found.old_mode, found.new_mode, binary, tuple(hunks), head)


def _hunk_id(path: str, text: str, occurrence: int) -> str:
    data = "\0".join((path, text, str(occurrence))).encode("utf-8", "surrogateescape")
    return hashlib.sha256(data).hexdigest()[:HUNK_ID_LENGTH]


def patch_of(files: Iterable[FileDiff], chosen: frozenset[str]) -> bytes:
    """A patch of the chosen hunks alone, for `git apply --recount`."""
    parts = []
    for found in files:
        hunks = [hunk for hunk in found.hunks if hunk.hunk_id in chosen]
        if hunks:
            parts.append(found.head + "".join(f"{hunk.header}\n{hunk.text}" for hunk in hunks))
    return "".join(parts).encode("utf-8", "surrogateescape")


# --- branches and commits ---------------------------------------------------------------------------------------------


def branches_command(limit: int) -> str:
    form = "%1f".join(("%(refname:short)", "%(objectname)", "%(HEAD)", "%(upstream:short)", "%(contents:subject)"))
    sort = "--sort=-committerdate"
    return command("for-each-ref", sort, f"--count={limit}", f"--format={form}%1e", "refs/heads", looking=True)


def parse_branches(data: bytes) -> list[Branch]:
    found = []
    for record in _records(data):
        name, commit, head, upstream, subject = record.split(_FIELD, 4)
        found.append(Branch(name, commit, head == "*", upstream or None, subject))
    return found


def log_command(revision: str, limit: int, skip: int) -> str:
    form = "%x1f".join(("%H", "%P", "%an", "%ae", "%ct", "%s"))
    bounds = (f"--max-count={limit}", f"--skip={skip}")
    return command("log", *bounds, f"--format=tformat:{form}%x1e", "--no-color", revision, "--", looking=True)


def parse_log(data: bytes) -> list[Commit]:
    found = []
    for record in _records(data):
        commit, parents, author, email, at, subject = record.split(_FIELD, 5)
        found.append(Commit(commit, tuple(parents.split()), author, email, int(at), subject))
    return found


def _records(data: bytes) -> list[str]:
    return [record.lstrip("\n") for record in _text(data).split(_RECORD) if record.strip()]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
