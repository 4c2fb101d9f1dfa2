"""One operation: its processes, its bounded output, its outcome."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

from . import children, kernel, wire
from .workspace import Refused, Workspace

STREAM_LIMIT = 16 * 1024 * 1024
TAIL_LIMIT = 64 * 1024
FILE_SECONDS = 60.0
TERM_GRACE = 0.2
KEEPER_GRACE = 2.0
MAX_SWEPT = 4096


class Stream:
    """The first 16 MiB and the last 64 KiB of an output; the middle is counted and dropped."""

    def __init__(self, limit: int = STREAM_LIMIT) -> None:
        self.data = bytearray()
        self.total = 0
        self._limit = limit
        self._tail = bytearray()

    def add(self, piece: bytes) -> None:
        self.total += len(piece)
        room = self._limit - len(self.data)
        self.data += piece[:room]
        if len(piece) > room:
            self._tail += piece[room:]
            del self._tail[:-TAIL_LIMIT]

    def finish(self) -> bool:
        """Join head and tail; whether something was left out."""
        dropped = self.total - len(self.data) - len(self._tail)
        if dropped > 0:
            self.data += b"\n[... %d bytes left out ...]\n" % dropped
        self.data += self._tail
        self._tail = bytearray()
        return dropped > 0


class Operation:
    """Runs from `start` to `settled`. `stop_reason` is None, `timeout`, `kill` or `leftovers`."""

    def __init__(self, effect_id: str, request: dict[str, Any]) -> None:
        self.effect_id = effect_id
        self.kind = str(request.get("op"))
        self.streams = {"stdout": Stream(), "stderr": Stream()}
        self.fds: dict[int, str] = {}
        self.keeper = 0
        self.exit_status: int | None = None
        self.has_leftovers = False
        self.deadline = 0.0
        self.stop_reason: str | None = None
        self.stopping_since = 0.0
        self.ended_by_sweep: set[int] = set()
        self.outcome: dict[str, Any] | None = None
        self.result = b""
        self._status = b""

    @property
    def settled(self) -> bool:
        return self.outcome is not None

    @property
    def is_command(self) -> bool:
        return self.kind == "exec"

    @property
    def size(self) -> int:
        return sum(len(stream.data) for stream in self.streams.values()) + len(self.result) + 512

    def start(self, root: str, home: str, request: dict[str, Any], body: bytes) -> None:
        """Fork the processes. Raises Refused (bad request) and OSError (no process or descriptor left)."""
        if self.is_command:
            self._start_command(root, home, request, body)
        elif self.kind in children.FILE_OPERATIONS:
            self.deadline = time.monotonic() + FILE_SECONDS
            (read_end, write_end) = os.pipe2(os.O_CLOEXEC)
            self.streams["stdout"] = Stream(wire.MAX_BODY + wire.MAX_HEAD)
            self._fork(
                {read_end: "stdout"},
                [write_end],
                lambda: children.run_file_operation(root, request, body, write_end),
            )
        else:
            raise Refused("invalid", f"Unknown operation {self.kind!r}.")

    def _start_command(self, root: str, home: str, request: dict[str, Any], command: bytes) -> None:
        self.deadline = time.monotonic() + float(request["timeout"])
        place = Workspace(root).locate(request.get("cwd") or ".")
        try:
            cwd = place.open_directory()
        except OSError as error:
            text = f"The working directory {place.shown} cannot be used: {error.strerror}."
            raise Refused("not_found", text) from None
        finally:
            os.close(place.dirfd)
        shell = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
        if b"\0" in command:
            raise Refused("invalid", "The command contains a NUL byte.")
        env = children.environment(dict(os.environ), dict(request.get("env") or {}), home)
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
        (out_r, out_w), (err_r, err_w), (status_r, status_w) = pipes
        self._fork(
            {out_r: "stdout", err_r: "stderr", status_r: "status"},
            [out_w, err_w, status_w, cwd],
            lambda: children.run_keeper(shell, command, cwd, env, out_w, err_w, status_w),
        )

    def _fork(self, reads: dict[int, str], child_ends: list[int], run: Callable[[], None]) -> None:
        try:
            pid = os.fork()
        except OSError:
            for fd in [*reads, *child_ends]:
                os.close(fd)
            raise
        if pid == 0:
            try:
                run()
            finally:
                os._exit(125)
        for fd in child_ends:
            os.close(fd)
        self.keeper = pid
        self.fds = reads
        for fd in reads:
            os.set_blocking(fd, False)

    def readable(self, fd: int) -> bool:
        """Take a piece of what is there; False once the descriptor is at its end."""
        try:
            piece = os.read(fd, 256 * 1024)
        except BlockingIOError:
            return True
        name = self.fds[fd]
        if name == "status":
            self._status += piece
            if not piece and self._status:
                status, left = self._status.split()
                self.exit_status, self.has_leftovers = int(status), left != b"0"
        elif piece:
            self.streams[name].add(piece)
        return bool(piece)

    def request_stop(self, reason: str) -> None:
        """Begin to end the tree; `sweep` does it step by step, so that nothing waits."""
        if self.settled or self.stop_reason is not None:
            return
        self.stop_reason = reason if self.exit_status is None else "leftovers"
        self.stopping_since = time.monotonic()

    def sweep(self) -> None:
        """One pass: ask with SIGTERM, after a grace freeze and kill; last the keeper itself, if it hangs."""
        age = time.monotonic() - self.stopping_since
        pids = kernel.descendants({self.keeper})
        if not self.is_command:
            kernel.kill_now([*pids, self.keeper])
            return
        fresh = [pid for pid in pids if pid not in self.ended_by_sweep]
        self.ended_by_sweep.update(fresh[: max(0, MAX_SWEPT - len(self.ended_by_sweep))])
        if age < TERM_GRACE:
            kernel.send(fresh, signal.SIGTERM)
            kernel.send(fresh, signal.SIGCONT)
        else:
            kernel.kill_now(pids)
        kernel.send([self.keeper], signal.SIGCONT)
        if age > KEEPER_GRACE:
            kernel.kill_now([self.keeper])

    def settle(self, keeper_status: int) -> None:
        """All processes are gone: read what the pipes still hold and fix the outcome."""
        for fd in list(self.fds):
            # A pipe holds 1 MiB at most; the bound only guards against a writer that got the descriptor elsewhere.
            for _ in range(256):
                if not select.select([fd], [], [], 0)[0] or not self.readable(fd):
                    break
            os.close(fd)
        self.fds = {}
        self.outcome = self._command_outcome(keeper_status) if self.is_command else self._file_outcome()

    def _command_outcome(self, keeper_status: int) -> dict[str, Any]:
        truncated = [stream.finish() for stream in self.streams.values()]
        status = self.exit_status if self.exit_status is not None else keeper_status
        code: int | None = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        detail: dict[str, Any] = {f"{name}_bytes": stream.total for name, stream in self.streams.items()}
        if self.stop_reason == "leftovers" and self.ended_by_sweep:
            detail["leftover_processes"] = len(self.ended_by_sweep)
        if self.stop_reason == "timeout":
            code = 124
        elif self.stop_reason == "kill":
            code = None
        return {
            "exit_code": code,
            "truncated": any(truncated),
            "timed_out": self.stop_reason == "timeout",
            "killed": self.stop_reason == "kill",
            "detail": detail,
        }

    def _file_outcome(self) -> dict[str, Any]:
        stream = self.streams["stdout"]
        frames = list(wire.Decoder().feed(bytes(stream.data)))
        stream.data = bytearray()
        if frames:
            head, self.result = frames[0]
            return head
        if self.stop_reason == "kill":
            return {"killed": True, "error_code": "killed", "error": "The operation was stopped."}
        if self.stop_reason == "timeout":
            text = f"The operation took longer than {FILE_SECONDS:.0f} seconds and was ended."
            return {"timed_out": True, "error_code": "timeout", "error": text}
        text = "The operation's process ended without a result (out of memory, or killed by another command)."
        return {"error_code": "invalid", "error": text}
