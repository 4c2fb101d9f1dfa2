"""This process's own terminal as a window on one of a sandbox: bytes pass through as they are."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from cli.client import BASE_URL
from cli.failures import ConnectionLost, RemoteFailure, kind_of_problem
from cli.routes import API

DETACH = 0x1D
"""Ctrl-]"""
DEFAULT_SIZE = (24, 80)
PIECE = 32 * 1024
RECONNECT_SECONDS = 30.0
MAX_MESSAGE = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Address:
    """Where a terminal is: the instance's socket and token, and its place there."""

    socket: str
    token: str
    session: str
    terminal: str


@dataclass(slots=True)
class Shown:
    """How far its output was shown, and how it ended: `ended` is the last message, `detached` the viewer's choice."""

    offset: int = 0
    ended: dict[str, Any] | None = None
    detached: bool = False


class Screen:
    """Standard input and output (or other descriptors), in raw mode if they are a terminal."""

    def __init__(self, stdin: int | None = None, stdout: int | None = None) -> None:
        self._stdin = sys.stdin.fileno() if stdin is None else stdin
        self._stdout = sys.stdout.fileno() if stdout is None else stdout
        self.is_terminal = os.isatty(self._stdin) and os.isatty(self._stdout)

    @contextmanager
    def raw(self) -> Iterator[None]:
        """Every key goes through, until the block ends."""
        if not self.is_terminal:
            yield
            return
        import termios
        import tty

        before = termios.tcgetattr(self._stdin)
        try:
            tty.setraw(self._stdin)
            yield
        finally:
            termios.tcsetattr(self._stdin, termios.TCSADRAIN, before)

    def size(self) -> tuple[int, int]:
        """Rows and columns; the usual ones where there is no terminal, or it does not say."""
        try:
            found = os.get_terminal_size(self._stdout)
        except OSError:
            return DEFAULT_SIZE
        return (found.lines, found.columns) if found.lines and found.columns else DEFAULT_SIZE

    @asynccontextmanager
    async def keys(self) -> AsyncIterator[asyncio.Queue[bytes]]:
        """What is typed; empty at the end of input. While nobody takes it, no more is read."""
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[bytes](16)
        stop = asyncio.Event()

        async def read() -> None:
            while not stop.is_set():
                ready = asyncio.Event()
                try:
                    loop.add_reader(self._stdin, ready.set)
                except PermissionError:
                    pass  # a file, which can always be read
                else:
                    try:
                        await ready.wait()
                    finally:
                        loop.remove_reader(self._stdin)
                piece = os.read(self._stdin, PIECE)
                await queue.put(piece)
                if not piece:
                    return

        task = asyncio.create_task(read())
        try:
            yield queue
        finally:
            stop.set()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def show(self, data: bytes) -> None:
        """Write all of it."""
        await asyncio.to_thread(_write, self._stdout, data)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


async def attach(screen: Screen, address: Address, shown: Shown) -> None:
    """Be a viewer until the terminal ends or the viewer detaches; a lost connection is made again for a while.

    Raises ConnectionLost, RemoteFailure.
    """
    loop = asyncio.get_running_loop()
    with screen.raw():
        async with screen.keys() as keys:
            deadline = loop.time() + RECONNECT_SECONDS
            while True:
                try:
                    async with _connection(screen, address, shown.offset) as socket:
                        await _view(screen, socket, keys, shown)
                    if shown.ended is not None or shown.detached:
                        if screen.is_terminal:
                            await screen.show(b"\r\n")
                        return
                    deadline = loop.time() + RECONNECT_SECONDS
                except (OSError, InvalidHandshake, TimeoutError) as error:
                    if loop.time() > deadline:
                        raise ConnectionLost(f"The instance cannot be reached ({type(error).__name__}).") from error
                await asyncio.sleep(0.5)


def _connection(screen: Screen, address: Address, offset: int) -> connect:
    query = f"?offset={offset}"
    if screen.is_terminal:
        rows, columns = screen.size()
        query += f"&rows={rows}&columns={columns}"
    place = f"{API}/sessions/{address.session}/terminals/{address.terminal}/ws{query}"
    return unix_connect(
        address.socket,
        uri=f"{BASE_URL.replace('http', 'ws', 1)}{place}",
        additional_headers={"Authorization": f"Bearer {address.token}"},
        max_size=MAX_MESSAGE,
        open_timeout=10,
    )


async def _view(screen: Screen, socket: ClientConnection, keys: asyncio.Queue[bytes], shown: Shown) -> None:
    tasks = [asyncio.create_task(_show(screen, socket, shown)), asyncio.create_task(_type(socket, keys, shown))]
    loop = asyncio.get_running_loop()
    sizes: set[asyncio.Task[None]] = set()

    def resized() -> None:
        task = asyncio.create_task(_tell_size(screen, socket))
        sizes.add(task)
        task.add_done_callback(sizes.discard)

    if screen.is_terminal:
        loop.add_signal_handler(signal.SIGWINCH, resized)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if screen.is_terminal:
            loop.remove_signal_handler(signal.SIGWINCH)
        for task in (*tasks, *sizes):
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, RemoteFailure):
            raise result


async def _show(screen: Screen, socket: ClientConnection, shown: Shown) -> None:
    """Returns when the connection ends. Raises RemoteFailure for a refusal."""
    refusal: dict[str, Any] | None = None
    with contextlib.suppress(ConnectionClosed):
        while True:
            message = await socket.recv()
            if isinstance(message, bytes):
                await screen.show(message)
                shown.offset += len(message)
                continue
            told = json.loads(message)
            if told["type"] in ("terminal", "gap"):
                shown.offset = int(told["offset"])
            elif told["type"] == "ended":
                shown.ended = told
            elif told["type"] == "problem":
                refusal = told
    if refusal is not None and (socket.close_code or 0) >= 4000:
        code = str(refusal["code"])
        raise RemoteFailure(
            str(refusal["detail"]),
            code=code,
            kind=kind_of_problem(code, int(refusal["status"])),
            field=refusal.get("field"),
            fix=refusal.get("fix"),
        )


async def _type(socket: ClientConnection, keys: asyncio.Queue[bytes], shown: Shown) -> None:
    """Returns when the viewer detaches."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            piece = await keys.get()
            if not piece:
                # The end of input is none of the terminal: what is shown goes on.
                await asyncio.Event().wait()
            before, key, _ = piece.partition(bytes([DETACH]))
            if before:
                await socket.send(before)
            if key:
                shown.detached = True
                return


async def _tell_size(screen: Screen, socket: ClientConnection) -> None:
    rows, columns = screen.size()
    with contextlib.suppress(ConnectionClosed):
        await socket.send(json.dumps({"type": "resize", "rows": rows, "columns": columns}))
