"""Recorded outputs as the text a model gets, bounded, with hints how to go on."""

from __future__ import annotations

from milepost.domain.outputs import Output, OutputMatches, OutputRef
from milepost.tools.rendering import TEXT_LIMIT, ToolOutput

_HINT_ROOM = 512


def parse_ref(text: str) -> OutputRef:
    """A ref that the tool's schema has accepted."""
    turn, round_, call = (int(part) for part in text.split("."))
    return OutputRef(turn, round_, call)


def render_slice(output: Output, offset: int, limit: int) -> ToolOutput:
    """Characters `offset` to `offset + limit` of an output, at most 64 KiB, and where to read on."""
    size = len(output.text)
    if offset >= size and size > 0:
        return ToolOutput(f"[output {output.ref} of {output.tool} has {size} characters, 0-{size - 1}]", False)
    if size == 0:
        return ToolOutput(f"[output {output.ref} of {output.tool} is empty]", False)
    piece = output.text[offset : offset + limit].encode("utf-8", "replace")[: TEXT_LIMIT - _HINT_ROOM]
    shown = piece.decode("utf-8", "ignore")
    end = offset + len(shown)
    hint = "this is the end" if end >= size else f"read on with offset={end}"
    note = f"[characters {offset}-{end - 1} of {size} of output {output.ref} of {output.tool}; {hint}]"
    return ToolOutput(f"{shown}\n{note}", False, {"characters": len(shown), "size": size})


def render_matches(found: OutputMatches, query: str) -> ToolOutput:
    """Matches, one a line, and what was not looked at."""
    rows = [f"{match.ref} {match.tool} @{match.offset}: {match.line}" for match in found.matches]
    if not rows:
        rows.append(f"[no output has this text; {found.calls} calls searched]")
    if found.cut:
        rows.append("[there are more; search for a longer text, or in one ref]")
    elif found.unsearched > 1:
        rows.append(f"[calls before turn {found.unsearched} were not searched]")
    return ToolOutput("\n".join(rows), False, {"matches": len(found.matches)})
