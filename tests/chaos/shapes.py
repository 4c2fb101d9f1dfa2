"""The two shapes in which Milepost runs, with the ways to kill their parts.

`Embedded`: one process on SQLite (`milepost dev`), with a Temporal server of its own.
`Apart`: an API process and two workers on PostgreSQL and a Temporal server that all of them share.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from milepost.bootstrap.data_root import DataRoot
from milepost.sandboxes.podman.provider import PodmanProvider
from milepost.sandboxes.podman.service import PodmanService
from milepost.storage import open_ledger, open_notifier, upgrade
from milepost.temporal.client import TemporalAddress
from milepost.temporal.dev_server import DevServer
from tests.chaos.points import Boundary
from tests.chaos.process import Orders
from tests.chaos.processes import LEAVE_SECONDS, START_SECONDS, Process
from tests.support.postgres_server import PostgresServer, find_binaries, memory_folder

START_TRIES = 40
_UPGRADING = asyncio.Lock()
"""Migrations of two databases cannot run in one process at the same time."""

Revive = Callable[[], Coroutine[Any, Any, None]]


class Home:
    """The folders of a world: data root, Workspaces, configuration. The path is short: sockets lie below it."""

    def __init__(self, podman_root: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mpc-"))
        self.podman_root = podman_root
        self.data = self.folder / "home"
        self.config = self.folder / "milepost.yaml"

    def configure(self, sections: dict[str, object]) -> None:
        """Write the configuration (JSON is YAML)."""
        common: dict[str, object] = {
            "sandbox": {"socket": str(PodmanService(self.podman_root, None, None, None).socket_path())},
            "api": {"port": 0},
        }
        self.config.write_text(json.dumps(common | sections), encoding="utf-8")

    def orders(self, name: str, *command: str, off: frozenset[str] = frozenset(), **more: Any) -> Orders:
        """What a process of this world is to run."""
        return Orders(command, self.data, self.config, self.folder / f"{name}.log", off, **more)

    def words(self) -> str:
        """The ends of all logs."""
        logs = [*sorted(self.folder.glob("*.log")), *sorted(self.data.glob("*.log"))]
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-2500:]}" for log in logs)

    def remove(self) -> None:
        """Remove all of it."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Shape(Protocol):
    """A running Milepost. `processes` are those that reach boundaries; `workers` are their executing part."""

    home: Home
    database: str
    url: str

    @property
    def processes(self) -> list[Process]: ...

    @property
    def workers(self) -> list[Process]: ...

    @property
    def buried(self) -> list[Process]:
        """Workers that were killed."""

    async def kill(self, victim: str, held: Process | None, rng: random.Random) -> Revive:
        """Kill, and wait for the death. `held` is the process that has reached the point."""


def alive_at(shape: Shape, at: float) -> bool:
    """Whether a worker lived at that time, as far as can be told from outside."""
    lived = [*shape.workers, *shape.buried]
    return any(each.ready_at and each.ready_at <= at and (not each.died_at or at <= each.died_at) for each in lived)


def last_death(shape: Shape, before: float) -> float:
    """When the last worker died before that time."""
    return max((each.died_at for each in shape.buried if each.died_at <= before), default=0.0)


def holder(boundary: Boundary, shape: Shape) -> list[Process]:
    """The processes that can reach a boundary."""
    begins = boundary is Boundary.BEGIN
    return [each for each in shape.processes if begins == (each not in shape.workers) or len(shape.processes) == 1]


class Embedded:
    """Everything in one process, on SQLite."""

    database = "sqlite"

    def __init__(self, home: Home, off: frozenset[str] = frozenset()) -> None:
        self.home = home
        self.url = f"sqlite:///{home.data / 'milepost.db'}"
        self._orders = home.orders("dev", "dev", off=off)
        self.buried: list[Process] = []
        self._processes: list[Process] = []
        home.configure({"temporal": {"port": 0, "ui_port": 0}})

    async def start(self) -> None:
        """Start, and wait until it works."""
        process = Process(self._orders)
        await process.start()
        self._processes = [process]
        await process.ready()

    @property
    def processes(self) -> list[Process]:
        return self._processes

    workers = processes

    def temporal_address(self) -> TemporalAddress:
        """Where the embedded server is now."""
        root = DataRoot(self.home.data)
        info = root.read_info()
        assert info is not None and info.temporal_target is not None
        namespace = DevServer(root.temporal_store, root.temporal_log)._marker
        return TemporalAddress(info.temporal_target, namespace)

    async def kill(self, victim: str, held: Process | None, rng: random.Random) -> Revive:
        if victim == "temporal":
            for pid, command in self._processes[0].children().items():
                if "start-dev" in command:
                    os.kill(pid, signal.SIGKILL)
            return _nothing
        await self._processes[0].kill()
        self.buried += self._processes
        return self.start

    async def close(self) -> None:
        for process in self.processes:
            await process.kill()


async def _nothing() -> None:
    """What the product brings back by itself."""


