"""Following a turn to its end through lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from cli.client import ApiClient
from cli.failures import ConnectionLost, RemoteFailure
from cli.routes import API, Json
from milepost.domain.errors import TextNotFound

MAX_ATTEMPTS = 8
BACKOFF_FIRST_SECONDS = 0.1
BACKOFF_MAX_SECONDS = 5.0
PART = 1024 * 1024
"""Characters that are fetched at once."""

TERMINAL = frozenset({"turn.completed", "turn.failed", "turn.stopped", "turn.interrupted"})

OnFrame = Callable[[Json], None]


@dataclass(slots=True)
class Position:
    """Where a reader is; kept by the caller, so that it survives a change of the instance."""

    cursor: str = "0"


async def follow(client: ApiClient, session_id: str, turn_id: str, on_frame: OnFrame, position: Position) -> None:
    """Hand the turn's frames to `on_frame` until it has ended, reconnecting with the cursor.

    Frames of other turns, which an early cursor brings, are passed over. What a gap left out is fetched, and follows it
    as deltas.

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
                    # Fetched before the cursor moves on: if that breaks off, the instance sends the text itself.
                    left_out = await _left_out(client, frame) if frame["type"] == "gap" else []
                    position.cursor = frame["cursor"] or position.cursor
                    if _belongs(frame, turn_id):
                        for each in (frame, *left_out):
                            on_frame(each)
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


async def _left_out(client: ApiClient, gap: Json) -> list[Json]:
    """The text of a gap as deltas, but what is gone: a later attempt or the recorded answer replaces that."""
    deltas: list[Json] = []
    for item in gap["data"]["ranges"]:
        for start in range(item["start"], item["end"], PART):
            end = min(start + PART, item["end"])
            try:
                text = await client.text(
                    f"{API}/effects/{item['effect_id']}/text",
                    attempt=item["attempt"],
                    channel=item["channel"],
                    start=start,
                    end=end,
                )
            except RemoteFailure as error:
                if error.remote_code != TextNotFound.code:
                    raise
                break
            data = {name: item[name] for name in ("agent", "effect_id", "attempt", "channel")}
            data |= {"turn_id": gap["data"]["turn_id"], "offset": start, "text": text}
            deltas.append({"type": "delta", "cursor": gap["cursor"], "data": data})
    return deltas


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
