"""The text of a request: given as an argument, or read from standard input."""

from __future__ import annotations

import asyncio
import sys
import threading

from cli.invocation import Invocation
from milepost.domain.errors import InvalidInput

MAX_BYTES = 4 * 1024 * 1024
"""What the API takes as the text of a turn."""

FROM_STDIN = "-"


async def request_text(call: Invocation, given: str) -> str:
    """The request as given, or all of standard input for `-`.

    Raises:
        InvalidInput: standard input is closed, over 4 MiB, or no UTF-8.
    """
    if given != FROM_STDIN:
        return given
    if sys.stdin is None:
        raise InvalidInput("There is no standard input to read the request from.", field="request")
    if sys.stdin.isatty():
        call.out.note("Reading the request from this terminal; Ctrl-D ends it.")
    raw = await _read()
    if len(raw) > MAX_BYTES:
        raise InvalidInput(
            f"The request on standard input is over {MAX_BYTES} bytes.",
            field="request",
            fix="Put it into a file of the workspace, and ask the agent to read that.",
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput("The request on standard input is not UTF-8.", field="request") from error


async def _read() -> bytes:
    """Read in a thread that does not hold up the end of the process, so that Ctrl-C leaves at once."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bytes] = loop.create_future()

    def deliver(raw: bytes) -> None:
        if not answer.done():
            answer.set_result(raw)

    def read() -> None:
        try:
            raw = sys.stdin.buffer.read(MAX_BYTES + 1)
        except (OSError, ValueError):
            raw = b""
        loop.call_soon_threadsafe(deliver, raw)

    threading.Thread(target=read, daemon=True, name="request").start()
    return await answer
