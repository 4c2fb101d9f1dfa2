"""Wake-ups after commits. A wake-up carries no data: the tables are the data, so a lost one costs time, not truth."""

from __future__ import annotations

from typing import Protocol


class Subscription(Protocol):
    """Wakes when a subscribed topic was published since the last `wait`; wake-ups coalesce."""

    async def wait(self, seconds: float) -> bool:
        """True if something was published, False after `seconds` without."""

    def close(self) -> None: ...


class Notifier(Protocol):
    """Topics: a Session id (new events or deltas), `stop:{turn id}` (stop requested), `outbox` (new items),
    `memory` (new tasks).
    """

    def publish(self, topics: frozenset[str]) -> None:
        """Wake local subscribers now and other processes as soon as possible; never blocks, never raises."""

    def subscribe(self, *topics: str) -> Subscription: ...


OUTBOX_TOPIC = "outbox"
MEMORY_TOPIC = "memory"


def stop_topic(turn_id: str) -> str:
    return f"stop:{turn_id}"
