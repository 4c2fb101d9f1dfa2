"""A worker process: the product's own parts, some of them doomed.

The tests start it from a fork server that has imported this module already (`processes.py`): importing costs far more
than all the work of such a worker.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from unittest import mock

from milepost.bootstrap.system import SystemClock, worker_name
from milepost.domain.agents import AgentConfig
from milepost.domain.providers import ScriptedProvider
from milepost.ports.ledger import Ledger
from milepost.ports.models import ModelGateway
from milepost.ports.notifier import Notifier
from milepost.ports.sandbox import SandboxProvider, SandboxSpec
from milepost.providers.gateway import Gateway
from milepost.sandboxes.podman.provider import PodmanProvider
from milepost.services.contents import Contents
from milepost.services.workbench import Workbench
from milepost.storage import FileBlobStore, open_ledger, open_notifier
from milepost.temporal.client import TemporalAddress, connect
from milepost.temporal.exit import clean_exit
from milepost.temporal.starter import TemporalStarter
from milepost.tools import definitions
from tests.chaos.points import DoomedGateway, DoomedLedger, DoomedSandboxes, Point, When
from workers.process import ExecutionParts, WorkerProcess, embedded_queues, host_name

AGENTS = {"default": AgentConfig("default", "scripted", "demo")}
PROVIDERS = {"scripted": ScriptedProvider("scripted")}
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Orders:
    """What a worker works on, where it dies (nowhere without a point), and what it does not keep.

    Without `fencing` a call never finds what an earlier attempt left of it: its effect gets a new id each time.
    """

    ledger_url: str
    blobs: str
    podman_root: str
    temporal: str
    namespace: str
    log: str
    point: Point | None = None
    fencing: bool = True


class NoSecrets:
    """Nothing here needs a secret."""

    def resolve(self, reference: str) -> str:
        raise AssertionError(reference)


def open_gateway() -> Gateway:
    """The scripted provider behind the product's gateway."""
    return Gateway(PROVIDERS, NoSecrets())


def run(orders: Orders) -> NoReturn:
    """Be the process of a worker."""
    _die_with_parent()
    log = os.open(orders.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    if not orders.fencing:
        mock.patch("activities.tools.effect_id", lambda *_: secrets.token_hex(32)).start()
    try:
        asyncio.run(_serve(orders))
    except BaseException as error:
        print(f"the worker failed: {error!r}", file=sys.stderr)
        clean_exit(1)
    clean_exit(0)


def _die_with_parent() -> None:
    """A test run that is killed leaves no workers behind."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


async def _serve(orders: Orders) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with AsyncExitStack() as stack:
        notifier = await open_notifier(orders.ledger_url)
        stack.push_async_callback(notifier.close)
        ledger = await open_ledger(orders.ledger_url, notifier)
        stack.push_async_callback(ledger.close)
        gateway = open_gateway()
        stack.push_async_callback(gateway.close)
        sandboxes = PodmanProvider(Path(orders.podman_root), ledger.instance_id)
        stack.push_async_callback(sandboxes.close)
        client = await connect(TemporalAddress(orders.temporal, orders.namespace))
        parts = _parts(orders, ledger, notifier, gateway, sandboxes)
        process = WorkerProcess(parts, client, TemporalStarter(client, ledger.instance_id), embedded_queues())
        await process.start()
        stack.push_async_callback(process.stop)
        await stop.wait()


def _parts(
    orders: Orders, ledger: Ledger, notifier: Notifier, gateway: ModelGateway, sandboxes: SandboxProvider
) -> ExecutionParts:
    if orders.point is not None:
        doomed = DoomedLedger(ledger, orders.point)
        ledger = doomed
        if orders.point.when is When.INSIDE and orders.point.step == "model":
            gateway = DoomedGateway(gateway, orders.point.position, doomed.streamed)
        if orders.point.when is When.INSIDE and orders.point.step == "tool":
            sandboxes = DoomedSandboxes(sandboxes, orders.point)
    instance = ledger.instance_id
    return ExecutionParts(
        ledger=ledger,
        notifier=notifier,
        clock=SystemClock(),
        contents=Contents(FileBlobStore(Path(orders.blobs))),
        agents=AGENTS,
        gateway=gateway,
        workbench=Workbench(
            sandboxes, lambda session: SandboxSpec(session.session_id, instance, session.workspace.path)
        ),
        tools=definitions,
        worker=worker_name(),
        host=host_name(),
    )
