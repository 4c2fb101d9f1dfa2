"""envd's process service: Connect protocol, JSON codec, one envelope per message of a stream."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import struct
from collections.abc import AsyncIterator
from typing import Any

from tests.support.e2b.machine import Machine, children, inner

CHUNK = 32 * 1024
END = 2
"""Flag of the last envelope of a stream."""
SIGNALS = {"SIGNAL_SIGKILL": signal.SIGKILL, "SIGNAL_SIGTERM": signal.SIGTERM}
STATUS = {"not_found": 404, "invalid_argument": 400, "unavailable": 503, "internal": 500}


class Refused(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message

    @property
    def body(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message}


def envelope(message: dict[str, Any], flags: int = 0) -> bytes:
    data = json.dumps(message).encode()
    return struct.pack(">BI", flags, len(data)) + data


def opened(data: bytes) -> dict[str, Any]:
    """The one message of a request that is enveloped."""
    flags, size = struct.unpack(">BI", data[:5])
    assert flags == 0
    assert len(data) == 5 + size
    return dict(json.loads(data[5:]))


class Process:
    """A process of a sandbox. Output that nobody follows is lost."""

    def __init__(self, machine: Machine, request: dict[str, Any]) -> None:
        self.machine, self.config = machine, request["process"]
        self._takes_input = request.get("stdin", True)
        self._followers: list[asyncio.Queue[dict[str, Any] | None]] = []
        self.ended: dict[str, Any] | None = None

    async def start(self) -> None:
        folder = self.machine.place(self.config)
        if not self.machine.outside(folder).is_dir():
            raise Refused("invalid_argument", f"cwd '{folder}' does not exist")
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        self._child = await asyncio.create_subprocess_exec(
            *self.machine.command(self.config),
            env=self.machine.environment(self.config),
            stdin=pipe if self._takes_input else null,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
        self._real = await self._entered()
        self.pid = inner(self._real) if self._real else 1_000_000 + self._child.pid
        self.machine.processes[self.pid] = self
        self.running = asyncio.create_task(self._run())

    @property
    def outer(self) -> int:
        """The process of this machine that went into the namespace for it."""
        return self._child.pid

    async def _entered(self) -> int:
        """The process itself: the child of the one that goes into its namespace for it. 0 if it has ended already."""
        while self._child.returncode is None:
            found = children(self._child.pid)
            if found:
                return found[0]
            await asyncio.sleep(0.002)
        return 0

    async def _run(self) -> None:
        readers = [asyncio.create_task(self._read("stdout")), asyncio.create_task(self._read("stderr"))]
        code = await self._child.wait()
        # What its descendants still hold open does not hold up its end.
        await asyncio.wait(readers, timeout=0.3)
        for reader in readers:
            reader.cancel()
        self.machine.processes.pop(self.pid, None)
        self.ended = {"end": _ending(code)}
        self._publish(self.ended)

    async def _read(self, name: str) -> None:
        stream = getattr(self._child, name)
        while data := await stream.read(CHUNK):
            self._publish({"data": {name: base64.b64encode(data).decode()}})

    def _publish(self, event: dict[str, Any]) -> None:
        for follower in self._followers:
            follower.put_nowait(event)

    def cut(self) -> None:
        """End the streams of its followers; it runs on."""
        for follower in self._followers:
            follower.put_nowait(None)

    async def events(self, idle: float) -> AsyncIterator[bytes]:
        follower: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._followers.append(follower)
        yield envelope({"event": {"start": {"pid": self.pid}}})
        try:
            if self.ended is not None:
                follower.put_nowait(self.ended)
            while True:
                try:
                    event = await asyncio.wait_for(follower.get(), idle)
                except TimeoutError:
                    yield envelope({"event": {"keepalive": {}}})
                    continue
                if event is None:
                    text = "the connection to sandbox ended before the stream completed"
                    yield envelope({"error": {"code": "unavailable", "message": text}}, END)
                    return
                yield envelope({"event": event})
                if "end" in event:
                    yield envelope({}, END)
                    return
        finally:
            self._followers.remove(follower)

    async def type(self, given: dict[str, str]) -> None:
        stdin = self._child.stdin
        if stdin is None or stdin.is_closing():
            raise Refused("internal", "error writing to stdin: stdin not enabled or closed")
        with contextlib.suppress(ConnectionError):
            stdin.write(base64.b64decode(given["stdin"]))
            await stdin.drain()

    def close_stdin(self) -> None:
        if self._child.stdin is not None:
            self._child.stdin.close()

    def signal(self, name: str) -> None:
        """To that process only, not to its descendants."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(
                self._real or self._child.pid,
                {"SIGNAL_SIGKILL": signal.SIGKILL, "SIGNAL_SIGTERM": signal.SIGTERM}[name],
            )


def _ending(code: int) -> dict[str, Any]:
    if code < 0:
        text = f"signal: {signal.strsignal(-code)}".lower()
        return {"exitCode": -1, "status": text, "error": text}
    text = f"exit status {code}"
    return {"exited": True, "status": text} | ({"exitCode": code, "error": text} if code else {})


def selected(machine: Machine, message: dict[str, Any]) -> Process:
    pid = message["process"]["pid"]
    found: Process | None = machine.processes.get(pid)
    if found is None:
        raise Refused("not_found", f"process with pid {pid} not found")
    return found
