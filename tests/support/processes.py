"""Processes of the sandbox without a container: they run nothing, but keep to the port's words."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field, replace

from milepost.domain.errors import InvalidInput, PayloadTooLarge, ProcessLimit, ProcessNotFound
from milepost.ports.sandbox import (
    BACKGROUND_BYTES,
    MAX_INPUT_BYTES,
    MAX_LIFETIME,
    MAX_PROCESSES,
    TERMINAL_BYTES,
    ProcessEnd,
    ProcessInfo,
    ProcessOutput,
    Spawn,
    TerminalSize,
)


@dataclass
class MemoryProcess:
    info: ProcessInfo
    data: bytes = b""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def say(self, piece: bytes) -> None:
        """Output of the process."""
        kept = TERMINAL_BYTES if self.info.terminal else BACKGROUND_BYTES
        self.data = (self.data + piece)[-kept:]
        total = self.info.bytes_out + len(piece)
        self.info = replace(self.info, bytes_out=total, first_offset=total - len(self.data))
        self.wake()

    def finish(self, ended_by: ProcessEnd, exit_code: int | None = None) -> None:
        if self.info.running:
            self.info = replace(self.info, running=False, exit_code=exit_code, ended_by=ended_by)
            self.wake()

    def wake(self) -> None:
        news, self.news = self.news, asyncio.Event()
        news.set()


class MemoryProcesses:
    """`exit N` ends at once, `hang` and a shell run until they are ended, others say `ran COMMAND` and end.

    A terminal says what is written to it; `exit` and a line end ends it.
    """

    def __init__(self) -> None:
        self.spawned: dict[str, MemoryProcess] = {}

    async def spawn(self, process_id: str, spec: Spawn) -> ProcessInfo:
        if process_id in self.spawned:
            return self.spawned[process_id].info
        if not 0 < spec.lifetime <= MAX_LIFETIME or (spec.command is None and spec.terminal is None):
            raise InvalidInput("The process cannot be started so.")
        if sum(found.info.running for found in self.spawned.values()) >= MAX_PROCESSES:
            raise ProcessLimit(f"{MAX_PROCESSES} processes run already; end one first.")
        now = time.time_ns() // 1000
        info = ProcessInfo(process_id, spec.command, spec.cwd, spec.terminal, True, None, now)
        process = self.spawned[process_id] = MemoryProcess(info)
        command = spec.command or "hang"
        if command.startswith("exit "):
            process.finish(ProcessEnd.EXIT, int(command.removeprefix("exit ")))
        elif not command.startswith("hang"):
            process.say(f"ran {command}\n".encode())
            process.finish(ProcessEnd.EXIT, 0)
        asyncio.get_running_loop().call_later(spec.lifetime, process.finish, ProcessEnd.LIFETIME)
        return process.info

    async def processes(self) -> tuple[ProcessInfo, ...]:
        return tuple(found.info for found in self.spawned.values())

    async def read(
        self, process_id: str, offset: int = 0, limit: int = TERMINAL_BYTES, wait: float = 0.0
    ) -> ProcessOutput:
        process = self.process(process_id)
        total = process.info.bytes_out
        asked = max(0, total + offset) if offset < 0 else min(offset, total)
        if process.info.running and asked == total and wait > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.news.wait(), wait)
        info = process.info
        start = max(asked, info.first_offset)
        data = process.data[start - info.first_offset :][:limit]
        end = start + len(data)
        return ProcessOutput(
            data, start, end, info.bytes_out, start - asked, info.running, info.exit_code, info.ended_by
        )

    async def write(self, process_id: str, data: bytes) -> None:
        process = self.terminal(process_id)
        if len(data) > MAX_INPUT_BYTES:
            raise PayloadTooLarge.of("terminal", "data", len(data), MAX_INPUT_BYTES)
        process.say(data)
        if data in (b"exit\n", b"exit\r"):
            process.finish(ProcessEnd.EXIT, 0)

    async def resize(self, process_id: str, size: TerminalSize) -> None:
        process = self.terminal(process_id)
        process.info = replace(process.info, terminal=size)

    async def end(self, process_id: str) -> None:
        self.process(process_id).finish(ProcessEnd.ENDED)

    def process(self, process_id: str) -> MemoryProcess:
        if process_id not in self.spawned:
            raise ProcessNotFound("This sandbox does not know the process.")
        return self.spawned[process_id]

    def terminal(self, process_id: str) -> MemoryProcess:
        process = self.process(process_id)
        if process.info.terminal is None or not process.info.running:
            raise InvalidInput("The process has no terminal, or has ended.")
        return process
