"""What a setup command puts out while it runs, as events: few and short, so that hours of output stay small."""

from __future__ import annotations

import asyncio
import codecs
import contextlib

from milepost.domain.environments import Environment
from milepost.domain.errors import Fenced, MilepostError
from milepost.domain.events import EnvironmentOutput
from milepost.observability.logging import get_logger
from milepost.ports.ledger import Ledger
from milepost.security.redaction import Redactor, StreamRedactor
from milepost.services.environment_preparation import Preparation
from milepost.services.environments import MAX_PIECES, pieces_of

PIECE_CHARACTERS = 8 * 1024
"""Of one event. What comes faster is left out before it, and counted: the end of what there is tells most."""
FIRST_SECONDS = 1.0
GROWTH = 40
"""The next event comes after a second, or after this part of the time so far: about 200 in half an hour."""
MAX_NUMBER = 1_000

_log = get_logger(__name__)


class _Stream:
    """One of the two streams: bytes that are known from before, characters in the making, secrets in pieces."""

    def __init__(self, redactor: Redactor, known: int) -> None:
        self.total = 0
        self.known = known
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._redactor = StreamRedactor(redactor)

    def feed(self, data: bytes) -> str:
        fresh = data[max(0, self.known - self.total) :]
        self.total += len(data)
        return self._redactor.feed(self._decoder.decode(fresh)) if fresh else ""

    def end(self) -> str:
        return self._redactor.feed(self._decoder.decode(b"", True)) + self._redactor.end()


class SetupOutput:
    """Give `take` to the sandbox as the listener. A later attempt goes on where the one before had come to.

    It is no part of the outcome: a command whose output cannot be written goes on.
    """

    def __init__(self, preparation: Preparation, found: Environment, run: str, redactor: Redactor) -> None:
        self._preparation = preparation
        self._found = found
        self._run = run
        self._redactor = redactor
        self._number = 0
        self._streams: dict[str, _Stream] = {}
        self._pending = ""
        self._left_out = 0
        self._fresh = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def resume(self, ledger: Ledger) -> None:
        """Find out what an earlier attempt has written, and begin to write."""
        last: EnvironmentOutput | None = None
        while pieces := await ledger.read(lambda tx: pieces_of(tx, self._found, self._number, MAX_PIECES)):
            last, self._number = pieces[-1], pieces[-1].number + 1
        known = {"stdout": last.stdout_bytes, "stderr": last.stderr_bytes} if last else {"stdout": 0, "stderr": 0}
        self._streams = {name: _Stream(self._redactor, count) for name, count in known.items()}
        self._task = asyncio.create_task(self._write(), name="setup-output")

    def take(self, stream: str, data: bytes) -> None:
        """See `OnOutput`."""
        self._add(self._streams[stream].feed(data))

    async def close(self) -> None:
        """Write what is left and end."""
        if self._task is None:
            return
        self._closing.set()
        self._fresh.set()
        try:
            await self._task
        finally:
            self._task.cancel()

    def _add(self, text: str) -> None:
        if not text:
            return
        self._pending += text
        over = len(self._pending) - PIECE_CHARACTERS
        if over > 0:
            self._left_out += len(self._pending[:over].encode("utf-8", "replace"))
            self._pending = self._pending[over:]
        self._fresh.set()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        while self._number < MAX_NUMBER and not self._closing.is_set():
            await self._fresh.wait()
            self._fresh.clear()
            await self._said()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(FIRST_SECONDS, (loop.time() - started) / GROWTH)):
                    await self._closing.wait()
        await self._closing.wait()
        for stream in self._streams.values():
            self._add(stream.end())
        await self._said()

    async def _said(self) -> None:
        if not self._pending:
            return
        text, left_out = self._pending, self._left_out
        self._pending, self._left_out = "", 0
        counts = {f"{name}_bytes": max(stream.total, stream.known) for name, stream in self._streams.items()}
        piece = EnvironmentOutput(self._found.generation, self._number, text, left_out, **counts)
        try:
            await self._preparation.said(self._found.session_id, self._run, piece)
        except Fenced:
            return
        except MilepostError as error:
            _log.warning("setup.output_not_written", session_id=self._found.session_id, error=error.code)
            self._left_out += left_out + len(text.encode("utf-8", "replace"))
        else:
            self._number += 1