class Database:
    """A PostgreSQL server that can be killed. It lives as long as the thread that started it: one of its own."""

    def __init__(self) -> None:
        binaries = find_binaries()
        assert binaries is not None, "PostgreSQL is not installed"
        self._thread = ThreadPoolExecutor(1)
        self.server = PostgresServer(binaries, memory_folder())

    async def _run(self, work: Callable[..., Any], *arguments: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def start(self) -> None:
        """Start; what a killed server left behind may hold it up for a moment."""
        for tries in range(START_TRIES):
            try:
                await self._run(self.server.start)
            except RuntimeError:
                if tries == START_TRIES - 1:
                    raise
                await asyncio.sleep(0.25)
            else:
                return

    async def kill(self) -> None:
        """Kill the postmaster."""
        await self._run(self.server.stop, signal.SIGKILL)

    async def close(self) -> None:
        await self._run(self.server.close)
        self._thread.shutdown()


class Apart:
    """An API process and two workers, on PostgreSQL."""

    database = "postgresql"

    def __init__(
        self,
        home: Home,
        off: frozenset[str] = frozenset(),
        workers: int = 2,
        drain_seconds: float = 2,
        shorten: bool = True,
    ) -> None:
        self.home = home
        self._drain_seconds = drain_seconds
        self._shorten = shorten
        self._off = off
        self._count = workers
        self.database_server = Database()
        self.temporal = DevServer(home.folder / "temporal.db", home.folder / "temporal.log")
        self.buried: list[Process] = []
        self.workers: list[Process] = []
        self._apis: list[Process] = []
        self._started = 0

    async def start(self) -> None:
        """Start, and wait until everything works."""
        await self.database_server.start()
        server = self.database_server.server
        self.url = server.url(await asyncio.to_thread(server.create_database))
        async with _UPGRADING:
            await upgrade(self.url)
        self.address: TemporalAddress = await self.temporal.start()
        self.home.configure(
            {
                "database": {"url": self.url},
                "temporal": {"address": self.address.target, "namespace": self.address.namespace},
                "worker": {"drain_seconds": self._drain_seconds},
            }
        )
        await asyncio.gather(self._serve(), *(self.work() for _ in range(self._count)))

    async def _serve(self) -> None:
        process = Process(self.home.orders("api", "api", off=self._off, shorten=self._shorten))
        await process.start()
        self._apis = [process]

    async def serve_beside(self) -> str:
        """Start another API process on the same data root; return its address."""
        orders = self.home.orders("api-beside", "api", "--tcp-only", off=self._off, shorten=self._shorten)
        process = Process(orders)
        await process.start()
        self._apis.append(process)
        async with asyncio.timeout(START_SECONDS):
            while (found := re.search(r"http://127\.0\.0\.1:[0-9]+", process.words())) is None:
                assert process.code is None, process.words()
                await asyncio.sleep(0.05)
        return found[0]

    async def work(self, release: str = "") -> Process:
        """Start another worker, of this release unless another one is named; return it when it works."""
        self._started += 1
        more = {"shorten": self._shorten, "release": release}
        process = Process(self.home.orders(f"worker-{self._started}", "worker", off=self._off, **more))
        await process.start()
        self.workers.append(process)
        await process.ready()
        return process

    async def drain(self, worker: Process) -> int:
        """Wait until a worker that was told to stop has ended; return its exit code."""
        code = await worker.ended(LEAVE_SECONDS)
        self.workers.remove(worker)
        self.buried.append(worker)
        return code

    @property
    def processes(self) -> list[Process]:
        return [*self._apis, *self.workers]

    def temporal_address(self) -> TemporalAddress:
        """Where the server is."""
        return self.address

    async def kill(self, victim: str, held: Process | None, rng: random.Random) -> Revive:
        match victim:
            case "worker":
                # Mostly the one at work; now and then both at once, so that nobody is left.
                doomed = [held] if held in self.workers and rng.random() < 0.7 else list(self.workers)
                for each in doomed:
                    assert each is not None
                    await self._bury(each)
                return self._work_again
            case "api":
                await self._apis[0].kill()
                return self._serve
            case "temporal":
                assert self.temporal.pid is not None
                os.kill(self.temporal.pid, signal.SIGKILL)
                return _nothing
            case "database":
                await self.database_server.kill()
                return self.database_server.start
        raise AssertionError(victim)

    async def _bury(self, worker: Process) -> None:
        await worker.kill()
        self.workers.remove(worker)
        self.buried.append(worker)

    async def _work_again(self) -> None:
        await asyncio.gather(*(self.work() for _ in range(self._count - len(self.workers))))

    async def close(self) -> None:
        for process in self.processes:
            await process.kill()
        await self.temporal.stop()
        await self.database_server.close()


SHAPES: dict[str, type[Embedded] | type[Apart]] = {"sqlite": Embedded, "postgresql": Apart}
VICTIMS = {"sqlite": ("instance", "temporal"), "postgresql": ("worker", "api", "temporal", "database")}
"""On SQLite API and workers are one process, whose death takes the Temporal server it started with it."""


@asynccontextmanager
async def running(
    database: str, podman_root: Path, off: frozenset[str] = frozenset(), **more: Any
) -> AsyncIterator[Embedded | Apart]:
    """A running Milepost of which nothing is left at the end. `more` goes to the shape."""
    home = Home(podman_root)
    shape = SHAPES[database](home, off, **more)
    try:
        await shape.start()
        yield shape
    finally:
        instance = await _instance(shape.url) if hasattr(shape, "url") else ""
        with contextlib.suppress(Exception):
            await _without_containers(podman_root, instance)
        await asyncio.shield(shape.close())
        home.remove()


async def _instance(url: str) -> str:
    with contextlib.suppress(Exception):
        notifier = await open_notifier(url)
        ledger = await open_ledger(url, notifier)
        await ledger.close()
        await notifier.close()
        return ledger.instance_id
    return ""


async def _without_containers(podman_root: Path, instance: str) -> None:
    provider = PodmanProvider(podman_root, instance)
    try:
        for found in await provider.owned():
            await provider.remove(found.session_id)
    finally:
        await provider.close()


def now() -> float:
    """Seconds since the epoch, as the processes' own clocks tell them."""
    return time.time()
