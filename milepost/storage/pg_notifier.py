"""Wake-ups between processes, over PostgreSQL LISTEN and NOTIFY."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import Iterator
from typing import Any, Final

import asyncpg

from milepost.storage.hub import Hub, HubSubscription
from milepost.storage.postgres import connect

CHANNEL: Final = "milepost"
MAX_BUFFERED: Final = 10_000
MAX_PAYLOAD_BYTES: Final = 7_900
"""PostgreSQL refuses payloads of 8,000 bytes and more."""
FIRST_PAUSE_SECONDS: Final = 0.1
LAST_PAUSE_SECONDS: Final = 5.0
FLUSH_SECONDS: Final = 1.0
IDLE_CHECK_SECONDS: Final = 15.0
_EVERYTHING: Final = "*"

_log = logging.getLogger(__name__)


class PgNotifier:
    """`ports.notifier.Notifier` across the processes that share a database.

    Local subscribers are woken at once through a hub; one background task tells the others, with topics that gather
    while it sends put together. While the connection is down, other processes are not told; after it is back every
    subscriber is woken, so a lost NOTIFY costs time only.
    """

    def __init__(self, dsn: str, hub: Hub | None = None) -> None:
        self._dsn = dsn
        self._hub = hub or Hub()
        self._origin = secrets.token_hex(8)
        self._buffer: set[str] = set()
        self._ready = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run(), name="ledger-notify")
        self._listening = asyncio.Event()
        self._sent = asyncio.Event()
        self._sent.set()

    async def listening(self, seconds: float) -> bool:
        """Wait until other processes can be heard; False after `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._listening.wait()
        return self._listening.is_set()

    def publish(self, topics: frozenset[str]) -> None:
        self._hub.publish(topics)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._enqueue, topics)

    def _enqueue(self, topics: frozenset[str]) -> None:
        self._buffer |= topics
        if len(self._buffer) > MAX_BUFFERED:
            self._buffer = {_EVERYTHING}
        self._sent.clear()
        self._ready.set()

    def subscribe(self, *topics: str) -> HubSubscription:
        return self._hub.subscribe(*topics)

    async def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                conn = await connect(self._dsn, application="milepost-notify")
                try:
                    conn.add_termination_listener(lambda _conn: self._ready.set())
                    await conn.add_listener(CHANNEL, self._heard)
                    self._listening.set()
                    self._hub.publish_all()
                    pause = FIRST_PAUSE_SECONDS
                    await self._send(conn)
                finally:
                    self._listening.clear()
                    conn.terminate()
            except Exception as error:
                _log.warning("wake-ups between processes are down (%s); trying again", type(error).__name__)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LAST_PAUSE_SECONDS)

    async def _send(self, conn: asyncpg.Connection[Any]) -> None:
        while True:
            try:
                async with asyncio.timeout(IDLE_CHECK_SECONDS):
                    await self._ready.wait()
            except TimeoutError:
                await conn.execute("SELECT 1")  # notices a connection that died in silence
                continue
            self._ready.clear()
            if conn.is_closed():
                raise ConnectionResetError
            topics, self._buffer = self._buffer, set()
            for payload in payloads(self._origin, topics):
                await conn.execute("SELECT pg_notify($1, $2)", CHANNEL, payload)
            if not self._buffer:
                self._sent.set()

    def _heard(self, _conn: Any, _pid: int, _channel: str, payload: object) -> None:
        try:
            origin, topics = json.loads(str(payload))
            if origin == self._origin:
                return  # local subscribers know already
            if _EVERYTHING in topics:
                self._hub.publish_all()
            else:
                self._hub.publish(frozenset(topics))
        except (ValueError, TypeError):
            _log.warning("a wake-up that is not understood was ignored")

    async def close(self) -> None:
        """Tell what is not told yet, if that is quick, then stop telling and listening."""
        await asyncio.sleep(0)  # what was published last is put into the buffer by the loop
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS if self._listening.is_set() else 0):
                await self._sent.wait()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


def payloads(origin: str, topics: set[str]) -> Iterator[str]:
    """Topics as NOTIFY payloads `[origin, [topic, ...]]`, each within PostgreSQL's limit."""
    batch: list[str] = []
    size = 64
    for topic in sorted(topics):
        length = len(json.dumps(topic)) + 2
        if batch and size + length > MAX_PAYLOAD_BYTES:
            yield json.dumps([origin, batch])
            batch, size = [], 64
        batch.append(topic)
        size += length
    if batch:
        yield json.dumps([origin, batch])
