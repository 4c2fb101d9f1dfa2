"""A worker in a process of its own that can be killed: the product's parts, with a model endpoint and no sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NoReturn

from milepost.domain.agents import AgentConfig
from milepost.domain.providers import OpenAICompatibleProvider
from milepost.providers.gateway import Gateway
from milepost.storage import FileBlobStore, open_ledger, open_notifier
from milepost.temporal.client import TemporalAddress
from milepost.temporal.exit import clean_exit
from tests.support.temporal import build_stack

AGENTS = {"default": AgentConfig("default", "fake", "fake-small", tools=())}
_PR_SET_PDEATHSIG = 1
_END_SECONDS = 30.0


@dataclass(frozen=True)
class Orders:
    """What a worker works on."""

    ledger_url: str
    blobs: str
    models: str
    temporal: TemporalAddress
    log: str


class NoSecrets:
    """Nothing here needs a secret."""

    def resolve(self, reference: str) -> str:
        raise AssertionError(reference)


def open_gateway(models: str) -> Gateway:
    """The model endpoint behind the product's gateway."""
    return Gateway({"fake": OpenAICompatibleProvider("fake", models, default_model="fake-small")}, NoSecrets())


def run(orders: Orders) -> NoReturn:
    """Be the process."""
    if sys.platform.startswith("linux"):
        # A test run that is killed leaves no workers behind.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    log = os.open(orders.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    asyncio.run(_serve(orders))
    clean_exit(0)


async def _serve(orders: Orders) -> None:
    async with AsyncExitStack() as stack:
        notifier = await open_notifier(orders.ledger_url)
        stack.push_async_callback(notifier.close)
        ledger = await open_ledger(orders.ledger_url, notifier)
        stack.push_async_callback(ledger.close)
        gateway = open_gateway(orders.models)
        stack.push_async_callback(gateway.close)
        blobs = FileBlobStore(Path(orders.blobs))
        built = await build_stack(ledger, notifier, blobs, gateway, None, orders.temporal, AGENTS)
        async with built.worker():
            await asyncio.Event().wait()


_FORK_SERVER = multiprocessing.get_context("forkserver")
_FORK_SERVER.set_forkserver_preload([__name__])


@asynccontextmanager
async def running(orders: Orders) -> AsyncIterator[None]:
    """A worker that is killed at the end of the block."""
    process: BaseProcess = _FORK_SERVER.Process(target=run, args=(orders,), daemon=True)
    await asyncio.to_thread(process.start)
    try:
        yield
        assert process.exitcode is None, f"the worker ended by itself; see {orders.log}"
    finally:
        process.kill()
        with contextlib.suppress(Exception):
            await asyncio.to_thread(process.join, _END_SECONDS)
