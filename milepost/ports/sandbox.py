"""The sandbox port: operations on a Workspace inside a container, never on the host.

An operation carries the effect id. The supervisor inside the container keeps its progress and outcome under that id, so
a second `perform` with the same id attaches to the running operation or reads its outcome; it never runs it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    memory_bytes: int = 2 * 1024**3
    cpus: float = 2.0
    pids: int = 512


class Volume(StrEnum):
    """A directory of the sandbox that outlives its container: what a setup command installed lies there."""

    HOME = "home"
    """The home directory of commands."""
    NODE_MODULES = "node_modules"
    """Over node_modules at the root of the Workspace, hiding what the host has there."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a Session's sandbox is made of. `image` None is the instance's default image; `network`: none | bridge.

    `generation` is the environment's: a sandbox and volumes of another one are of no use. `volumes` may be made only
    if the sandbox is `fresh`; else what was prepared in them must be there. `ports` of the sandbox are published on the
    host's loopback.
    """

    session_id: str
    instance_id: str
    workspace_path: str
    image: str | None = None
    network: str = "none"
    limits: SandboxLimits = SandboxLimits()
    environment: dict[str, str] = field(default_factory=dict)
    generation: int = 1
    volumes: frozenset[Volume] = frozenset()
    ports: tuple[int, ...] = ()
    fresh: bool = True


@dataclass(frozen=True, slots=True)
class Exec:
    """Run a shell command (bash, else sh). `timeout` is seconds; `cwd` is relative to the workspace."""

    command: str
    cwd: str = "."
    timeout: float = 180.0


@dataclass(frozen=True, slots=True)
class ReadFile:
    """Read bytes; paths are relative to the workspace and may not leave it, also not by symlink.

    `offset` (from 0) and `limit` count bytes, or lines if `unit` is `lines`.
    """

    path: str
    offset: int = 0
    limit: int = 8 * 1024 * 1024
    unit: Literal["bytes", "lines"] = "bytes"


@dataclass(frozen=True, slots=True)
class WriteFile:
    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class EditFile:
    """Replace `old` by `new`: exactly one match unless `replace_all`."""

    path: str
    old: str
    new: str
    replace_all: bool = False


@dataclass(frozen=True, slots=True)
class ListDir:
    path: str = "."
    limit: int = 1000


@dataclass(frozen=True, slots=True)
class Grep:
    pattern: str
    path: str = "."
    glob: str | None = None
    limit: int = 500


@dataclass(frozen=True, slots=True)
class Glob:
    pattern: str
    path: str = "."
    limit: int = 1000


Operation = Exec | ReadFile | WriteFile | EditFile | ListDir | Grep | Glob


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an operation ended.

    For `Exec`: `exit_code` (124 after a timeout, 128+n after signal n, None if killed by a stop), `stdout`, `stderr`
    whole up to the supervisor's bound, `truncated` if that bound was met. For the others: `stdout` is the result
    (file bytes, or lines), `error_code` is set if it failed (`not_found`, `outside_workspace`, `is_directory`,
    `no_match`, `many_matches`, `too_large`, `permission`, `invalid`), `error` says why in one sentence.
    `detail` has sizes, counts and line numbers. `attached` tells that an earlier dispatch ran it.
    """

    exit_code: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    truncated: bool = False
    timed_out: bool = False
    killed: bool = False
    error_code: str | None = None
    error: str | None = None
    detail: dict[str, int | str] = field(default_factory=dict)
    attached: bool = False


@dataclass(frozen=True, slots=True)
class SandboxHealth:
    """`unenforced` names limits that this host cannot enforce; they are shown, never silent."""

    ok: bool
    detail: str
    fix: str | None = None
    unenforced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Holding:
    """A container or volume of this instance, as its labels tell. `kind`: container | volume."""

    kind: str
    name: str
    session_id: str
    generation: int
    lease: str
    running: bool = False


OnOutput = Callable[[str, bytes], None]
"""Called with (`stdout` | `stderr`, bytes) while a command runs."""


class Sandbox(Protocol):
    """One Session's container."""

    @property
    def boot(self) -> str:
        """Identity of the supervisor that runs now: one that is started later knows nothing of what this one ran."""

    @property
    def ports(self) -> Mapping[int, str]:
        """Where published ports are reached: port of the sandbox -> `address:port` of the host."""

    async def perform(
        self, effect_id: str, operation: Operation, on_output: OnOutput | None = None, *, boot: str | None = None
    ) -> Outcome:
        """Start the operation, or attach to the one with this id; return its outcome.

        With `boot` that supervisor starts it, or nobody does. Cancelling the awaiting task kills nothing (a lost
        worker must not kill the command): call `kill` for that.

        Raises:
            SandboxLost: the container is gone and with it the outcome (also on attach to an id it does not know).
            SandboxUnavailable: the container cannot be reached, or has another supervisor than `boot`, before the
                operation was handed over.
        """

    async def attach(
        self,
        effect_id: str,
        on_output: OnOutput | None = None,
        *,
        operation: Operation | None = None,
        boot: str | None = None,
    ) -> Outcome:
        """Outcome of an operation an earlier worker dispatched.

        Give `operation` and `boot` if it was dispatched to no other supervisor than `boot`: if that one still runs
        and has never seen the id, the hand-over was lost with the worker, and the operation is started now.

        Raises:
            SandboxLost: the supervisor that answers does not know the id, and may not start it.
        """

    async def kill(self, effect_id: str) -> None:
        """Kill the operation's whole process tree, also children in other sessions or groups; idempotent."""


class SandboxProvider(Protocol):
    """The back end of this instance (Podman, E2B)."""

    async def check(self) -> SandboxHealth: ...

    async def open(self, spec: SandboxSpec) -> Sandbox:
        """The Session's sandbox, made or reattached; idempotent. Raises SandboxUnavailable with the exact fix."""

    async def sessions(self) -> frozenset[str]:
        """The Sessions of this instance that have a container on this host. Raises SandboxUnavailable."""

    async def remove(self, session_id: str) -> None:
        """Remove the Session's container, keep what was prepared: the next `open` goes on with it; idempotent."""

    async def destroy(self, session_id: str) -> None:
        """Remove the Session's container and volumes, of all generations; idempotent."""

    async def holdings(self) -> tuple[Holding, ...]:
        """All that this back end keeps for this instance. Raises SandboxUnavailable."""

    async def discard(self, holding: Holding) -> None:
        """Remove one of `holdings`; idempotent. Raises SandboxUnavailable."""

    async def close(self) -> None:
        """Release connections; containers of live Sessions stay."""
