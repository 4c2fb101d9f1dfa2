"""Running a package's function off the event loop, with an end to waiting for it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable
from typing import Any

from milepost.domain.errors import OutcomeUnknown, ToolFailed

MAX_THREADS = 32
"""Functions in threads at a time. One that never returns keeps its place until the process ends."""


class Threads:
    """Threads that nobody has to wait for: a process ends although a function in one of them hangs."""

    def __init__(self, limit: int = MAX_THREADS) -> None:
        self._free = asyncio.Semaphore(limit)

    async def call(self, owner: str, function: Callable[[Any], Any], argument: Any, seconds: float) -> Any:
        """What the function returns, awaited if it is awaitable; raises what it raises. `owner` is for texts.

        A coroutine function runs on the loop. Any other one runs in a thread, which the end of `seconds` or
        a cancellation leaves running.

        Raises:
            ToolFailed: no thread was free in time; nothing was done.
            OutcomeUnknown: it did not return in time.
        """
        begun, task = False, asyncio.current_task()
        try:
            async with asyncio.timeout(seconds) as limit:
                if inspect.iscoroutinefunction(function):
                    begun = True
                    return await function(argument)
                await self._free.acquire()
                begun = True
                value = await self._in_thread(function, argument)
                return await value if inspect.isawaitable(value) else value
        except SystemExit as error:
            # Raised by a coroutine on the loop, it would end the worker.
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        except asyncio.CancelledError as error:
            if task is not None and task.cancelling():
                raise
            # Its own doing; passed on, it would look like a cancellation of the call.
            raise RuntimeError(f"{owner} cancelled itself.") from error
        except TimeoutError as error:
            if not limit.expired():
                raise
            if begun:
                raise OutcomeUnknown(f"{owner} did not return within {seconds:g} s.") from error
            raise ToolFailed(f"{owner} was not run: all {MAX_THREADS} threads are taken.") from error

    async def _in_thread(self, function: Callable[[Any], Any], argument: Any) -> Any:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            self._free.release()
            if done.cancelled():
                return
            if error is None:
                done.set_result(value)
            elif isinstance(error, Exception) and not isinstance(error, StopIteration):
                done.set_exception(error)
            else:
                # What ends a thread (SystemExit) must not end the worker.
                done.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))

        def run() -> None:
            value, failure = None, None
            try:
                value = function(argument)
            except BaseException as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, value, failure)

        try:
            threading.Thread(target=run, daemon=True, name="milepost-extension").start()
        except RuntimeError:
            self._free.release()
            raise
        return await done
