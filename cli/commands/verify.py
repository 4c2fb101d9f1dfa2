"""`milepost verify`."""

from __future__ import annotations

import dataclasses

import typer

from cli.failures import Exit
from cli.invocation import Invocation, command
from cli.output import counted, printable


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    command(app, "verify")(verify)


async def verify(call: Invocation) -> Exit:
    """Check that nobody changed the ledger behind Milepost's back. Exits with 1 if something does not hold."""
    from milepost.bootstrap.verifying import verify_ledger

    found = await verify_ledger(call.config)
    if call.json:
        call.out.document({"ok": not found.found} | dataclasses.asdict(found))
    else:
        for finding in found.findings:
            call.out.line(f"FAIL {printable(finding.problem)}")
        looked = f"{counted(found.events, 'event')} in {counted(found.streams, 'stream')}"
        verdict = f"{counted(found.found, 'finding')}." if found.found else "everything holds."
        call.out.line(f"{looked}, {counted(found.turns, 'turn')}: {verdict}")
    return Exit.FAILED if found.found else Exit.OK
