"""One viewer of a terminal, over a WebSocket."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from api.live import LiveReaders
from api.problems import invalid_query, problem, problem_of, unexpected
from api.responses import json_text
from api.schemas.terminals import TerminalResize, TerminalShape, TerminalSocketQuery
from milepost.domain.errors import MilepostError, ProcessBusy, SandboxLost
from milepost.ports.sandbox import MAX_INPUT_BYTES, TERMINAL_BYTES, ProcessOutput, TerminalSize
from milepost.services.processes import ProcessService

CLOSE_BASE = 4000
"""A problem with an HTTP status closes a WebSocket with this plus the status."""
GOING_AWAY = (1012, "stopping")
DONE = (1000, "done")
WAIT_SECONDS = 20.0
BUSY_SECONDS = 10.0
"""How long a viewer's input waits for a terminal that does not read; meanwhile nothing more of it is taken."""
BUSY_POLL_SECONDS = 0.1

Close = tuple[int, str]


class Viewer:
    """Pulls output at its own speed, so that a slow one costs no memory: what it misses is told as a gap.

    Several may look at one terminal; what any of them types goes into it, and its size is the last that one told.
    """

    def __init__(
        self, socket: WebSocket, processes: ProcessService, readers: LiveReaders, session_id: str, terminal_id: str
    ) -> None:
        self._socket = socket
        self._processes = processes
        self._readers = readers
        self._place = (session_id, terminal_id)

    async def serve(self) -> None:
        """Until the terminal has ended, the viewer leaves, or the server stops. Raises WebSocketDisconnect."""
        try:
            self._readers.enter()
        except MilepostError as error:
            await self._socket.close(*await self._problem(problem_of(error)))
            return
        try:
            await self._serve()
        finally:
            self._readers.leave()

    async def _serve(self) -> None:
        tasks = [asyncio.create_task(self._output()), asyncio.create_task(self._input())]
        stopping = asyncio.create_task(self._readers.stopped.wait())
        try:
            await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            done = [task for task in tasks if task.done()]
            for task in (*tasks, stopping):
                task.cancel()
            await asyncio.gather(*tasks, stopping, return_exceptions=True)
        close = GOING_AWAY if not done else done[0].result()
        if close is not None:
            await self._socket.close(*close)

    async def _output(self) -> Close:
        try:
            query = TerminalSocketQuery.model_validate(dict(self._socket.query_params))
            record = await self._processes.get(*self._place)
            if query.rows and query.columns and record.running:
                await self._processes.resize(*self._place, TerminalSize(query.rows, query.columns))
            found = await self._read(query.offset, 0.0)
            shape = TerminalShape.of(record).model_dump()
            await self._say({"type": "terminal", "terminal": shape, "offset": found.offset})
            while True:
                if found.gap:
                    await self._say({"type": "gap", "bytes": found.gap, "offset": found.offset})
                if found.data:
                    await self._socket.send_bytes(found.data)
                if not found.running and found.next_offset == found.bytes_out:
                    ended = {"exit_code": found.exit_code, "ended_by": found.ended_by, "offset": found.next_offset}
                    await self._say({"type": "ended", **ended})
                    return DONE
                found = await self._read(found.next_offset, WAIT_SECONDS)
        except ValidationError as error:
            return await self._problem(invalid_query(error.errors()))
        except MilepostError as error:
            return await self._problem(problem_of(error))
        except (RuntimeError, OSError, WebSocketDisconnect):
            # The viewer has left: `_input` gets what was sent before, then the word of it.
            await asyncio.Event().wait()
            raise
        except Exception as error:
            return await self._problem(unexpected(error, stream="terminal"))

    async def _read(self, offset: int, wait: float) -> ProcessOutput:
        return await self._processes.read(*self._place, offset, TERMINAL_BYTES, wait)

    async def _input(self) -> Close | None:
        """One message after the other: while one is not taken, the connection takes no more."""
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return None
            try:
                await self._take(message)
            except SandboxLost as error:
                return await self._problem(problem_of(error))
            except MilepostError as error:
                await self._say({**problem_of(error), "type": "problem"})

    async def _take(self, message: Any) -> None:
        data, text = message.get("bytes"), message.get("text")
        if data is not None:
            for start in range(0, len(data), MAX_INPUT_BYTES):
                await self._type(data[start : start + MAX_INPUT_BYTES])
            return
        try:
            size = TerminalResize.model_validate_json(text or "")
        except ValidationError:
            detail = 'A text message must be {"type": "resize", "rows": N, "columns": N}; input is binary.'
            await self._say({**problem(422, "invalid_input", detail), "type": "problem"})
            return
        await self._processes.resize(*self._place, TerminalSize(size.rows, size.columns))

    async def _type(self, data: bytes) -> None:
        deadline = asyncio.get_running_loop().time() + BUSY_SECONDS
        while True:
            try:
                return await self._processes.write(*self._place, data)
            except ProcessBusy:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(BUSY_POLL_SECONDS)

    async def _say(self, body: dict[str, Any]) -> None:
        await self._socket.send_text(json_text(body))

    async def _problem(self, body: dict[str, Any]) -> Close:
        await self._say({**body, "type": "problem"})
        return CLOSE_BASE + int(body["status"]), str(body["code"])
