"""One operation: its processes, its bounded output, its outcome."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Optional

from . import children, tree, wire
from .workspace import Refused, show

STREAM_LIMIT = 16 * 1024 * 1024
TAIL_LIMIT = 64 * 1024
FILE_SECONDS = 60.0


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


class Operation(tree.Tree):
    """Runs from `start` to `settled`. `stop_reason` is None, `timeout`, `kill`, `disk` or `leftovers`."""

    def __init__(self, effect_id: str, request: dict[str, Any]) -> None:
        super().__init__()
        self.effect_id = effect_id
        self.kind = str(request.get("op"))
        self.streams = {"stdout": Stream(), "stderr": Stream()}
        self.outcome: dict[str, Any] | None = None
        self.result = b""
        self._detail: dict[str, Any] = {}
        self._root: Optional[str] = None
        if not self.is_command:
            self.ask_first = ()

    @property
    def settled(self) -> bool:
        return self.outcome is not None

    @property
    def is_command(self) -> bool:
        return self.kind == "exec"

    @property
    def adopts(self) -> bool:
        return self.is_command

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
            self.fork(
                {read_end: "stdout"},
                [write_end],
                lambda: children.run_file_operation(root, request, body, write_end),
            )
        else:
            raise Refused("invalid", f"Unknown operation {self.kind!r}.")

    def _start_command(self, root: str, home: str, request: dict[str, Any], body: bytes) -> None:
        self.deadline = time.monotonic() + float(request["timeout"])
        split = int(request.get("split", len(body)))
        command, stdin = body[:split], body[split:]
        if b"\0" in command:
            raise Refused("invalid", "The command contains a NUL byte.")
        keeps = bool(request.get("keep_cwd"))
        cwd = self._directory(root, str(request.get("cwd") or "."), keeps)
        self._root = root if keeps else None
        shell = tree.shell()
        env = children.environment(dict(os.environ), dict(request.get("env") or {}), home)
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
        (out_r, out_w), (err_r, err_w), (status_r, status_w) = pipes

        note = children.ShellNote() if keeps else None

        def start() -> int:
            script, given = (command, env) if note is None else note.prepare(shell, command, env)
            return children.spawn(shell, script, cwd, given, out_w, err_w, stdin)

        self.fork(
            {out_r: "stdout", err_r: "stderr", status_r: "status"},
            [out_w, err_w, status_w, cwd],
            lambda: children.run_keeper(shell, start, [cwd, out_w, err_w], err_w, status_w, note),
        )

    def _directory(self, root: str, cwd: str, keeps: bool) -> int:
        try:
            return tree.directory(root, cwd)
        except Refused as error:
            if not keeps or cwd == ".":
                raise
            self._detail["cwd_lost"] = error.text
            return tree.directory(root, ".")

    def take(self, name: str, piece: bytes) -> None:
        self.streams[name].add(piece)

    def settle(self, keeper_status: int) -> None:
        """Fix the outcome."""
        self.drain()
        self.outcome = self._command_outcome(keeper_status) if self.is_command else self._file_outcome()

    def _command_outcome(self, keeper_status: int) -> dict[str, Any]:
        if self.stop_reason == "disk":
            self.streams["stderr"].add(f"\nThe command was ended. {self.reproach}\n".encode())
        truncated = [stream.finish() for stream in self.streams.values()]
        code: int | None = self.wait_code(keeper_status)
        detail: dict[str, Any] = {f"{name}_bytes": stream.total for name, stream in self.streams.items()}
        detail.update(self._detail)
        if self._root is not None and self.note:
            detail.update(_place_of(self.note, os.path.normpath(os.fsencode(self._root))))
        if self.stop_reason == "leftovers" and self.ended_by_sweep:
            detail["leftover_processes"] = len(self.ended_by_sweep)
        if self.stop_reason == "timeout":
            code = 124
        elif self.stop_reason == "kill":
            code = None
        elif self.stop_reason == "disk":
            # As a signal for a file that is too large gives.
            code, detail["disk"] = 128 + signal.SIGXFSZ, self.reproach
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


def _place_of(path: bytes, root: bytes) -> dict[str, str]:
    if path == root:
        return {"cwd": "."}
    if path.startswith(root + b"/"):
        return {"cwd": show(path[len(root) + 1 :])}
    return {"cwd_outside": show(path)}
