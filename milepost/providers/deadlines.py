"""The deadlines of one call."""

from __future__ import annotations

import asyncio

from milepost.domain.errors import ModelTimedOut
from milepost.providers.provider import EndpointConfig

TAIL_SECONDS = 10.0
"""How long to wait for usage after the finish reason; the answer is whole already."""


class CallClock:
    """When the first event, the end, and what follows the finish reason are due. `error` says what passed.

    The idle time between two pieces is the HTTP client's to watch: comments that keep a stream alive count there.
    """

    def __init__(self, config: EndpointConfig) -> None:
        self._name = config.name
        self._limits = config.timeouts
        self._began = asyncio.get_running_loop().time()
        self._total = self._began + config.timeouts.total
        self._due = self._total
        self._scope = asyncio.timeout_at(None)
        self.error = self._passed("total", "did not finish within", config.timeouts.total)

    def opening(self) -> asyncio.Timeout:
        """A scope for the wait for the first event."""
        first = self._began + self._limits.first_event
        if first < self._total:
            self.error = self._passed("first_event", "sent no event within", self._limits.first_event)
        return asyncio.timeout_at(min(first, self._total))

    def waiting(self) -> asyncio.Timeout:
        """A scope for the wait for the next delta."""
        self.error = self._passed("total", "did not finish within", self._limits.total)
        self._scope = asyncio.timeout_at(self._due)
        return self._scope

    def finishing(self) -> None:
        """The finish reason has come: what is left may take `TAIL_SECONDS`. Called inside a `waiting` scope."""
        self._due = min(self._total, asyncio.get_running_loop().time() + TAIL_SECONDS)
        self._scope.reschedule(self._due)

    def resuming(self) -> None:
        """More of the answer has come: the finish reason was not its end. Called inside a `waiting` scope."""
        self._due = self._total
        self._scope.reschedule(self._due)

    def _passed(self, field: str, text: str, seconds: float) -> ModelTimedOut:
        return ModelTimedOut(f"Provider '{self._name}' {text} {seconds:g} s.", field=f"timeouts.{field}")
