"""An outcome as the text a model gets, bounded, with hints how to go on."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from milepost.ports.sandbox import EditFile, Exec, Glob, Grep, ListDir, Operation, Outcome, ReadFile, WriteFile

TEXT_LIMIT = 64 * 1024
STREAM_LIMIT = 32 * 1024
_HINT_ROOM = 512
_BINARY_PROBE = 8192

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colors, cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC: titles, links
    r"|\x1b[PX^_][^\x1b]*\x1b\\"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]"
)


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """`text` goes to the model; `full_text` is the whole output if `text` is not; `detail` is structured."""

    text: str
    is_error: bool
    detail: dict[str, Any] = field(default_factory=dict)
    full_text: str | None = None


def render(tool: str, operation: Operation, outcome: Outcome) -> ToolOutput:
    """What the model is told of an ended call. `tool` is only named in texts."""
    detail = _detail(outcome)
    if outcome.error_code is not None:
        return ToolOutput(outcome.error or f"{tool} failed.", True, detail)
    match operation:
        case Exec():
            return _command(operation, outcome, detail)
        case ReadFile():
            return _read(operation, outcome, detail)
        case WriteFile(path=path):
            verb = "Created" if outcome.detail.get("created") else "Replaced"
            return ToolOutput(f"{verb} {path} ({outcome.detail.get('bytes', 0)} bytes).", False, detail)
        case EditFile(path=path):
            count = int(outcome.detail.get("replacements", 0))
            where = f"line {outcome.detail.get('line')}" if count == 1 else f"{count} places, first at line "
            where += "" if count == 1 else str(outcome.detail.get("line"))
            return ToolOutput(f"Edited {path} ({where}).", False, detail)
        case ListDir():
            return _listing(outcome, detail)
        case Grep():
            return _lines(outcome, detail, "No matches.", "narrow the pattern, the path or the glob")
        case Glob():
            return _lines(outcome, detail, "No files match.", "narrow the pattern or the path")


def render_answer(text: str, *, is_error: bool, detail: dict[str, Any]) -> ToolOutput:
    """What the model is told of the answer of a tool of the user's own: at most 64 KiB, beginning and end."""
    if len(text) * 4 <= TEXT_LIMIT:
        return ToolOutput(text, is_error, detail)
    shown, cut = _shown(text.encode("utf-8", "replace"), TEXT_LIMIT - _HINT_ROOM)
    return ToolOutput(shown, is_error, detail, text if cut else None)


def _detail(outcome: Outcome) -> dict[str, Any]:
    flags = {name: True for name in ("truncated", "timed_out", "killed", "attached") if getattr(outcome, name)}
    result: dict[str, Any] = {**outcome.detail, **flags}
    if outcome.exit_code is not None:
        result["exit_code"] = outcome.exit_code
    if outcome.error_code is not None:
        result["error_code"] = outcome.error_code
    return result


# --- commands ---------------------------------------------------------------------------------------------------


def _command(operation: Exec, outcome: Outcome, detail: dict[str, Any]) -> ToolOutput:
    stdout, out_cut = _shown(outcome.stdout, STREAM_LIMIT - _HINT_ROOM)
    stderr, err_cut = _shown(outcome.stderr, STREAM_LIMIT - _HINT_ROOM)
    parts = [stdout.rstrip("\n")] if stdout.strip() else []
    if stderr.strip():
        parts.append(f"[stderr]\n{stderr.rstrip()}")
    note = _ending(operation, outcome, detail)
    if note or not parts:
        parts.append(note or "[no output, exit code 0]")
    whole: str | None = None
    if out_cut or err_cut:
        whole = _decode(outcome.stdout) + (f"\n[stderr]\n{_decode(outcome.stderr)}" if outcome.stderr else "")
    return ToolOutput("\n".join(parts), outcome.exit_code != 0, detail, whole)


def _ending(operation: Exec, outcome: Outcome, detail: dict[str, Any]) -> str:
    notes: list[str] = []
    if outcome.timed_out:
        notes.append(f"[timed out after {operation.timeout:g} seconds; the command and all its processes were ended]")
    elif outcome.killed:
        notes.append("[stopped; the command and all its processes were ended]")
    elif outcome.exit_code:
        notes.append(f"[exit code {outcome.exit_code}]")
    if outcome.truncated:
        notes.append("[the output was over 16 MiB; its middle part was not kept]")
    if detail.get("cwd_lost"):
        notes.append(f"[{detail['cwd_lost']} The command ran in the workspace.]")
    if detail.get("cwd_outside"):
        notes.append(f"[{detail['cwd_outside']} is outside the workspace; the next command begins in the workspace]")
    elif detail.get("cwd") not in (None, operation.cwd):
        notes.append(f"[the next command begins in {detail['cwd']}]")
    if detail.get("leftover_processes"):
        notes.append(f"[{detail['leftover_processes']} background processes were ended with the command]")
    return "\n".join(notes)


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def plain(text: str) -> str:
    """Without terminal control: colors, titles, and lines that were overwritten (progress bars)."""
    text = _ESCAPES.sub("", text)
    if "\r" not in text:
        return text
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))


