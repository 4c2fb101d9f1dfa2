"""Terminals and background commands of Sessions."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

from pydantic import Field

from api.schemas.approvals import Person
from api.schemas.base import Body, Query, Shape, at_most
from api.times import rfc3339
from milepost.domain.processes import ProcessRecord
from milepost.ports.sandbox import MAX_LIFETIME, MAX_READ_BYTES, TERMINAL_BYTES, ProcessOutput, Spawn, TerminalSize
from milepost.services.processes import MAX_COMMAND_CHARACTERS

DEFAULT_LIFETIME = 8 * 3600
MAX_SIDE = 1000
PROCESS_ID_PATTERN = r"^prc_[0-9a-f]{32}$"
Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]
Offset = Annotated[int, Field(ge=-(2**40), le=2**53)]


class TerminalOpen(Body):
    """A terminal to open: of a shell, or of a command. `lifetime` is seconds, `cwd` relative to the Workspace."""

    command: Annotated[str, *at_most(MAX_COMMAND_CHARACTERS)] | None = None
    cwd: Annotated[str, *at_most(4096)] = "."
    rows: Side = 24
    columns: Side = 80
    lifetime: Annotated[int, Field(ge=1, le=int(MAX_LIFETIME))] = DEFAULT_LIFETIME
    actor: Person | None = None

    def spec(self) -> Spawn:
        """What the sandbox gets."""
        return Spawn(self.command or None, self.cwd, TerminalSize(self.rows, self.columns), float(self.lifetime))


class TerminalKill(Body):
    """Who ends it."""

    actor: Person | None = None


class TerminalResize(Body):
    """A message of a viewer: the size of its window, which becomes the terminal's."""

    type: Literal["resize"]
    rows: Side
    columns: Side


class OutputQuery(Query):
    """Bytes from `offset` on, a negative one from the end; `wait` up to so many seconds for the first."""

    offset: Offset = 0
    limit: Annotated[int, Field(ge=1, le=MAX_READ_BYTES)] = TERMINAL_BYTES
    wait: Annotated[float, Field(ge=0, le=30)] = 0.0


class TerminalSocketQuery(Query):
    """Where to begin, by default with all that is kept; and the size of the viewer's window."""

    offset: Offset = 0
    rows: Side | None = None
    columns: Side | None = None


class TerminalShape(Shape):
    """A terminal, or a background command of an agent. `command` null is a shell; `started_by` is `agent:NAME` or a
    person; `ended_by`: exit, ended, lifetime, lost (with its container), refused (it never began)."""

    terminal_id: str
    session_id: str
    kind: Literal["terminal", "background"]
    command: str | None
    cwd: str
    host: str
    generation: int
    started_by: str
    turn_id: str | None
    lifetime: float
    started_at: str
    running: bool
    exit_code: int | None
    ended_by: str | None
    ended_at: str | None
    reason: str | None

    @classmethod
    def of(cls, record: ProcessRecord) -> TerminalShape:
        return cls(
            terminal_id=record.process_id,
            session_id=record.session_id,
            kind=record.kind.value,
            command=record.command,
            cwd=record.cwd,
            host=record.host,
            generation=record.generation,
            started_by=record.by,
            turn_id=record.turn_id,
            lifetime=record.lifetime,
            started_at=rfc3339(record.started_at),
            running=record.running,
            exit_code=record.exit_code,
            ended_by=record.ended_by,
            ended_at=None if record.ended_at is None else rfc3339(record.ended_at),
            reason=record.reason,
        )


class TerminalPage(Shape):
    """The newest first, at most 200."""

    terminals: list[TerminalShape]


class TerminalOutput(Shape):
    """Bytes `offset` to before `next_offset` of `bytes_out`, as Base64; `gap` bytes before are not kept any more."""

    data: str
    offset: int
    next_offset: int
    bytes_out: int
    gap: int
    running: bool
    exit_code: int | None
    ended_by: str | None

    @classmethod
    def of(cls, found: ProcessOutput) -> TerminalOutput:
        return cls(
            data=base64.b64encode(found.data).decode("ascii"),
            offset=found.offset,
            next_offset=found.next_offset,
            bytes_out=found.bytes_out,
            gap=found.gap,
            running=found.running,
            exit_code=found.exit_code,
            ended_by=found.ended_by,
        )
