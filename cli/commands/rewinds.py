"""`milepost session rewind` and `milepost session fork`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.failures import Exit
from cli.invocation import Invocation, command
from cli.output import counted, short
from cli.routes import API, Json


def register(group: typer.Typer) -> None:
    """Add the commands of this module to those of Sessions."""
    command(group, "rewind")(rewind)
    command(group, "fork")(fork)


async def rewind(
    call: Invocation,
    session: Annotated[str, typer.Argument(metavar="SESSION", help="Id of a Session.")],
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="TURN", help="Last turn that shall count: its number or id; 0 is before the first."
        ),
    ],
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; kept in the ledger.")] = None,
    files: Annotated[bool, typer.Option("--files", help="Also restore the files that these turns changed.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="With --files: also files that somebody else changed since.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would change.")] = False,
) -> None:
    """Take the turns after a point out of the conversation. Nothing is deleted, and nothing is started."""
    from cli.connection import Need, reach

    point = {"to_number": int(to)} if to.isascii() and to.isdigit() else {"to_turn": to}
    async with reach(call, Need.WRITE) as reached:
        body = point | {"reason": reason, "files": files, "overwrite": overwrite, "dry_run": dry_run}
        report = await reached.client.post(f"{API}/sessions/{session}/rewind", body)
    if call.json:
        call.out.document(report)
    else:
        print_report(call, report)


async def fork(
    call: Invocation,
    session: Annotated[str, typer.Argument(metavar="SESSION", help="Id of a Session.")],
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="TURN", help="Last turn to copy: its number or id; default: the last that counts."
        ),
    ] = None,
    workspace: Annotated[
        Path | None, typer.Option("--workspace", "-w", metavar="DIR", help="Folder of the fork; default: the same.")
    ] = None,
    files: Annotated[
        bool, typer.Option("--files", help="Make the folder, with the files as they were at that point.")
    ] = False,
    title: Annotated[str | None, typer.Option("--title", metavar="TEXT", help="Title of the fork.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be copied.")] = False,
) -> Exit:
    """Make a new Session with a copy of the turns up to a point. The source stays as it is."""
    from cli.connection import Need, reach

    point: dict[str, object] = {}
    if at is not None:
        point = {"to_number": int(at)} if at.isascii() and at.isdigit() else {"to_turn": at}
    body = point | {
        "workspace": None if workspace is None else str(workspace.expanduser().absolute()),
        "files": files,
        "title": title,
        "dry_run": dry_run,
    }
    async with reach(call, Need.WRITE) as reached:
        report = await reached.client.post(f"{API}/sessions/{session}/fork", body)
    if call.json:
        call.out.document(report)
    elif report["session"] is None:
        call.out.line(f"{counted(report['turns'], 'turn')} would be copied, up to turn {report['to_number']}.")
        if files and report["tree"] is None:
            call.out.line("No state of files is recorded for that point; they would be taken as they are now.")
    else:
        call.out.line(report["session"]["session_id"])
        folder = report["session"]["workspace"]["path"]
        where = "with the files of that point in" if files else "it works on the files in"
        call.out.note(f"{counted(report['turns'], 'turn')} copied, {where} {folder}.")
    if report["omitted"]:
        call.out.note(f"{counted(report['omitted'], 'earlier turn')} left out.", style="yellow")
    if report["state"] in ("copying", "failed"):
        call.out.note(f"The fork is not done: {report['error'] or 'it is carried on later'}.", style="yellow")
    return Exit.FAILED if report["state"] == "failed" else Exit.OK


def print_report(call: Invocation, report: Json) -> None:
    """A rewind for people."""
    from rich.markup import escape

    point = f"turn {report['to_number']}" if report["to_number"] else "before the first turn"
    if not report["superseded"]:
        call.out.line(f"The Session is at {point} already; nothing to rewind.")
        return
    verb = "would be" if report["dry_run"] else "is" if report["superseded"] == 1 else "are"
    call.out.line(f"Rewind to {point}: {counted(report['superseded'], 'turn')} {verb} superseded.")
    for turn in report["turns"]:
        call.out.line(f"  {turn['number']}  {turn['state']}  {escape(short(turn['request'], 80))}")
    if report["files"]:
        _print_files(call, report["files"], dry_run=report["dry_run"])
    elif report["workspace_calls"]:
        call.out.line(f"Files stay as these calls left them: {escape(calls(report['workspace_calls']))}")
        if report["dry_run"]:
            call.out.line("  --files restores them too; decide when you rewind, it cannot be done later.")
        else:
            point = f"milepost session fork {report['session_id']} --at {report['to_number']} --files --workspace DIR"
            call.out.line(f"  A new folder with the files of that point: {point}")
    if report["outside"]:
        call.out.line(f"Cannot be undone, outside the Workspace: {escape(calls(report['outside']))}")


def _print_files(call: Invocation, files: Json, *, dry_run: bool) -> None:
    from rich.markup import escape

    if dry_run:
        call.out.line(f"{counted(files['count'], 'file')} would be restored:")
    elif files["done"]:
        call.out.line(f"{counted(files['changed'], 'file')} restored; the state before is {files['present']}.")
    else:
        call.out.line(f"[yellow]Files are not restored yet[/]: {escape(files['error'] or 'before the next call')}")
    for item in files["paths"][:20]:
        call.out.line(f"  {item['action']:6}  {escape(short(item['path'], 100))}")
    if files["count"] > 20:
        call.out.line(f"  and {counted(files['count'] - 20, 'other')}")
    told = {
        "conflicts": "Left as they are, since somebody else changed them too (--overwrite restores them)",
        "kept": "Left as they are, since somebody changed them at the last moment",
        "failed": "Could not be written",
    }
    for name, sentence in told.items():
        if files[name]:
            call.out.line(f"[yellow]{sentence}[/]: {escape(short(', '.join(files[name][:20]), 500))}")
    if files["incomplete_turns"]:
        numbers = ", ".join(map(str, files["incomplete_turns"][:20]))
        call.out.line(f"[yellow]Some changes of these turns are in no snapshot[/]: {numbers}")


def calls(items: list[Json]) -> str:
    """Calls by name, state and number."""
    return ", ".join(f"{item['count']} x {item['operation']} ({item['state']})" for item in items)
