"""A keeper and all that runs below it: started by a fork, ended as a whole."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable

from . import kernel
from .workspace import Refused, Workspace

TERM_GRACE = 0.2
KEEPER_GRACE = 2.0
MAX_SWEPT = 4096
MAX_DRAIN = 256
"""Reads of a descriptor whose processes are all gone. A pipe holds 1 MiB at most; the bound only guards against a
writer that got the descriptor elsewhere."""


def shell() -> str:
    return "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"


def directory(root: str, cwd: str) -> int:
    """The working directory, open. Raises Refused."""
    place = Workspace(root).locate(cwd)
    try:
        return place.open_directory()
    except OSError as error:
        text = f"The working directory {place.shown} cannot be used: {error.strerror}."
        raise Refused("not_found", text) from None
    finally:
        os.close(place.dirfd)


class Tree:
    """Runs from `fork` until its keeper has ended. `stop_reason` is None, or why its end was asked for."""

    ask_first: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGCONT)
    """What processes get before they are killed; empty to kill at once."""

    def __init__(self) -> None:
        self.fds: dict[int, str] = {}
        self.keeper = 0
        self.exit_status: int | None = None
        self.has_leftovers = False
        self.deadline = 0.0
        self.stop_reason: str | None = None
        self.stopping_since = 0.0
        self.reproach = ""
        """Why it was ended for the sake of the disk."""
        self.ended_by_sweep: set[int] = set()
        self.note = b""
        """What the shell has said of itself at its end."""
        self._status = b""

    @property
    def settled(self) -> bool:
        raise NotImplementedError

    @property
    def adopts(self) -> bool:
        """Whether its keeper may leave processes behind if it is itself killed."""
        raise NotImplementedError

    def take(self, name: str, piece: bytes) -> None:
        """A piece of the output called `name`."""
        raise NotImplementedError

    def settle(self, keeper_status: int) -> None:
        """Its keeper has ended, and so all its processes."""
        raise NotImplementedError

    def fork(self, reads: dict[int, str], child_ends: list[int], run: Callable[[], None]) -> None:
        """Start the keeper. `reads` are this process's ends by name, `child_ends` the others'. Raises OSError."""
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
        except OSError:
            piece = b""  # EIO: no process has the terminal open any more.
        name = self.fds[fd]
        if name == "status":
            self._status += piece
            if not piece and self._status:
                status, left, self.note = [*self._status.split(b" ", 2), b""][:3]
                self.exit_status, self.has_leftovers = int(status), left != b"0"
        elif piece:
            self.take(name, piece)
        return bool(piece)

    def drain(self) -> None:
        """Read what the descriptors still hold, and close them."""
        for fd in list(self.fds):
            for _ in range(MAX_DRAIN):
                if not select.select([fd], [], [], 0)[0] or not self.readable(fd):
                    break
            os.close(fd)
        self.fds = {}

    def request_stop(self, reason: str) -> None:
        """Begin to end the tree; `sweep` does it step by step, so that nothing waits."""
        if self.settled or self.stop_reason is not None:
            return
        self.stop_reason = reason if self.exit_status is None else "leftovers"
        self.stopping_since = time.monotonic()

    def sweep(self) -> None:
        """One pass: ask by signal, after a grace freeze and kill; last the keeper itself, if it hangs."""
        age = time.monotonic() - self.stopping_since
        pids = kernel.descendants({self.keeper})
        if not self.ask_first:
            kernel.kill_now([*pids, self.keeper])
            return
        fresh = [pid for pid in pids if pid not in self.ended_by_sweep]
        self.ended_by_sweep.update(fresh[: max(0, MAX_SWEPT - len(self.ended_by_sweep))])
        if age < TERM_GRACE:
            for number in self.ask_first:
                kernel.send(fresh, number)
        else:
            kernel.kill_now(pids)
        kernel.send([self.keeper], signal.SIGCONT)
        if age > KEEPER_GRACE:
            kernel.kill_now([self.keeper])

    def wait_code(self, keeper_status: int) -> int:
        """Exit code of the command, 128 + n after signal n; of the keeper, if it was killed."""
        status = self.exit_status if self.exit_status is not None else keeper_status
        return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
