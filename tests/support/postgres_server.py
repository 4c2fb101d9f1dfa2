"""A real PostgreSQL server of the test run's own: temporary, on a Unix socket and a loopback port."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg

START_SECONDS = 60.0


def find_binaries() -> Path | None:
    """The folder with `initdb` and `postgres`: the newest of Debian's, else the one on PATH."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    on_path = [Path(found).resolve().parent for name in ("postgres", "initdb") if (found := shutil.which(name))]
    for folder in (*debian, *on_path):
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    return None


def _account() -> tuple[list[str], str | None]:
    """PostgreSQL refuses to run as root: a command prefix that gives root up, and the account it runs as."""
    if os.geteuid() != 0:
        return [], None
    import pwd

    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"], name
    raise RuntimeError("no account other than root to run PostgreSQL as")


class PostgresServer:
    """fsync is on, as in production. `parent` is where its folder goes: memory is fast, a disk is what to measure."""

    def __init__(self, binaries: Path, parent: Path) -> None:
        self._binaries = binaries
        self._prefix, owner = _account()
        self.folder = Path(tempfile.mkdtemp(prefix="milepost-pg-", dir=parent))
        if owner is not None:
            shutil.chown(self.folder, owner)
        self._process: subprocess.Popen[bytes] | None = None
        self._number = 0
        self._drops = ThreadPoolExecutor(1)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._command(
            "initdb",
            *("--pgdata", str(self.folder / "data"), "--username", "milepost", "--auth", "trust"),
            *("--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync"),
        )

    def _command(self, name: str, *arguments: str) -> None:
        command = [*self._prefix, str(self._binaries / name), *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, timeout=120, check=False)
        if done.returncode:
            raise RuntimeError(f"{name}: {done.stderr.decode(errors='replace')[-2000:]}")

    def start(self) -> None:
        """Start and wait until it answers. The calling thread must live as long as the server."""
        log = (self.folder / "log").open("ab")
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            "max_connections": "200",
            "shared_buffers": "64MB",
            "deadlock_timeout": "200ms",
        }
        flags = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        # A test run that is killed takes its server with it: the server crashes when the starting thread ends.
        prefix = [*(self._prefix or ["setpriv"]), "--pdeathsig", "QUIT"] if shutil.which("setpriv") else []
        command = [*prefix, str(self._binaries / "postgres"), "-D", str(self.folder / "data"), *flags]
        self._process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, start_new_session=True)
        log.close()
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError, asyncpg.PostgresError, TimeoutError):
                self.sql("SELECT 1")
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"postgres did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop: SIGINT ends sessions in order, SIGQUIT is a crash that recovers at the next start."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=60)
            self._process = None

    def close(self) -> None:
        self._drops.shutdown(wait=True, cancel_futures=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://milepost@127.0.0.1:{self.port}/{database}"

    def sql(self, statement: str, database: str = "postgres") -> list[Any]:
        """Run one statement on a connection of its own, also from inside a running event loop."""

        async def run() -> list[Any]:
            conn = await asyncpg.connect(self.url(database), timeout=10)
            try:
                return list(await conn.fetch(statement))
            finally:
                await conn.close()

        return run_apart(run())

    def create_database(self, template: str | None = None) -> str:
        """A fresh database; return its name."""
        self._number += 1
        name = f"test_{os.getpid()}_{self._number}"
        self.sql(f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else ""))
        return name

    def drop_database(self, name: str) -> None:
        """Dropping waits for the disk, so it goes on beside the next test."""
        self._drops.submit(self.sql, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def run_apart(coroutine: Any) -> Any:
    """Run a coroutine to its end in a thread with an event loop of its own."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, coroutine).result()


def memory_folder() -> Path:
    """A folder in memory if there is one with room, else the usual temporary one.

    A killed process loses nothing in memory either; the tests kill processes, they do not cut the power.
    """
    memory = Path("/dev/shm")
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 * 1024**3:
        return memory
    return Path(tempfile.gettempdir())


@contextlib.contextmanager
def running_server(binaries: Path, parent: Path) -> Iterator[PostgresServer]:
    """A started server, removed at the end."""
    server = PostgresServer(binaries, parent)
    try:
        server.start()
        yield server
    finally:
        server.close()
