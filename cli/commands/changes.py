"""`milepost turn diff`."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.invocation import Invocation, command
from cli.output import counted, printable
from cli.routes import API, Json

_SIGNS = {"added": "A", "deleted": "D", "modified": "M", "type_changed": "T"}
_STYLES = {"+": "green", "-": "red", " ": "default"}


def register(group: typer.Typer) -> None:
    """Add the commands of this module to those of turns."""
    command(group, "diff")(diff)


async def diff(
    call: Invocation,
    turn: Annotated[str, typer.Argument(metavar="TURN", help="Id of a turn.")],
    stat: Annotated[bool, typer.Option("--stat", help="Only the files, without their lines.")] = False,
) -> None:
    """Show which files a turn changed, by shell too, and which others changed meanwhile."""
    from cli.connection import Need, reach

    async with reach(call, Need.READ) as reached:
        found = await reached.client.get(f"{API}/turns/{turn}/changes", hunks=not stat)
    if call.json:
        call.out.document(found)
        return
    for file in found["files"]:
        print_file(call, file)
    if not found["files"]:
        call.out.line("The turn changed no files that its snapshots have.")
    _notes(call, found)


def print_file(call: Invocation, file: Json) -> None:
    """One file with its hunks."""
    from rich.markup import escape

    mode = ""
    if file["old_mode"] and file["new_mode"] and file["old_mode"] != file["new_mode"]:
        mode = f" ({file['old_mode']} -> {file['new_mode']})"
    counts = "binary" if file["binary"] else f"+{file['additions']} -{file['deletions']}"
    shared = " [yellow](somebody else changed it too)[/]" if file["shared"] else ""
    path = escape(_path(file["path"]))
    call.out.line(f"[bold]{_SIGNS[file['status']]} {path}[/] [dim]{counts}{mode}[/]{shared}")
    if file["truncated"]:
        call.out.line("  [dim](the diff is too large to show these lines)[/]")
    for hunk in file["hunks"]:
        heading = escape(printable(hunk["heading"]))
        place = f"@@ -{hunk['old_start']},{hunk['old_lines']} +{hunk['new_start']},{hunk['new_lines']} @@"
        call.out.line(f"[cyan]{place}[/] {heading}".rstrip())
        for line in hunk["lines"]:
            text = escape(printable(line["text"])).replace("\n", " ")
            call.out.line(f"[{_STYLES[line['kind']]}]{line['kind']}{text}[/]")


def _notes(call: Invocation, found: Json) -> None:
    told = {
        "outside_before": "Changed by others before the turn's first call",
        "outside_during": "Changed by others while the turn ran",
        "unclear": "Changed, maybe by a call whose end is not known",
        "omitted": "In no snapshot (unreadable or too large)",
    }
    for name, sentence in told.items():
        if found[name]:
            names = ", ".join(_path(path) for path in found[name][:10])
            more = f" and {counted(len(found[name]) - 10, 'other')}" if len(found[name]) > 10 else ""
            call.out.note(f"{sentence}: {names}{more}", style="yellow")
    for problem in found["problems"]:
        call.out.note(f"No snapshot: {problem}", style="yellow")


def _path(path: str) -> str:
    return printable(path).replace("\n", "\N{REPLACEMENT CHARACTER}")
