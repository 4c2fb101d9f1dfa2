"""Long-lived processes over the supervisor's protocol: requests, answers, refusals as the port's errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from milepost.domain.errors import (
    InvalidInput,
    MilepostError,
    PayloadTooLarge,
    ProcessBusy,
    ProcessLimit,
    ProcessNotFound,
    SandboxUnavailable,
)
from milepost.ports.sandbox import (
    MAX_INPUT_BYTES,
    MAX_LIFETIME,
    MAX_READ_BYTES,
    MAX_WAIT,
    TERMINAL_BYTES,
    ProcessEnd,
    ProcessInfo,
    ProcessOutput,
    Spawn,
    TerminalSize,
)

ANSWER_SECONDS = 15.0
"""How long the supervisor may take for an answer, and a lost link is tried again."""
MAX_COMMAND_BYTES = 64 * 1024
MAX_SIDE = 1000

Answer = tuple[dict[str, Any], bytes]


class Asking(Protocol):
    async def __call__(self, head: dict[str, Any], body: bytes, seconds: float, *, again: bool) -> Answer:
        """An answer of the supervisor within `seconds`; after a lost link asked once more if `again`, else lost.

        Raises SandboxUnavailable, and SandboxLost if the request may have arrived and is not asked again.
        """


class ProcessCalls:
    """The part of the port's `Sandbox` about processes."""

    def __init__(self, ask: Asking, environment: Mapping[str, str]) -> None:
        self._asking = ask
        self._given = dict(environment)

    async def spawn(self, process_id: str, spec: Spawn) -> ProcessInfo:
        head, body = _spawn(process_id, spec, self._given)
        return _infos(await self._answer(head, body))[0]

    async def processes(self) -> tuple[ProcessInfo, ...]:
        return _infos(await self._answer({"t": "processes", "id": ""}))

    async def read(
        self, process_id: str, offset: int = 0, limit: int = TERMINAL_BYTES, wait: float = 0.0
    ) -> ProcessOutput:
        limit, wait = max(1, min(limit, MAX_READ_BYTES)), max(0.0, min(wait, MAX_WAIT))
        head = {"t": "read", "id": process_id, "offset": offset, "limit": limit, "wait": wait}
        return _output(await self._answer(head, seconds=wait + ANSWER_SECONDS))

    async def write(self, process_id: str, data: bytes) -> None:
        if len(data) > MAX_INPUT_BYTES:
            raise PayloadTooLarge.of("terminal", "data", len(data), MAX_INPUT_BYTES)
        await self._answer({"t": "write", "id": process_id}, data, again=False)

    async def resize(self, process_id: str, size: TerminalSize) -> None:
        await self._answer({"t": "resize", "id": process_id, "size": _size(size)})

    async def end(self, process_id: str) -> None:
        await self._answer({"t": "end", "id": process_id})

    async def _answer(
        self, head: dict[str, Any], body: bytes = b"", *, seconds: float = ANSWER_SECONDS, again: bool = True
    ) -> Answer:
        answer, data = await self._asking(head, body, seconds, again=again)
        if answer.get("t") == "refused":
            raise _refusal(str(answer.get("error_code")), str(answer.get("error"))[:2000])
        return answer, data


def _refusal(code: str, text: str) -> MilepostError:
    match code:
        case "unknown":
            return ProcessNotFound(text, fix="It ended long ago, or the sandbox was made anew since.")
        case "limit":
            return ProcessLimit(text)
        case "busy":
            return ProcessBusy(text, fix="Read its output, or interrupt what runs in it (Ctrl-C).")
        case _:
            return InvalidInput(text)


def _size(size: TerminalSize) -> list[int]:
    if not (1 <= size.rows <= MAX_SIDE and 1 <= size.columns <= MAX_SIDE):
        raise InvalidInput(f"A terminal has from 1 to {MAX_SIDE} rows and columns.", field="size")
    return [size.rows, size.columns]


def _spawn(process_id: str, spec: Spawn, environment: Mapping[str, str]) -> tuple[dict[str, Any], bytes]:
    if not 0 < spec.lifetime <= MAX_LIFETIME:
        text = f"The lifetime must be over 0 and at most {MAX_LIFETIME:.0f} seconds."
        raise InvalidInput(text, field="lifetime")
    if spec.command is None and spec.terminal is None:
        raise InvalidInput("A shell needs a terminal; name a command.", field="command")
    body = (spec.command or "").encode("utf-8", "surrogateescape")
    if len(body) > MAX_COMMAND_BYTES:
        raise PayloadTooLarge.of("spawn", "command", len(body), MAX_COMMAND_BYTES)
    head = {"t": "spawn", "id": process_id, "command": spec.command is not None, "cwd": spec.cwd}
    terminal = _size(spec.terminal) if spec.terminal else None
    return {**head, "terminal": terminal, "lifetime": spec.lifetime, "env": dict(environment)}, body


def _malformed() -> SandboxUnavailable:
    return SandboxUnavailable("The sandbox's answer is malformed.")


def _infos(answer: Answer) -> tuple[ProcessInfo, ...]:
    try:
        return tuple(_info(each) for each in json.loads(answer[1]))
    except (KeyError, TypeError, ValueError, IndexError):
        raise _malformed() from None


def _info(found: dict[str, Any]) -> ProcessInfo:
    size = found["terminal"]
    return ProcessInfo(
        process_id=str(found["id"]),
        command=None if found["command"] is None else str(found["command"]),
        cwd=str(found["cwd"]),
        terminal=TerminalSize(int(size[0]), int(size[1])) if size else None,
        running=bool(found["running"]),
        exit_code=_code(found["exit_code"]),
        started_at=int(found["started_at"]),
        bytes_out=int(found["bytes_out"]),
        first_offset=int(found["first_offset"]),
        ended_by=_end(found["ended_by"]),
    )


def _output(answer: Answer) -> ProcessOutput:
    head, data = answer
    try:
        return ProcessOutput(
            data=data,
            offset=int(head["offset"]),
            next_offset=int(head["next"]),
            bytes_out=int(head["total"]),
            gap=int(head["gap"]),
            running=bool(head["running"]),
            exit_code=_code(head["exit_code"]),
            ended_by=_end(head["ended_by"]),
        )
    except (KeyError, TypeError, ValueError):
        raise _malformed() from None


def _code(value: Any) -> int | None:
    return None if value is None else int(value)


def _end(value: Any) -> ProcessEnd | None:
    return None if value is None else ProcessEnd(value)
