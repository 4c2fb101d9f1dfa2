"""Starting, awaiting and ending worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.chaos import worker
from tests.chaos.worker import Orders

DEATH_SECONDS = 90.0
LEAVE_SECONDS = 30.0

_FORK_SERVER = multiprocessing.get_context("forkserver")
_FORK_SERVER.set_forkserver_preload([worker.__name__])


class WorkerProcess:
    """A started worker."""

    def __init__(self, process: BaseProcess, log: Path) -> None:
        self._process = process
        self._log = log

    async def died(self) -> None:
        """Wait until the worker has killed itself. Raises AssertionError if it ends otherwise or goes on."""
        code = await self._ended(DEATH_SECONDS)
        assert code == -signal.SIGKILL, f"the worker was to be killed; its exit code is {code}.\n{self.words()}"

    async def leave(self) -> None:
        """Tell the worker to stop in order. Raises AssertionError if it does not, or had ended before."""
        assert self._process.exitcode is None, f"the worker ended by itself.\n{self.words()}"
        self._process.terminate()
        code = await self._ended(LEAVE_SECONDS)
        assert code == 0, f"the worker left with exit code {code}.\n{self.words()}"

    def words(self) -> str:
        """The end of the worker's log."""
        return self._log.read_text(errors="replace")[-2000:] if self._log.exists() else "it said nothing"

    async def _ended(self, seconds: float) -> int | None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._process.sentinel, ended.set)
        try:
            async with asyncio.timeout(seconds):
                await ended.wait()
        except TimeoutError:
            return None
        finally:
            loop.remove_reader(self._process.sentinel)
        return self._process.exitcode

    async def kill(self) -> None:
        """Whatever it does, it does it no more."""
        if self._process.exitcode is None:
            self._process.kill()
            await self._ended(LEAVE_SECONDS)


@asynccontextmanager
async def running(orders: Orders) -> AsyncIterator[WorkerProcess]:
    """A worker process that is gone at the end, however the block ends."""
    process = _FORK_SERVER.Process(target=worker.run, args=(orders,), daemon=True)
    await asyncio.to_thread(process.start)
    started = WorkerProcess(process, Path(orders.log))
    try:
        yield started
    finally:
        with contextlib.suppress(Exception):
            await asyncio.shield(started.kill())
