"""`milepost attach` and `milepost attachments ...`: files for a Session's turns."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.commands.exports import check_new, write_file
from cli.commands.sessions import SessionId
from cli.invocation import Invocation, command
from cli.output import printable, short
from cli.routes import API, Json

Attach = Annotated[
    list[Path] | None,
    typer.Option("--attach", metavar="FILE", help="A file for this turn; may be repeated."),
]
AttachmentId = Annotated[str, typer.Argument(metavar="ATTACHMENT", help="Id of an attachment.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(app, "attach")(attach)
    group = typer.Typer(help="Files that a Session's turns refer to.", no_args_is_help=True)
    app.add_typer(group, name="attachments")
    command(group, "list")(list_)
    command(group, "show")(show)
    command(group, "remove")(remove)


async def attach(
    call: Invocation,
    session: SessionId,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files.")],
    once: Annotated[bool, typer.Option("--once", help="For the next turn only.")] = False,
) -> None:
    """Attach files to a Session: to every turn from now on, or to the next one only."""
    from cli.attaching import check_files, send_files
    from cli.connection import Need, reach

    check_files(call, files)
    async with reach(call, Need.WRITE) as reached:
        done = await send_files(reached.client, session, [*files], once=once)
    if call.json:
        call.out.document({"session_id": session, "attachments": done})
    else:
        _table(call, done)


async def list_(
    call: Invocation,
    session: SessionId,
    selected: Annotated[bool, typer.Option("--selected", help="Only those that the next turn gets.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many, the newest first.")] = 50,
) -> None:
    """List a Session's attachments."""
    from cli.connection import Need, reach

    path = f"{API}/sessions/{session}/attachments"
    async with reach(call, Need.READ) as reached:
        if selected:
            found = (await reached.client.get(path, selected=True))["attachments"]
        else:
            found = await reached.client.pages(path, "attachments", limit)
    if call.json:
        call.out.document({"session_id": session, "attachments": found})
    else:
        _table(call, found)


async def show(
    call: Invocation,
    attachment: AttachmentId,
    text: Annotated[bool, typer.Option("--text", help="Print the text that was taken out of the file.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write the file itself to this new file.")
    ] = None,
) -> None:
    """Show an attachment, its text, or get the file."""
    from cli.connection import Need, reach

    if output is not None:
        check_new(output)
    path = f"{API}/attachments/{attachment}"
    async with reach(call, Need.READ) as reached:
        found = await reached.client.get(path)
        if output is not None:
            found["file"] = str(output)
            await write_file(reached.client.pieces(f"{path}/content"), output)
        if text:
            found["text"] = await reached.client.text(f"{path}/text")
    if call.json:
        call.out.document(found)
        return
    if text:
        call.out.write(printable(found["text"]) + "\n")
    elif output is not None:
        call.out.note(f"Wrote {found['size']:,} bytes to {output}.")
    else:
        call.out.table(["", ""], [[name, str(value)] for name, value in found.items() if value is not None])


async def remove(
    call: Invocation,
    attachments: Annotated[list[str], typer.Argument(metavar="ATTACHMENT...", help="Ids of attachments.")],
) -> None:
    """Take files from what later turns get; what turns have used can still be looked at."""
    from rich.markup import escape

    from cli.connection import Need, reach

    async with reach(call, Need.WRITE) as reached:
        done = [await reached.client.delete(f"{API}/attachments/{each}") for each in attachments]
    if call.json:
        call.out.document({"attachments": done})
        return
    for item in done:
        kept = f"; turn {item['used_by']} has it still" if item["used_by"] else ""
        call.out.line(f"Removed {item['attachment_id']} ({escape(short(item['name']))}){kept}.")


def _table(call: Invocation, found: list[Json]) -> None:
    rows = [
        [
            item["attachment_id"],
            item["name"],
            item["scope"],
            f"{item['size']:,}",
            item["media_type"],
            item["state"],
            _place(item),
            item["note"] or "",
        ]
        for item in found
    ]
    call.out.table(["ATTACHMENT", "NAME", "FOR", "BYTES", "TYPE", "TEXT", "NOW", ""], rows)


def _place(item: Json) -> str:
    if item["selected"]:
        return "selected"
    return "removed" if item["removed_at"] else "used"
