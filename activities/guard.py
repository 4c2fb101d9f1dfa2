"""Running an effect's work under heartbeats, the turn's stop and Temporal's cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from temporalio import activity

from milepost.services.stops import StopSignal

T = TypeVar("T")

HEARTBEAT_SECONDS = 1.5


class Stopped(Exception):
    """The work was ended because the turn was asked to stop."""


async def _beat() -> None:
    while True:
        # The start itself counts as a beat, so a short call costs the server none.
        await asyncio.sleep(HEARTBEAT_SECONDS)
        activity.heartbeat()


@asynccontextmanager
async def heartbeats() -> AsyncIterator[None]:
    """Send heartbeats while the block runs; for work that a cancellation shall not cut short."""
    beat = asyncio.ensure_future(_beat())
    try:
        yield
    finally:
        beat.cancel()
        await asyncio.gather(beat, return_exceptions=True)


def cancel_requested() -> bool:
    """Whether the cancellation at hand is a person's (not a worker shutdown or a lost attempt)."""
    details = activity.cancellation_details()
    return details is not None and details.cancel_requested


async def guarded(
    work: Coroutine[Any, Any, T],
    stop_signal: StopSignal,
    on_stop: Callable[[], Awaitable[None]] | None = None,
) -> T:
    """Await `work`; end it at once when the turn is asked to stop.

    On a stop, or a person's cancellation in Temporal, `on_stop` runs (it may make `work` end by itself, as killing a
    command does; without it the work is cancelled), `work` is awaited, and its result is returned if it has one.

    Raises:
        Stopped: the work was cut short without a result.
        asyncio.CancelledError: the worker shuts down or the attempt is lost; nothing may be recorded.
    """
    task = asyncio.ensure_future(work)
    beat = asyncio.ensure_future(_beat())
    stop = asyncio.ensure_future(stop_signal.wait())
    try:
        try:
            await asyncio.wait({task, stop, beat}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not cancel_requested():
                raise
        if task.done():
            return task.result()
        for watcher in (stop, beat):
            if watcher.done() and not watcher.cancelled() and watcher.exception() is not None:
                watcher.result()
        return await asyncio.shield(asyncio.ensure_future(_end(task, on_stop)))
    finally:
        for leftover in (task, beat, stop):
            leftover.cancel()
        await asyncio.gather(task, beat, stop, return_exceptions=True)


async def _end(task: asyncio.Future[T], on_stop: Callable[[], Awaitable[None]] | None) -> T:
    if on_stop is None:
        task.cancel()
    else:
        await on_stop()
    try:
        return await task
    except asyncio.CancelledError:
        raise Stopped from None
