"""Wake-ups inside one process."""

from __future__ import annotations

import asyncio
import contextlib
import threading


class HubSubscription:
    """`ports.notifier.Subscription`; belongs to the event loop that made it."""

    def __init__(self, hub: Hub, topics: tuple[str, ...]) -> None:
        self._hub = hub
        self._topics = topics
        self._loop = asyncio.get_running_loop()
        self._published = asyncio.Event()
        self._waking = False

    async def wait(self, seconds: float) -> bool:
        if not self._published.is_set():
            try:
                async with asyncio.timeout(seconds):
                    await self._published.wait()
            except TimeoutError:
                return False
        self._published.clear()
        return True

    def close(self) -> None:
        self._hub.forget(self, self._topics)

    def wake(self) -> None:
        """Thread-safe; wake-ups that the loop has not seen yet are one."""
        if self._waking:
            return
        self._waking = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        # Reset first: what is published from here on must schedule another wake-up.
        self._waking = False
        self._published.set()


class Hub:
    """`ports.notifier.Notifier` for one process. Publishing is thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscriptions: dict[str, set[HubSubscription]] = {}

    def publish(self, topics: frozenset[str]) -> None:
        with self._lock:
            found = {sub for topic in topics for sub in self._subscriptions.get(topic, ())}
        for subscription in found:
            subscription.wake()

    def publish_all(self) -> None:
        """Wake every subscriber, for when it is not known what was missed."""
        with self._lock:
            topics = frozenset(self._subscriptions)
        self.publish(topics)

    def subscribe(self, *topics: str) -> HubSubscription:
        subscription = HubSubscription(self, topics)
        with self._lock:
            for topic in topics:
                self._subscriptions.setdefault(topic, set()).add(subscription)
        return subscription

    def forget(self, subscription: HubSubscription, topics: tuple[str, ...]) -> None:
        """Remove a closed subscription."""
        with self._lock:
            for topic in topics:
                subscribers = self._subscriptions.get(topic)
                if subscribers is None:
                    continue
                subscribers.discard(subscription)
                if not subscribers:
                    del self._subscriptions[topic]

    async def close(self) -> None:
        """Nothing to release; the same call as on `PgNotifier`."""
