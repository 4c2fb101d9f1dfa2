"""`milepost db ...` and `milepost sandbox ...`."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from cli.invocation import Invocation, command
from cli.output import counted


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    database = typer.Typer(help="The database of the ledger.", no_args_is_help=True)
    app.add_typer(database, name="db")
    command(database, "upgrade")(upgrade)
    command(database, "reindex")(reindex)
    sandbox = typer.Typer(help="The sandbox of Sessions.", no_args_is_help=True)
    app.add_typer(sandbox, name="sandbox")
    command(sandbox, "build-image")(build_image)


async def upgrade(call: Invocation) -> None:
    """Make the ledger, or bring it to this release's schema."""
    from milepost.bootstrap.core import migrate

    root = call.root
    root.prepare()
    with root.lock("db upgrade"):
        revision = await migrate(call.config, root)
    if call.json:
        call.out.document({"revision": revision})
    else:
        call.out.line(f"The ledger has the schema of this release ({revision}).")


async def reindex(call: Invocation) -> None:
    """Make the search index anew from the ledger's events. Stop a running instance first."""
    import time

    from milepost.bootstrap.reindexing import rebuild_search
    from milepost.services.search import Progress

    told = time.monotonic()

    def tell(progress: Progress) -> None:
        nonlocal told
        if time.monotonic() - told >= 1:
            told = time.monotonic()
            call.out.note(f"{counted(progress.sessions, 'Session')}, {counted(progress.events, 'event')} ...")

    root = call.root
    root.prepare()
    with root.lock("db reindex"):
        done = await rebuild_search(call.config, tell)
    if call.json:
        call.out.document(dataclasses.asdict(done))
    else:
        call.out.line(f"Indexed {counted(done.events, 'event')} of {counted(done.sessions, 'Session')}.")


async def build_image(
    call: Invocation,
    force: Annotated[bool, typer.Option("--force", help="Build also when the image is up to date.")] = False,
) -> None:
    """Build the local sandbox image from this machine's distribution packages; no registry is involved."""
    from milepost.bootstrap.sandboxes import build_image as build

    info = await build(call.config, call.root, call.out.note, force=force)
    if call.json:
        call.out.document(dataclasses.asdict(info))
    elif info.missing:
        call.out.note(f"Left out, because they are not installed: {', '.join(info.missing)}.", style="yellow")
