"""Following a turn to its end through lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from cli.client import ApiClient
from cli.failures import ConnectionLost
from cli.routes import API, Json

MAX_ATTEMPTS = 8
BACKOFF_FIRST_SECONDS = 0.1
BACKOFF_MAX_SECONDS = 5.0
TERMINAL = frozenset({"turn.completed", "turn.failed", "turn.stopped", "turn.interrupted"})

OnFrame = Callable[[Json], None]


@dataclass(slots=True)
class Position:
    """Where a reader is; kept by the caller, so that it survives a change of the instance."""

    cursor: str = "0"


async def follow(client: ApiClient, session_id: str, turn_id: str, on_frame: OnFrame, position: Position) -> None:
    """Hand the turn's frames to `on_frame` until it has ended, reconnecting with the cursor.

    Frames of other turns, which an early cursor brings, are passed over.

    Raises:
        ConnectionLost: no connection after 8 tries in a row.
        RemoteFailure: the instance refuses.
    """
    failures = 0
    while True:
        try:
            async with aclosing(client.frames(session_id, position.cursor, turn_id)) as frames:
                async for frame in frames:
                    failures = 0
                    position.cursor = frame["cursor"] or position.cursor
                    if _belongs(frame, turn_id):
                        on_frame(frame)
                    if _ends(frame, turn_id):
                        return
            if await _ended(client, turn_id):
                return
        except ConnectionLost:
            failures += 1
            if failures >= MAX_ATTEMPTS:
                raise
        else:
            failures += 1
            if failures >= MAX_ATTEMPTS:
                raise ConnectionLost("The live stream ends again and again before the turn has ended.")
        await asyncio.sleep(min(BACKOFF_FIRST_SECONDS * 2**failures, BACKOFF_MAX_SECONDS))


def _belongs(frame: Json, turn_id: str) -> bool:
    data: dict[str, Any] = frame["data"]
    if frame["type"] in ("snapshot", "status"):
        active = data.get("active_turn")
        return active is None or bool(active["turn_id"] == turn_id)
    return bool(data.get("turn_id") == turn_id)


def _ends(frame: Json, turn_id: str) -> bool:
    data: dict[str, Any] = frame["data"]
    return frame["type"] == "event" and data["type"] in TERMINAL and data["turn_id"] == turn_id


async def _ended(client: ApiClient, turn_id: str) -> bool:
    turn = await client.get(f"{API}/turns/{turn_id}")
    return bool(turn["state"] != "running")
