"""Starting, arming, killing and ending processes of Milepost."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.chaos import process
from tests.chaos.points import Point
from tests.chaos.process import Orders

START_SECONDS = 90.0
LEAVE_SECONDS = 60.0

_FORK_SERVER = multiprocessing.get_context("forkserver")
_FORK_SERVER.set_forkserver_preload([process.__name__])


class Process:
    """A started process. `lived` are the times (seconds) at which it became ready and at which it was seen dead."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self._wire, self._theirs = _FORK_SERVER.Pipe()
        self._process: BaseProcess = _FORK_SERVER.Process(target=process.run, args=(orders, self._theirs), daemon=True)
        self._ready = asyncio.Event()
        self.reached = asyncio.Event()
        self.ready_at = 0.0
        self.died_at = 0.0

    async def start(self) -> None:
        """Start; `ready` tells when it works."""
        await asyncio.to_thread(self._process.start)
        self._theirs.close()
        asyncio.get_running_loop().add_reader(self._wire.fileno(), self._hear)

    def _hear(self) -> None:
        try:
            while self._wire.poll():
                word = self._wire.recv()
                if word == "ready":
                    self.ready_at = time.time()
                    self._ready.set()
                else:
                    self.reached.set()
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._wire.fileno())

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.exitcode

    async def ready(self) -> None:
        """Wait until its workers work. Raises AssertionError if it ends before."""
        async with asyncio.timeout(START_SECONDS):
            while not self._ready.is_set():
                assert self.code is None, f"the process ended with {self.code}:\n{self.words()}"
                await asyncio.sleep(0.02)

    def arm(self, point: Point | None) -> None:
        """Hold the process at this point, once; at none without one."""
        self.reached.clear()
        self._send(point)

    def go_on(self) -> None:
        """Let a held process go on."""
        self._send("go")

    def _send(self, what: object) -> None:
        try:
            self._wire.send(what)
        except OSError:
            assert self.code is not None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    async def kill(self) -> None:
        """End it like a power cut would, and wait for that."""
        if self.code is None:
            self._process.kill()
            await self.ended(LEAVE_SECONDS)

    async def ended(self, seconds: float) -> int:
        """Wait for the end; return the exit code."""
        try:
            async with asyncio.timeout(seconds):
                while self.code is None:
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"the process did not end within {seconds:g} s:\n{self.words()}") from None
        self.died_at = time.time()
        asyncio.get_running_loop().remove_reader(self._wire.fileno())
        assert self.code is not None
        return self.code

    def words(self) -> str:
        """The end of its log."""
        return self.orders.log.read_text(errors="replace")[-3000:] if self.orders.log.exists() else "it said nothing"

    def children(self) -> dict[int, str]:
        """Its child processes: pid to command line."""
        found = {}
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            for pid in (task / "children").read_text().split():
                found[int(pid)] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found