def _shown(data: bytes, limit: int) -> tuple[str, bool]:
    """At most `limit` bytes: all, or the beginning and the end with how much is left out. Whether it was cut.

    Only a few times `limit` is looked at, however long the output is.
    """
    window = 4 * limit
    whole = len(data) <= 2 * window
    text = plain(_decode(data if whole else data[:window])).encode("utf-8", "replace")
    if whole and len(text) <= limit:
        return text.decode("utf-8"), False
    last = text if whole else plain(_decode(data[-window:])).encode("utf-8", "replace")
    head, tail = text[: limit // 2].decode("utf-8", "ignore"), last[-(limit // 2) :].decode("utf-8", "ignore")
    return f"{head}\n[... {max(0, len(data) - limit)} bytes left out ...]\n{tail}", True


# --- files ------------------------------------------------------------------------------------------------------


def _read(operation: ReadFile, outcome: Outcome, detail: dict[str, Any]) -> ToolOutput:
    data, path = outcome.stdout, operation.path
    size = int(outcome.detail.get("size", 0))
    if b"\0" in data[:_BINARY_PROBE]:
        text = f"{path} is a binary file of {size} bytes and is not shown. Use bash to look at it (file, xxd, strings)."
        return ToolOutput(text, False, {**detail, "binary": True})
    first = int(outcome.detail.get("first_line", 1))
    total = outcome.detail.get("total_lines")
    if not data:
        known = f" {path} has {total} lines." if total else ""
        text = "[the file is empty]" if size == 0 else f"[there is no line {operation.offset + 1}.{known}]"
        return ToolOutput(text, False, detail)
    body, lines = _whole_lines(data, TEXT_LIMIT - _HINT_ROOM)
    text = _decode(body)
    last = first + lines - 1
    notes: list[str] = []
    if lines == 0:
        lines, last = 1, first
        notes.append(f"[line {first} is longer than {len(body)} bytes; only its beginning is shown]")
    of_total = f" of {total}" if total is not None else ""
    if not outcome.detail.get("end") or len(body) < len(data):
        notes.append(f"[lines {first}-{last}{of_total}; read on with offset={last + 1}]")
    elif first > 1:
        notes.append(f"[lines {first}-{last}{of_total}; this is the end]")
    if "�" in text:
        notes.append("[some bytes are not UTF-8 and are shown as �]")
    if notes:
        text = text.rstrip("\n") + "\n" + "\n".join(notes)
    return ToolOutput(text, False, {**detail, "shown_lines": lines})


def _whole_lines(data: bytes, limit: int) -> tuple[bytes, int]:
    """The leading whole lines within `limit` bytes and their number; (a piece, 0) if the first line is longer."""
    if len(data) <= limit:
        return data, data.count(b"\n") + (0 if data.endswith(b"\n") else 1)
    end = data.rfind(b"\n", 0, limit) + 1
    if end == 0:
        return data[:limit], 0
    return data[:end], data.count(b"\n", 0, end)


def _listing(outcome: Outcome, detail: dict[str, Any]) -> ToolOutput:
    rows: list[str] = []
    for line in outcome.stdout.decode("ascii").splitlines():
        entry = json.loads(line)
        name = _printable(entry["name"])
        if entry["kind"] == "dir":
            rows.append(f"{name}/")
        elif entry["kind"] == "link":
            rows.append(f"{name} -> {_printable(entry['target'])}")
        else:
            rows.append(f"{name} ({entry['size']} bytes)" if entry["kind"] == "file" else f"{name} (special file)")
    left = int(outcome.detail.get("entries", len(rows))) - len(rows)
    hint = f"{left} more entries" if left > 0 else None
    return _bounded_rows(rows, detail, "[the directory is empty]", hint, "use glob or bash to see the others")


def _printable(name: str) -> str:
    """Control characters and bytes that are no UTF-8, escaped."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode("ascii") for ch in text)


def _lines(outcome: Outcome, detail: dict[str, Any], nothing: str, advice: str) -> ToolOutput:
    text = outcome.stdout.decode("utf-8", "replace")
    rows = text.split("\n") if text else []
    hint = "there may be more" if outcome.detail.get("cut") else None
    return _bounded_rows(rows, detail, nothing, hint, advice)


def _bounded_rows(rows: list[str], detail: dict[str, Any], nothing: str, hint: str | None, advice: str) -> ToolOutput:
    if not rows:
        return ToolOutput(nothing if hint is None else f"[nothing found in time; {advice}]", False, detail)
    room = TEXT_LIMIT - _HINT_ROOM
    shown: list[str] = []
    for row in rows:
        room -= len(row.encode("utf-8", "replace")) + 1
        if room < 0:
            break
        shown.append(row)
    text = "\n".join(shown)
    whole: str | None = None
    if len(shown) < len(rows):
        whole = "\n".join(rows)
        text += f"\n[{len(rows) - len(shown)} more lines are not shown; {advice}]"
    elif hint is not None:
        text += f"\n[{hint}; {advice}]"
    return ToolOutput(text, False, {**detail, "shown": len(shown)}, whole)
