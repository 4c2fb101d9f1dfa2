"""The sandbox port: operations on a Workspace inside a container, never on the host.

An operation carries the effect id. The supervisor inside the container keeps its progress and outcome under that id, so
a second `perform` with the same id attaches to the running operation or reads its outcome; it never runs it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

from milepost.domain.environments import RemoteSandbox


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What a sandbox may use. Of disk 0 is no limit.

    A single file may not be larger than the larger of the two sizes. They are measured while commands run, and a
    command that meets one is ended (exit code 153, `detail["disk"]` says why); writing a file is refused (`no_space`).
    """

    memory_bytes: int = 2 * 1024**3
    cpus: float = 2.0
    pids: int = 512
    workspace_bytes: int = 64 * 1024**3
    """All files of the Workspace."""
    volume_bytes: int = 32 * 1024**3
    """All files of one volume."""
    free_bytes: int = 1024**3
    """What must stay free on the file systems of the host that these lie on."""


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
    host's loopback. `placement` is where the environment was prepared, if that is on another machine.
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
    placement: RemoteSandbox | None = None


@dataclass(frozen=True, slots=True)
class Exec:
    """Run a shell command (bash, else sh). `timeout` is seconds; `cwd` is relative to the workspace.

    `stdin` is all that the command can read, at most `MAX_STDIN_BYTES`; after it, and without it, comes the end.
    With `keep_cwd` the outcome's detail says in `cwd` where the shell was at its end, relative to the workspace, and is
    without it where that cannot be told; `cwd_outside` is the path of a directory outside the workspace instead. A
    `cwd` that cannot be used any more is then no refusal: the command runs in the workspace, and `cwd_lost` is why.
    """

    command: str
    cwd: str = "."
    timeout: float = 180.0
    stdin: bytes = b""
    keep_cwd: bool = False


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
class TerminalSize:
    rows: int = 24
    columns: int = 80


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start a process that outlives the call: a command, or with `command` None an interactive shell.

    With a `terminal` it gets a pseudo-terminal of that size, whose output is one stream, and can be written to; without
    one it has no input, and `stdout` and `stderr` are one stream, and `command` is needed. After `lifetime` seconds (at
    most `MAX_LIFETIME`) it is ended. `cwd` is relative to the workspace.
    """

    command: str | None
    cwd: str = "."
    terminal: TerminalSize | None = None
    lifetime: float = 3600.0


class ProcessEnd(StrEnum):
    """Why a process runs no more."""

    EXIT = "exit"
    """By itself."""
    ENDED = "ended"
    """`Sandbox.end` was called."""
    LIFETIME = "lifetime"
    DISK = "disk"
    """More was written than may be; its output ends with the reason."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A spawned process. `command` None is a shell, `terminal` None is none, `started_at` is microseconds of the epoch.

    `exit_code` is as in `Outcome`, and None while it runs or if `ended_by` is not `exit`. The output that is kept
    begins at byte `first_offset` and ends before byte `bytes_out`, which is how much there was in all.
    """

    process_id: str
    command: str | None
    cwd: str
    terminal: TerminalSize | None
    running: bool
    exit_code: int | None
    started_at: int
    bytes_out: int = 0
    first_offset: int = 0
    ended_by: ProcessEnd | None = None


@dataclass(frozen=True, slots=True)
class ProcessOutput:
    """Output from byte `offset` to before byte `next_offset`, which to read from the next time.

    `gap` bytes between the offset that was asked for and `offset` are not kept any more. With `running` False and
    `next_offset` equal to `bytes_out` there will be no more.
    """

    data: bytes
    offset: int
    next_offset: int
    bytes_out: int
    gap: int = 0
    running: bool = True
    exit_code: int | None = None
    ended_by: ProcessEnd | None = None


MAX_STDIN_BYTES = 8 * 1024 * 1024
MAX_PROCESSES = 32
"""That run at once in one sandbox; as many ended ones are kept to be read."""
TERMINAL_BYTES = 64 * 1024
"""How much of a terminal's output is kept."""
BACKGROUND_BYTES = 1024 * 1024
MAX_LIFETIME = 24 * 3600.0
MAX_WAIT = 60.0
MAX_INPUT_BYTES = 64 * 1024
"""Of one `Sandbox.write`."""
MAX_READ_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SandboxHealth:
    """`unenforced` names limits that this host cannot enforce; they are shown, never silent."""

    ok: bool
    detail: str
    fix: str | None = None
    unenforced: tuple[str, ...] = ()


REMOTE = "sandbox"


@dataclass(frozen=True, slots=True)
class Holding:
    """What a back end keeps for this instance, as its labels tell. `kind`: container | volume | sandbox.

    A sandbox (`REMOTE`) is on another machine and holds the Workspace's files itself, running or not.
    """

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
    def placement(self) -> RemoteSandbox | None:
        """Where it is, to be kept for the next `open`; None if its Workspace is a folder of this host."""

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

    # Processes that outlive a call. They end with the container, and run on without any worker: a running one is use
    # of the sandbox until its lifetime is over. All raise SandboxUnavailable if the sandbox cannot be reached or is
    # another one by now, and all but `spawn` and `processes` ProcessNotFound for an id that it does not know.

    async def spawn(self, process_id: str, spec: Spawn) -> ProcessInfo:
        """Start a process; with an id that is known, tell of that one, running or ended, and start nothing.

        Raises:
            InvalidInput: the directory does not exist or lies outside the workspace, or a value is out of bounds.
            ProcessLimit: too many processes run already.
        """

    async def processes(self) -> tuple[ProcessInfo, ...]:
        """What runs, and what has ended and is still kept; the oldest first."""

    async def read(
        self, process_id: str, offset: int = 0, limit: int = TERMINAL_BYTES, wait: float = 0.0
    ) -> ProcessOutput:
        """Output from byte `offset` on, at most `limit` bytes; a negative offset counts from the end.

        If there is nothing yet, wait up to `wait` seconds (at most `MAX_WAIT`) for output or the end.
        """

    async def write(self, process_id: str, data: bytes) -> None:
        """Type into a terminal, at most `MAX_INPUT_BYTES`. Returns when the sandbox has taken it.

        Raises:
            InvalidInput: the process has no terminal, or has ended.
            ProcessBusy: it does not read what was typed before.
            SandboxLost: the link broke; it may have arrived or not. It is never sent twice.
        """

    async def resize(self, process_id: str, size: TerminalSize) -> None:
        """Change a terminal's size; its foreground processes get SIGWINCH. Raises InvalidInput as `write`."""

    async def end(self, process_id: str) -> None:
        """End the process's whole tree, as `kill` does. Returns when nothing of it runs any more; idempotent."""


class SandboxProvider(Protocol):
    """The back end of this instance (Podman, E2B)."""

    async def check(self) -> SandboxHealth: ...

    async def open(self, spec: SandboxSpec) -> Sandbox:
        """The Session's sandbox, made or reattached; idempotent.

        Raises:
            SandboxUnavailable: with the exact fix.
            SandboxMissing: it is gone, and what was prepared in it cannot be had again by opening another one.
        """

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
