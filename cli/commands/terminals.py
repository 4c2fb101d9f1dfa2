"""`milepost terminal ...`."""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cli.failures import Exit
from cli.invocation import Invocation, command
from cli.output import short
from cli.routes import API, Json
from milepost.domain.errors import InstanceNotRunning

if TYPE_CHECKING:
    from cli.client import ApiClient

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="Id of a Session.")]
TerminalId = Annotated[str, typer.Argument(metavar="TERMINAL", help="Id of a terminal or background command.")]
Actor = Annotated[str | None, typer.Option("--actor", metavar="NAME", help="Who does it; kept in the ledger.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Terminals and background commands of a Session's sandbox.", no_args_is_help=True)
    app.add_typer(group, name="terminal")
    command(group, "open")(open_)
    command(group, "list")(list_)
    command(group, "attach")(attach)
    command(group, "read")(read)
    command(group, "kill")(kill)


async def _instance(call: Invocation) -> tuple[ApiClient, str]:
    """A client of the running instance, and its socket."""
    from cli.connection import running

    found = await running(call.root)
    if found is None or found.info is None:
        raise InstanceNotRunning(
            f"No instance runs on {call.root.path}, so no sandbox is open.", fix="Start one: milepost dev"
        )
    return found.client, found.info.socket


async def open_(
    call: Invocation,
    session: SessionId,
    command: Annotated[
        str | None, typer.Argument(metavar="[COMMAND]", help="What to run in it, as one text; default: a shell.")
    ] = None,
    cwd: Annotated[str, typer.Option("--cwd", metavar="DIR", help="Where, relative to the Workspace.")] = ".",
    lifetime: Annotated[
        int, typer.Option("--lifetime", metavar="SECONDS", min=1, max=86_400, help="It is ended after so long.")
    ] = 28_800,
    detach: Annotated[bool, typer.Option("--detach", help="Print its id and do not attach.")] = False,
    actor: Actor = None,
) -> Exit | None:
    """Open a terminal in the Session's sandbox and attach to it; Ctrl-] detaches, and it goes on."""
    from cli.screen import Screen

    client, _ = await _instance(call)
    try:
        rows, columns = Screen().size()
        body: Json = {"command": command, "cwd": cwd, "lifetime": lifetime, "rows": rows, "columns": columns}
        found = await client.post(f"{API}/sessions/{session}/terminals", {**body, "actor": actor})
    finally:
        await client.close()
    if call.json:
        call.out.document(found)
        return None
    if detach:
        call.out.line(found["terminal_id"])
        return None
    return await attach(call, session, found["terminal_id"])


async def list_(call: Invocation, session: SessionId) -> None:
    """List the terminals and background commands of a Session, newest first."""
    from cli.connection import Need, reach

    async with reach(call, Need.READ) as reached:
        found = await reached.client.get(f"{API}/sessions/{session}/terminals")
    if call.json:
        call.out.document(found)
        return
    rows = [
        [each["terminal_id"], each["kind"], _state(each), each["started_by"], short(each["command"] or "shell", 60)]
        for each in found["terminals"]
    ]
    call.out.table(["Terminal", "Kind", "State", "By", "Command"], rows)


def _state(found: Json) -> str:
    if found["running"]:
        return "running"
    return f"exit {found['exit_code']}" if found["exit_code"] is not None else str(found["ended_by"])


async def attach(call: Invocation, session: SessionId, terminal: TerminalId) -> Exit | None:
    """Attach to a terminal: keys, output and size pass through. Ctrl-] detaches; the end of the terminal returns."""
    from cli.screen import Address, Screen, Shown
    from cli.screen import attach as attached
    from milepost.security.token import load_or_create_token

    client, socket = await _instance(call)
    await client.close()
    screen, shown = Screen(), Shown()
    if screen.is_terminal:
        call.out.note(f"Attached to {terminal}; Ctrl-] detaches.")
    await attached(screen, Address(socket, load_or_create_token(call.root.token), session, terminal), shown)
    if shown.detached or shown.ended is None:
        call.out.note(f"Detached; it goes on. Attach again: milepost terminal attach {session} {terminal}")
        return None
    code, why = shown.ended["exit_code"], shown.ended["ended_by"]
    call.out.note(f"The terminal has ended ({f'exit code {code}' if code is not None else why}).")
    return Exit.OK if code == 0 else Exit.FAILED


async def read(
    call: Invocation,
    session: SessionId,
    terminal: TerminalId,
    offset: Annotated[int, typer.Option("--offset", metavar="N", help="First byte; negative: from the end.")] = 0,
) -> None:
    """Print the output that is kept, as it is."""
    client, _ = await _instance(call)
    try:
        path = f"{API}/sessions/{session}/terminals/{terminal}/output"
        found = await client.get(path, offset=offset, limit=1024 * 1024)
    finally:
        await client.close()
    if call.json:
        call.out.document(found)
        return
    if found["gap"]:
        call.out.note(f"{found['gap']} bytes before this are not kept any more.")
    sys.stdout.buffer.write(base64.b64decode(found["data"]))
    sys.stdout.buffer.flush()


async def kill(call: Invocation, session: SessionId, terminal: TerminalId, actor: Actor = None) -> None:
    """End a terminal or background command with all processes it started."""
    client, _ = await _instance(call)
    try:
        found = await client.post(f"{API}/sessions/{session}/terminals/{terminal}/kill", {"actor": actor})
    finally:
        await client.close()
    if call.json:
        call.out.document(found)
        return
    call.out.line(f"{terminal}: {_state(found)}")
