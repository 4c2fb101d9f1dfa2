"""Sending files to a Session."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from cli.routes import API, Json
from milepost.domain.errors import InvalidInput

if TYPE_CHECKING:
    from cli.client import ApiClient

MAX_NAME_CHARACTERS = 255


def check_files(files: list[Path]) -> None:
    """Refuse what cannot be sent, before anything else is done. Raises InvalidInput."""
    for path in files:
        _open(path).close()


async def send_files(client: ApiClient, session: str, files: list[Path], *, once: bool) -> list[Json]:
    """Upload files in their order and take each from the list, so that a repetition goes on where this one stopped.

    Raises:
        InvalidInput: one that cannot be read; the instance's refusals; ConnectionLost.
    """
    done = []
    while files:
        path = files[0]
        with await asyncio.to_thread(_open, path) as opened:
            route = f"{API}/sessions/{session}/attachments"
            # A name that is no UTF-8 is shown as well as it can be.
            name = path.name.encode("utf-8", "replace").decode("utf-8")[:MAX_NAME_CHARACTERS]
            done.append(await client.send_file(route, opened, name=name, scope="once" if once else "session"))
        del files[0]
    return done


def _open(path: Path) -> BinaryIO:
    try:
        found = path.expanduser()
        if not found.is_file():
            raise InvalidInput(f"{path} is no file.", field="attach")
        return found.open("rb")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}.", field="attach") from error
