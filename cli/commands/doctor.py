"""`milepost doctor` and `milepost url`."""

from __future__ import annotations

import contextlib
import dataclasses
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from cli.agreement import require_agreement
from cli.failures import Exit
from cli.invocation import Invocation, command
from cli.routes import API, Json
from milepost.domain.errors import MilepostError, TemporalUnavailable

if TYPE_CHECKING:
    from cli.connection import Reached


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(app, "doctor")(doctor)
    command(app, "url")(url)


class Part(StrEnum):
    """What can be looked at closely."""

    SANDBOX = "sandbox"


async def doctor(
    call: Invocation,
    part: Annotated[
        Part | None, typer.Argument(metavar="[PART]", help="sandbox: try each of its requirements for real.")
    ] = None,
) -> Exit:
    """Check every real part and print the exact fix of what is wrong. Exits with 1 if something is."""
    if part is Part.SANDBOX:
        from milepost.bootstrap.sandboxes import examine_sandbox

        examined = [dataclasses.asdict(check) for check in await examine_sandbox(call.config, call.root)]
        return _told(call, examined, None, "This machine, for the user who runs this command.")
    info = None
    async with contextlib.AsyncExitStack() as stack:
        reached = await _reachable(call, stack)
        if reached is not None:
            info = reached.info
            if info is not None:
                require_agreement(call, info)
            checks = (await reached.client.get(f"{API}/doctor"))["checks"]
        else:
            from milepost.bootstrap.doctor import examine

            checks = [dataclasses.asdict(check) for check in await examine(lambda: call.config)]
    instance = None if info is None else {"pid": info.pid, "role": info.role, "release": info.release}
    words = f"Instance: milepost {info.role}, pid {info.pid}." if info else "No instance is running."
    return _told(call, checks, instance, words)


def _told(call: Invocation, checks: list[Json], instance: Json | None, words: str) -> Exit:
    ok = all(check["ok"] for check in checks)
    if call.json:
        call.out.document({"ok": ok, "checks": checks, "instance": instance})
    else:
        _print(call, checks, words)
    return Exit.OK if ok else Exit.FAILED


async def _reachable(call: Invocation, stack: contextlib.AsyncExitStack) -> Reached | None:
    from cli.connection import running

    try:
        reached = await running(call.root)
    except MilepostError:
        # A configuration that cannot be read is what the examination tells first.
        return None
    if reached is not None:
        stack.push_async_callback(reached.client.close)
    return reached


def _print(call: Invocation, checks: list[Json], instance: str) -> None:
    from rich.markup import escape

    call.out.line(f"[dim]{escape(instance)}[/]")
    for check in checks:
        mark = "[green]ok  [/]" if check["ok"] else "[red]FAIL[/]"
        call.out.line(f"{mark} {escape(check['name']):<16} {escape(check['detail'])}")
        if check["fix"]:
            call.out.line(f"     {'':<16} [yellow]→ {escape(check['fix'])}[/]")


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
