"""`milepost session rewind`."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.invocation import Invocation, command
from cli.output import counted, short
from cli.routes import API, Json


def register(group: typer.Typer) -> None:
    """Add the commands of this module to those of Sessions."""
    command(group, "rewind")(rewind)


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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would change.")] = False,
) -> None:
    """Take the turns after a point out of the conversation. Nothing is deleted, and nothing is started."""
    from cli.connection import Need, reach

    point = {"to_number": int(to)} if to.isascii() and to.isdigit() else {"to_turn": to}
    async with reach(call, Need.WRITE) as reached:
        body = point | {"reason": reason, "dry_run": dry_run}
        report = await reached.client.post(f"{API}/sessions/{session}/rewind", body)
    if call.json:
        call.out.document(report)
    else:
        print_report(call, report)


def print_report(call: Invocation, report: Json) -> None:
    """A rewind for people."""
    from rich.markup import escape

    point = f"turn {report['to_number']}" if report["to_number"] else "before the first turn"
    if not report["superseded"]:
        call.out.line(f"The Session is at {point} already; nothing to rewind.")
        return
    verb = "would be" if report["dry_run"] else "are"
    call.out.line(f"Rewind to {point}: {counted(report['superseded'], 'turn')} {verb} superseded.")
    for turn in report["turns"]:
        call.out.line(f"  {turn['number']}  {turn['state']}  {escape(short(turn['request'], 80))}")
    if report["workspace_calls"]:
        call.out.line(f"Files stay as these calls left them: {escape(calls(report['workspace_calls']))}")
    if report["outside"]:
        call.out.line(f"Cannot be undone, outside the Workspace: {escape(calls(report['outside']))}")


def calls(items: list[Json]) -> str:
    """Calls by name, state and number."""
    return ", ".join(f"{item['count']} x {item['operation']} ({item['state']})" for item in items)
