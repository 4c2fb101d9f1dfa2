"""Clients that lose their connection again and again, and go on where they were."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidMessage

from tests.api.readers import BEARER, Transcript, sse_events
from tests.support.proxy import Proxy

UNCOUNTED = ("snapshot", "status", "keepalive")


@dataclass
class Client:
    """Follows a Session through a proxy of its own; a seeded number of frames after the beginning it loses it.

    Half of the connections are left in order, the others are torn by the proxy, with whatever is on its way.
    """

    session: str
    proxy: Proxy
    seed: int
    transcript: Transcript = field(default_factory=Transcript)
    lost: dict[str, int] = field(default_factory=lambda: {"websocket": 0, "events": 0})

    async def follow(self) -> None:
        """Until it is cancelled."""
        chance = random.Random(self.seed)
        while True:
            transport = chance.choice(("websocket", "events"))
            frames = self._websocket() if transport == "websocket" else self._events()
            async with aclosing(frames):
                await self._one_connection(frames, chance)
            self.lost[transport] += 1

    async def _one_connection(self, frames: AsyncGenerator[str, None], chance: random.Random) -> None:
        left, torn = chance.randrange(1, 14), chance.random() < 0.5
        with contextlib.suppress(ConnectionClosed, InvalidMessage, httpx.HTTPError, OSError, EOFError):
            async for text in frames:
                frame = json.loads(text)
                self.transcript.apply(frame)
                left -= frame["type"] not in UNCOUNTED
                if left <= 0 and not torn:
                    return
                if left <= 0:
                    self.proxy.cut()
                    torn = False

    async def _websocket(self) -> AsyncGenerator[str, None]:
        query = httpx.QueryParams({"session": self.session, "after": self.transcript.cursor})
        url = f"ws://{self.proxy.address}/api/v1/ws?{query}"
        async with connect(url, additional_headers=BEARER, max_size=None, close_timeout=1) as connection:
            async for message in connection:
                yield str(message)

    async def _events(self) -> AsyncGenerator[str, None]:
        # Another `after` in the address, as a browser sends it again: the header wins.
        async with (
            httpx.AsyncClient(base_url=f"http://{self.proxy.address}", headers=BEARER, timeout=30) as client,
            aclosing(sse_events(client, self.session, self.transcript.cursor, after="0")) as events,
        ):
            async for _, _, data in events:
                if data and not data.startswith(":"):
                    yield data
