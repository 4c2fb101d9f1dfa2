"""A process that outlives the request that started it: a background command or a terminal, and its output."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
import termios
import time
from typing import Any

from . import children, tree
from .workspace import Refused

TERMINAL_BYTES = 64 * 1024
BACKGROUND_BYTES = 1024 * 1024
INBOX_BYTES = 256 * 1024
"""Typed, but not read yet by what runs in the terminal."""
MAX_LIFETIME = 24 * 3600.0
MAX_SIDE = 1000


class Scrollback:
    """The last bytes of an output; what came before is only counted."""

    def __init__(self, limit: int) -> None:
        self.total = 0
        self._data = bytearray()
        self._limit = limit

    @property
    def first(self) -> int:
        """Offset of the first byte that is kept."""
        return self.total - len(self._data)

    def add(self, piece: bytes) -> None:
        self.total += len(piece)
        self._data += piece
        if len(self._data) > self._limit:
            del self._data[: len(self._data) - self._limit]

    def read(self, offset: int, limit: int) -> tuple[int, bytes]:
        """From `offset`, or from the first byte after it that is kept; the offset of what is returned."""
        start = min(max(offset, self.first), self.total)
        return start, bytes(self._data[start - self.first : start - self.first + limit])


def _size(given: Any) -> tuple[int, int]:
    rows, columns = int(given[0]), int(given[1])
    if not (1 <= rows <= MAX_SIDE and 1 <= columns <= MAX_SIDE):
        raise Refused("invalid", f"A terminal has from 1 to {MAX_SIDE} rows and columns.")
    return rows, columns


class Process(tree.Tree):
    """Runs from `start` to `settled`. `stop_reason` is None, `ended`, `lifetime`, `disk` or `leftovers`."""

    def __init__(self, process_id: str, request: dict[str, Any]) -> None:
        super().__init__()
        self.process_id = process_id
        self.cwd = str(request.get("cwd") or ".")
        self.size = _size(request["terminal"]) if request.get("terminal") else None
        self.command: bytes | None = None
        self.started_at = 0
        self.output = Scrollback(TERMINAL_BYTES if self.size else BACKGROUND_BYTES)
        self.inbox = bytearray()
        self.exit_code: int | None = None
        self._ended = False
        self._terminal = -1
        if self.size:
            self.ask_first = (signal.SIGHUP, signal.SIGTERM, signal.SIGCONT)

    @property
    def settled(self) -> bool:
        return self._ended

    @property
    def adopts(self) -> bool:
        return True

    @property
    def ended_by(self) -> str | None:
        if not self._ended:
            return None
        return self.stop_reason if self.stop_reason in ("ended", "lifetime", "disk") else "exit"

    def start(self, root: str, home: str, request: dict[str, Any], body: bytes) -> None:
        """Fork the processes. Raises Refused (bad request) and OSError (no process, descriptor or terminal left)."""
        lifetime = float(request["lifetime"])
        if not 0 < lifetime <= MAX_LIFETIME:
            raise Refused("invalid", f"The lifetime must be over 0 and at most {MAX_LIFETIME:.0f} seconds.")
        self.command = body if request.get("command", True) else None
        if self.command is None and not self.size:
            raise Refused("invalid", "A shell needs a terminal; name a command.")
        if b"\0" in body:
            raise Refused("invalid", "The command contains a NUL byte.")
        cwd = tree.directory(root, self.cwd)
        self.deadline = time.monotonic() + lifetime
        self.started_at = time.time_ns() // 1000
        term = "xterm-256color" if self.size else "dumb"
        env = children.environment(dict(os.environ), dict(request.get("env") or {}), home, term)
        shell, command = tree.shell(), self.command
        status_r, status_w = os.pipe2(os.O_CLOEXEC)
        if self.size:
            mine, theirs = os.openpty()
            self._terminal = mine
            self.resize(self.size)

            def start() -> int:
                return children.spawn_terminal(shell, command, cwd, env, theirs)
        else:
            mine, theirs = os.pipe2(os.O_CLOEXEC)

            def start() -> int:
                return children.spawn(shell, body, cwd, env, theirs, theirs)

        self.fork(
            {mine: "output", status_r: "status"},
            [theirs, status_w, cwd],
            lambda: children.run_keeper(shell, start, [cwd, theirs], theirs, status_w),
        )

    def take(self, name: str, piece: bytes) -> None:
        self.output.add(piece)

    def settle(self, keeper_status: int) -> None:
        """All its processes are gone; its output stays."""
        self.drain()
        if self.stop_reason == "disk":
            self.output.add(f"\r\nThe process was ended. {self.reproach}\r\n".encode())
        self._terminal, self._ended = -1, True
        self.inbox.clear()
        self.exit_code = self.wait_code(keeper_status) if self.ended_by == "exit" else None

    # --- a terminal ---------------------------------------------------------------------------------------------

    def _writable(self) -> None:
        if not self.size:
            raise Refused("invalid", "The process has no terminal.")
        if self._terminal < 0:
            raise Refused("invalid", "The terminal has ended.")

    @property
    def terminal(self) -> int:
        """The descriptor to write to, or -1."""
        return self._terminal

    def resize(self, size: Any) -> None:
        """Raises Refused. The kernel sends SIGWINCH to the foreground processes."""
        self._writable()
        self.size = _size(size)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *self.size, 0, 0))

    def write(self, data: bytes) -> None:
        """Put it behind what is waiting to be typed. Raises Refused."""
        self._writable()
        if len(self.inbox) + len(data) > INBOX_BYTES:
            raise Refused("busy", "The terminal does not read what was typed before.")
        self.inbox += data

    def type(self) -> None:
        """Hand over as much of the inbox as the terminal takes now."""
        while self.inbox and self._terminal >= 0:
            try:
                del self.inbox[: os.write(self._terminal, self.inbox[:4096])]
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.EINTR:
                    self.inbox.clear()

    def info(self) -> dict[str, Any]:
        """As the port's `ProcessInfo`; the command is sent as text."""
        command = None if self.command is None else self.command.decode("utf-8", "surrogateescape")
        return {
            "id": self.process_id,
            "command": command,
            "cwd": self.cwd,
            "terminal": self.size,
            "running": not self._ended,
            "exit_code": self.exit_code,
            "started_at": self.started_at,
            "bytes_out": self.output.total,
            "first_offset": self.output.first,
            "ended_by": self.ended_by,
        }
