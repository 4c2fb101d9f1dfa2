"""`milepost export` and `milepost import`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from cli.commands.sessions import SessionId
from cli.invocation import Invocation, command
from cli.output import counted
from cli.routes import API
from milepost.domain.errors import InvalidInput, TargetNotEmpty


class Format(StrEnum):
    """How an export is written."""

    MARKDOWN = "md"
    JSON = "json"
    HTML = "html"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(app, "export")(export)
    command(app, "import")(import_)


async def export(
    call: Invocation,
    session: SessionId,
    wanted: Annotated[
        Format, typer.Option("--format", help="json (lossless, can be imported), md, or html (one page).")
    ] = Format.MARKDOWN,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write to this new file instead of standard output.")
    ] = None,
    superseded: Annotated[
        bool, typer.Option("--superseded", help="Also turns that a rewind has superseded; json always has them.")
    ] = False,
) -> None:
    """Write a Session as Markdown, lossless JSON or one self-contained HTML page."""
    from cli.connection import Need, reach

    if call.json and output is None:
        raise InvalidInput("With --json the export needs a file.", field="output", fix="Add --output FILE.")
    if output is not None:
        check_new(output)
    path = f"{API}/sessions/{session}/export"
    async with reach(call, Need.READ) as reached:
        pieces = reached.client.pieces(path, format=wanted.value, superseded=superseded or None)
        if output is None:
            await _write(pieces, sys.stdout.buffer)
            return
        size = await write_file(pieces, output)
    if call.json:
        call.out.document({"session_id": session, "format": wanted.value, "file": str(output), "bytes": size})
    else:
        call.out.note(f"Wrote {size:,} bytes to {output}.")


def check_new(output: Path) -> None:
    """Refuse a name that is taken. Raises TargetNotEmpty."""
    if os.path.lexists(output):
        raise TargetNotEmpty(f"The file {output} exists already.", fix="Name a new file.")


async def write_file(pieces: AsyncGenerator[bytes, None], output: Path) -> int:
    """Write a whole new file or none: it gets its name when it is complete.

    Raises:
        TargetNotEmpty: the file exists.
        InvalidInput: it cannot be written.
    """
    check_new(output)
    part = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        # As bytes come in no faster than a disk takes them, writing them here holds nothing up.
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            size = await _write(pieces, file)
        check_new(output)  # somebody may have made it meanwhile
        part.replace(output)
    except OSError as error:
        raise InvalidInput(
            f"{output} cannot be written: {error.strerror or error}.", field="output", fix="Name another file."
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return size


async def _write(pieces: AsyncGenerator[bytes, None], file: BinaryIO) -> int:
    size = 0
    async for piece in pieces:
        file.write(piece)
        size += len(piece)
    file.flush()
    return size


async def import_(
    call: Invocation,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A JSON export, or a transcript as JSON lines.")],
    workspace: Annotated[
        Path | None,
        typer.Option("--workspace", metavar="DIR", help="The folder it shall work on. Default: the one it had."),
    ] = None,
    title: Annotated[str | None, typer.Option("--title", metavar="TEXT", help="Another title.")] = None,
) -> None:
    """Import a Session from a JSON export or from a transcript of another tool; a second time changes nothing."""
    from cli.connection import Need, reach

    folder = None if workspace is None else str(workspace.expanduser().absolute())
    try:
        opened = await asyncio.to_thread(file.open, "rb")
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror or error}.", field="file") from error
    with opened:
        async with reach(call, Need.WRITE) as reached:
            done = await reached.client.send_file(f"{API}/imports", opened, workspace=folder, title=title)
    if call.json:
        call.out.document(done)
        return
    state = "Imported" if done["created"] else "It had been imported before:"
    call.out.line(f"{state} Session {done['session_id']} with {counted(done['turns'], 'turn')}.")
    if done["interrupted"]:
        call.out.note(f"{counted(done['interrupted'], 'turn')} had no end and arrived as interrupted.")
    if done["missing_blobs"]:
        call.out.note(f"{counted(done['missing_blobs'], 'long text')} was missing already when it was exported.")
