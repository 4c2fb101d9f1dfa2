"""`milepost backup`, `milepost restore`, `milepost gc`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from cli.failures import Exit
from cli.invocation import Invocation, command
from cli.output import counted, printable

MIN_GRACE_HOURS = 1.0
GRACE_HOURS = 24.0


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(app, "backup")(backup)
    command(app, "restore")(restore)
    command(app, "gc")(collect)


async def backup(call: Invocation, file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")]) -> Exit:
    """Write ledger, blobs, snapshots and configuration into one file; the instance may go on working."""
    from milepost.bootstrap.backing_up import back_up

    done = await back_up(call.config, call.root, file.expanduser().absolute())
    if call.json:
        call.out.document({"ok": not done.damaged} | dataclasses.asdict(done))
    else:
        for digest in done.damaged:
            call.out.note(f"The blob {digest} is damaged and was left out.", style="yellow")
        what = f"{counted(done.rows['events'], 'event')} of {counted(done.rows['sessions'], 'Session')}"
        parts = f"{counted(done.blobs, 'blob')}, snapshots of {counted(done.workspaces, 'Workspace')}"
        call.out.line(f"{printable(done.path)}: {what}, {parts}; {done.bytes} bytes.")
    return Exit.FAILED if done.damaged else Exit.OK


async def restore(
    call: Invocation,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A backup.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Then check the whole ledger, every blob, and open a Session.")
    ] = False,
) -> Exit:
    """Put a backup into an empty data root and an empty database; the file is proven before anything is written."""
    from milepost.bootstrap.restoring import restore as put_back

    root = call.root
    root.prepare()
    with root.lock("restore"):
        done = await put_back(call.config, root, file.expanduser().absolute(), verify=verify)
    found = done.verification.found if done.verification is not None else 0
    if call.json:
        call.out.document({"ok": not found} | dataclasses.asdict(done))
        return Exit.FAILED if found else Exit.OK
    what = f"{counted(done.rows['events'], 'event')} of {counted(done.rows['sessions'], 'Session')}"
    parts = f"{counted(done.blobs, 'blob')}, snapshots of {counted(done.workspaces, 'Workspace')}"
    call.out.line(f"Restored {what}, {parts}.")
    if done.interrupted:
        call.out.line(f"{counted(done.interrupted, 'turn')} that ran when the backup was made ended as interrupted.")
    if done.config:
        call.out.note(f"The configuration of then is in {done.config}; it is not in force.")
    if done.verification is not None:
        for finding in done.verification.findings:
            call.out.line(f"FAIL {printable(finding.problem)}")
        opened = f" The Session {done.opened[0]} opens." if done.opened else ""
        call.out.line(f"{counted(found, 'finding')}." if found else f"Verified: everything holds.{opened}")
    return Exit.FAILED if found else Exit.OK


async def collect(
    call: Invocation,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be removed.")] = False,
    grace: Annotated[
        float,
        typer.Option("--grace", metavar="HOURS", min=MIN_GRACE_HOURS, help="Leave alone what is newer than this."),
    ] = GRACE_HOURS,
) -> None:
    """Remove blobs, snapshots, containers and volumes that nothing needs; the instance may go on working."""
    from milepost.bootstrap.collecting import collect as take_away
    from milepost.bootstrap.collecting_sandboxes import collect_sandboxes

    done = await take_away(call.config, call.root, grace_seconds=grace * 3600, dry_run=dry_run)
    boxes = await collect_sandboxes(call.config, call.root, dry_run=dry_run)
    if call.json:
        call.out.document({"dry_run": dry_run} | dataclasses.asdict(done) | {"sandboxes": dataclasses.asdict(boxes)})
        return
    what = f"{counted(done.blobs, 'blob')} ({done.bytes} bytes), {counted(done.states, 'snapshot')}"
    what += f", {counted(done.checkpoints, 'checkpoint')}"
    rest = f", {counted(done.leftovers, 'leftover')} of processes that were killed"
    records = f", {counted(done.expired, 'record')} of long-term memory whose time is over"
    call.out.line(f"{'Would remove' if dry_run else 'Removed'} {what}{rest}{records}.")
    both = f"{counted(len(boxes.containers), 'container')}, {counted(len(boxes.volumes), 'volume')}"
    call.out.line(f"{'Would remove' if dry_run else 'Removed'} {both}.")
    for name in (*boxes.containers, *boxes.volumes):
        call.out.line(f"  {name}")
    if boxes.problem is not None:
        call.out.note(f"Containers were not looked at: {boxes.problem}", style="yellow")
    if not done.complete:
        call.out.note("There was more than one collection looks at; run it again.")
