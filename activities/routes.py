"""The route of a model call, from what the ledger knows of its earlier tries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from activities.conversation import TurnContext
from milepost.domain.errors import MilepostError, ModelContextTooLong, ModelError
from milepost.domain.events import ModelCalled, ModelRetried
from milepost.domain.providers import Route
from milepost.engine.routes import Failure, delay_before, next_route
from milepost.ledger.codec import decode_event
from milepost.ports.ledger import Ledger, LedgerTx

MAX_TRIES_READ = 64
WORKER_LOST = "worker_lost"


@dataclass(frozen=True, slots=True)
class Routing:
    """The routes of one call and how its tries ended so far. `index` is the one to try, `first` the one begun with."""

    routes: tuple[Route, ...]
    first: int
    failures: tuple[Failure, ...]

    @property
    def index(self) -> int:
        found = next_route(len(self.routes), self.first, self.failures)
        return self.first if found is None else found

    @property
    def route(self) -> Route:
        return self.routes[self.index]

    def failed(self, error: MilepostError) -> Routing | None:
        """The routing after `error` on this route; None when there is nothing left to try."""
        after = error.retry_after if isinstance(error, ModelError) else None
        if not error.retryable and not (len(self.routes) > 1 and error.other_route_may_help):
            return None
        failures = (*self.failures, Failure(self.index, not error.retryable, after))
        left = next_route(len(self.routes), self.first, failures)
        return None if left is None else replace(self, failures=failures)

    @property
    def delay(self) -> float | None:
        """Seconds before `index` is tried; None leaves it to the retry policy."""
        return delay_before(self.index, self.failures)


async def routing_of(ledger: Ledger, context: TurnContext, session_id: str, effect_id: str) -> Routing:
    """What the next try of a call does.

    A call begins with the route that gave the agent's last answer of this turn: going back and forth would lose what a
    model wants back of its own reasoning, and its prompt cache.
    """
    started = context.started
    routes = started.routes
    answered = [event for event in context.events if isinstance(event, ModelCalled) and event.agent == started.agent]
    first = min(answered[-1].route, len(routes) - 1) if answered else 0
    failures = await ledger.read(lambda tx: _failures(tx, session_id, effect_id)) if len(routes) > 1 else ()
    return Routing(routes, first, failures)


def retried_key(effect_id: str, attempt: int) -> str:
    """Key of the event that ends a try which is made again."""
    return f"{effect_id}/retried/{attempt}"


async def refused_as_too_long(ledger: Ledger, session_id: str, effect_id: str) -> bool:
    """Whether a route that a call has left refused it as longer than its model takes."""
    return await ledger.read(
        lambda tx: any(event.error_code == ModelContextTooLong.code for event in _retries(tx, session_id, effect_id))
    )


def _failures(tx: LedgerTx, session_id: str, effect_id: str) -> tuple[Failure, ...]:
    # A lost worker says nothing about the route it was on.
    return tuple(
        Failure(event.route, event.final, event.retry_after)
        for event in _retries(tx, session_id, effect_id)
        if event.error_code != WORKER_LOST
    )


def _retries(tx: LedgerTx, session_id: str, effect_id: str) -> Iterator[ModelRetried]:
    effect = tx.effects.get(effect_id)
    last = 0 if effect is None else effect.attempt
    for attempt in range(max(1, last - MAX_TRIES_READ + 1), last + 1):
        stored = tx.events.find(session_id, retried_key(effect_id, attempt))
        event = None if stored is None else decode_event(stored.type, stored.version, stored.payload)
        if isinstance(event, ModelRetried):
            yield event
