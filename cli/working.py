"""The execution side of a process: workers and leased loops, from when Temporal can be reached."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from milepost.bootstrap.checks import TemporalPart
from milepost.bootstrap.data_root import DataRoot
from milepost.bootstrap.temporal import TemporalConnection, embedded, expected_ui, lazy_check, temporal_connection
from milepost.config.loading import Config
from milepost.domain.errors import MilepostError, TemporalUnavailable
from milepost.observability.logging import get_logger

if TYPE_CHECKING:
    from workers.process import WorkerProcess

RETRY_FIRST_SECONDS = 0.5
RETRY_MAX_SECONDS = 15.0

Make = Callable[[TemporalConnection], "WorkerProcess"]
"""The worker process over an open connection."""

Say = Callable[[str], None]
"""Tells a person what happens."""

_log = get_logger(__name__)


@asynccontextmanager
async def working(
    config: Config, root: DataRoot, make: Make, say: Say, *, patient: bool
) -> AsyncIterator[TemporalPart]:
    """Run what `make` makes until the block ends.

    A `patient` process does not need the configured cluster to begin: it tries to reach it all the time, and works from
    then on. Until then turns are accepted and wait.

    Raises:
        TemporalUnavailable: not patient, or the embedded server does not start.
        SecretMissing, ConfigInvalid, StorageUnavailable.
    """
    async with contextlib.AsyncExitStack() as stack:
        try:
            temporal = await stack.enter_async_context(_started(config, root, make))
            address = temporal.address
            part = TemporalPart(address.ui, address.namespace, address.target, temporal.check)
        except TemporalUnavailable as error:
            if embedded(config) or not patient:
                raise
            say(f"{error.message} Turns are accepted, and wait until it does.")
            task = asyncio.create_task(_start_later(config, root, make, say), name="temporal-connect")
            stack.push_async_callback(_ended, task)
            section = config.settings.temporal
            part = TemporalPart(expected_ui(config), section.namespace, section.address, lazy_check(config))
        yield part


@asynccontextmanager
async def _started(config: Config, root: DataRoot, make: Make) -> AsyncIterator[TemporalConnection]:
    async with temporal_connection(config, root) as temporal:
        process = make(temporal)
        await process.start()
        try:
            yield temporal
        finally:
            await process.stop()


async def _start_later(config: Config, root: DataRoot, make: Make, say: Say) -> None:
    pause = RETRY_FIRST_SECONDS
    while True:
        await asyncio.sleep(pause)
        pause = min(2 * pause, RETRY_MAX_SECONDS)
        try:
            async with _started(config, root, make):
                say("Temporal answers. Turns are worked on.")
                await asyncio.Event().wait()
        except TemporalUnavailable:
            continue
        except MilepostError as error:
            _log.error("worker.not_started", error=error.code, detail=error.message)
        except Exception:
            # A process that serves and never works again must say why, and go on trying.
            _log.exception("worker.not_started")


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
