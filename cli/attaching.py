"""Sending files to a Session."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from cli.output import short
from cli.routes import API, Json
from milepost.domain.errors import InvalidInput, MilepostError

if TYPE_CHECKING:
    from cli.client import ApiClient
    from cli.invocation import Invocation

MAX_NAME_CHARACTERS = 255
_START_BYTES = 16


def check_files(call: Invocation, files: list[Path]) -> None:
    """Refuse what can be known to be refused, before anything else is done.

    Raises:
        InvalidInput: one is missing, no file, unreadable or empty.
        PayloadTooLarge: one has more bytes than the configuration allows.
    """
    if not files:
        return
    from milepost.bootstrap.attachments import attachment_limits

    limits = attachment_limits(call.config)
    for path in files:
        with _open(path) as opened:
            start, size = opened.read(_START_BYTES), os.fstat(opened.fileno()).st_size
        if not start:
            raise InvalidInput(
                f"The file {path} is empty.", field="attach", fix="Nothing was attached. Leave it out, or fill it."
            )
        limits.check(str(path), size, start, field="attach")


async def send_files(client: ApiClient, session: str, files: list[Path], *, once: bool) -> list[Json]:
    """Upload files in their order and take each from the list, so that a repetition goes on where this one stopped.

    Raises:
        InvalidInput: one that cannot be read; the instance's refusals; ConnectionLost. The refusal of a later file
            names those that are attached by then.
    """
    done: list[Json] = []
    while files:
        path = files[0]
        try:
            with await asyncio.to_thread(_open, path) as opened:
                route = f"{API}/sessions/{session}/attachments"
                # A name that is no UTF-8 is shown as well as it can be.
                name = path.name.encode("utf-8", "replace").decode("utf-8")[:MAX_NAME_CHARACTERS]
                done.append(await client.send_file(route, opened, name=name, scope="once" if once else "session"))
        except MilepostError as error:
            if done:
                error.message = f"{error.message.rstrip()} {_told(done)}"
            raise
        del files[0]
    return done


def _told(done: list[Json]) -> str:
    names = ", ".join(f"{short(item['name'], 100)} ({item['attachment_id']})" for item in done)
    return f"Attached already: {names}."


def _open(path: Path) -> BinaryIO:
    try:
        found = path.expanduser()
        if not found.is_file():
            raise InvalidInput(f"{path} is no file.", field="attach")
        return found.open("rb")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}.", field="attach") from error
