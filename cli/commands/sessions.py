"""`milepost session ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from cli.budgets import SessionBudget, budget_body
from cli.commands import rewinds
from cli.invocation import Invocation, command
from cli.routes import API, Json

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="Id of a Session.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Open, list and close Sessions.", no_args_is_help=True)
    app.add_typer(group, name="session")
    command(group, "new")(new)
    command(group, "list")(list_)
    command(group, "show")(show)
    command(group, "close")(close)
    command(group, "reopen")(reopen)
    rewinds.register(group)


async def new(
    call: Invocation,
    workspace: Annotated[Path, typer.Argument(metavar="WORKSPACE", help="Folder the Session works on.")] = Path(),
    title: Annotated[
        str | None, typer.Option("--title", metavar="TEXT", help="Title; default: the folder's name.")
    ] = None,
    agents: Annotated[
        list[str] | None, typer.Option("--agent", metavar="ID", help="Agent of the Session; again for several.")
    ] = None,
    image: Annotated[str | None, typer.Option("--image", metavar="NAME", help="Sandbox image of the Session.")] = None,
    port: Annotated[
        list[int] | None,
        typer.Option("--port", metavar="N", help="Port of the sandbox to publish on loopback; may be repeated."),
    ] = None,
    budget: SessionBudget = None,
    skill: Annotated[
        list[str] | None,
        typer.Option("--skill", metavar="ID", help="Skill of the Session, in place of the agent's; may be repeated."),
    ] = None,
) -> None:
    """Open a Session on a folder."""
    from cli.connection import Need, reach

    body = {
        "workspace": str(workspace.expanduser().absolute()),
        "title": title,
        "agents": agents or None,
        "image": image,
        "ports": port or None,
        "budget": budget_body(budget),
        "skills": skill or None,
    }
    async with reach(call, Need.WRITE) as reached:
        session = await reached.client.post(f"{API}/sessions", body)
    if call.json:
        call.out.document(session)
    else:
        call.out.line(session["session_id"])


async def list_(
    call: Invocation,
    status: Annotated[Literal["active", "closed"] | None, typer.Option("--status", help="Only these.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="At most so many.")] = 50,
) -> None:
    """List Sessions, newest first."""
    from cli.connection import Need, reach

    async with reach(call, Need.READ) as reached:
        sessions = await reached.client.pages(f"{API}/sessions", "sessions", limit, status=status)
    if call.json:
        call.out.document({"sessions": sessions})
        return
    rows = [
        [item["session_id"], item["status"], ", ".join(item["agents"]), item["title"], item["workspace"]["path"]]
        for item in sessions
    ]
    call.out.table(["SESSION", "STATUS", "AGENT", "TITLE", "WORKSPACE"], rows)


async def show(call: Invocation, session: SessionId) -> None:
    """Show one Session and its running turn."""
    from cli.connection import Need, reach

    async with reach(call, Need.READ) as reached:
        found = await reached.client.get(f"{API}/sessions/{session}")
        active = (await reached.client.get(f"{API}/sessions/{session}/turns/active"))["turn"]
    if call.json:
        call.out.document(found | {"active_turn": active})
        return
    rows = [[name.replace("_", " "), str(value)] for name, value in _facts(found, active) if value is not None]
    call.out.table(["", ""], rows)


def _facts(session: Json, active: Json | None) -> list[tuple[str, object]]:
    return [
        ("session", session["session_id"]),
        ("title", session["title"]),
        ("status", session["status"]),
        ("workspace", session["workspace"]["path"]),
        ("agents", ", ".join(session["agents"])),
        ("image", session["image"]),
        ("created", session["created_at"]),
        ("closed", session["closed_at"]),
        ("running turn", f"{active['turn_id']} ({active['status']})" if active else None),
    ]


async def close(call: Invocation, session: SessionId) -> None:
    """Close a Session: it accepts no more turns until it is reopened."""
    await _move(call, session, "close")


async def reopen(call: Invocation, session: SessionId) -> None:
    """Make a closed Session active again."""
    await _move(call, session, "reopen")


async def _move(call: Invocation, session: str, action: str) -> None:
    from cli.connection import Need, reach

    async with reach(call, Need.WRITE) as reached:
        found = await reached.client.post(f"{API}/sessions/{session}/{action}")
    if call.json:
        call.out.document(found)
    else:
        call.out.line(f"Session {session} is {found['status']}.")
