"""`milepost doctor` and `milepost url`."""

from __future__ import annotations

import typer

from cli.failures import Exit
from cli.invocation import Invocation, command
from cli.routes import API
from milepost.domain.errors import TemporalUnavailable


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(app, "doctor")(doctor)
    command(app, "url")(url)


async def doctor(call: Invocation) -> Exit:
    """Check every real part and print the exact fix of what is wrong. Exits with 1 if something is."""
    from cli.connection import Need, reach

    async with reach(call, Need.READ) as reached:
        found = await reached.client.get(f"{API}/doctor")
    info = reached.info
    instance = None if info is None else {"pid": info.pid, "role": info.role, "release": info.release}
    if call.json:
        call.out.document({"ok": found["ok"], "checks": found["checks"], "instance": instance})
    else:
        from rich.markup import escape

        running = f"Instance: milepost {info.role}, pid {info.pid}." if info else "No instance is running."
        call.out.line(f"[dim]{escape(running)} Data root: {escape(str(call.root.path))}[/]")
        for check in found["checks"]:
            mark = "[green]ok  [/]" if check["ok"] else "[red]FAIL[/]"
            call.out.line(f"{mark} {escape(check['name']):<16} {escape(check['detail'])}")
            if check["fix"]:
                call.out.line(f"     {'':<16} [yellow]→ {escape(check['fix'])}[/]")
    return Exit.OK if found["ok"] else Exit.FAILED


async def url(call: Invocation) -> None:
    """Print where the running instance can be reached."""
    from cli.connection import running_info

    info = await running_info(call.root)
    if info is None:
        raise TemporalUnavailable(f"No instance runs on {call.root.path}.", fix="Start one: milepost dev")
    values = {
        "api": info.api_url,
        "socket": info.socket,
        "token_file": str(call.root.token),
        "temporal_ui": info.temporal_ui or None,
        "temporal": info.temporal_target,
    }
    if call.json:
        call.out.document(values)
    else:
        call.out.table(["", ""], [[name.replace("_", " "), value] for name, value in values.items() if value])
