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
    """Check that the ledger is whole: no event changed or missing, no blob missing or damaged, no orphan row."""
    from milepost.bootstrap.verifying import verify_ledger

    found = await verify_ledger(call.config, call.root)
    if call.json:
        call.out.document({"ok": not found.found} | dataclasses.asdict(found))
    else:
        for finding in found.findings:
            call.out.line(f"FAIL {printable(finding.problem)}")
        looked = f"{counted(found.events, 'event')} in {counted(found.streams, 'stream')}"
        looked += f", {counted(found.blobs, 'blob')}"
        verdict = f"{counted(found.found, 'finding')}." if found.found else "everything holds."
        call.out.line(f"{looked}, {counted(found.turns, 'turn')}: {verdict}")
    return Exit.FAILED if found.found else Exit.OK
