"""What a model call may use, before it is made: the estimate, the reservation, the window, the time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeVar

from milepost.domain.budgets import Excess
from milepost.domain.errors import BudgetTimeUp, ContextTooLarge
from milepost.domain.events import AgentStarted
from milepost.domain.prices import ModelPrices
from milepost.domain.usage import Usage
from milepost.engine import budgets
from milepost.engine.tokens import MARGIN, Item, request_items, text_tokens, total
from milepost.ports.ledger import Ledger
from milepost.ports.models import ModelRequest, TokenCounters
from milepost.services.budgeting import Ask

T = TypeVar("T")

ERROR_SHARE = 0.15
"""How far an estimate may be off before it counts: a request is refused only if it is too long all the same."""
LARGEST_NAMED = 3
MISCOUNTED = 1.5
"""Of an estimate: what a request may have at most, for a model of which nothing is learnt yet."""
MAX_ANSWER_TOKENS = 131_072
"""What an answer may have at most that nothing bounds, of a model whose window nobody knows."""
OFF_LOOP_CHARACTERS = 200_000


@dataclass(frozen=True, slots=True)
class Expected:
    """The estimate of one try: `items` with factor 1, `factor` of the model, `output` tokens reserved."""

    items: tuple[Item, ...]
    factor: float
    output: int
    bounded: bool

    @property
    def input(self) -> int:
        return total(self.items, self.factor)


async def expected(
    ledger: Ledger,
    counters: TokenCounters,
    started: AgentStarted,
    request: ModelRequest,
    factor: float | None = None,
) -> Expected:
    """Count a request by the model's vocabulary, or estimate it; no network. `factor` is the model's, if known."""
    if factor is None:
        learnt, _ = await ledger.read(lambda tx: tx.budgets.factor(request.provider, request.model))
    else:
        learnt = factor
    count = await counters.of(request.provider, request.model) or text_tokens
    arguments = (request.system_prompt, request.messages, request.tools, count)
    if _size(request) > OFF_LOOP_CHARACTERS:
        items = await asyncio.to_thread(request_items, *arguments)
    else:
        items = request_items(*arguments)
    limit = request.sampling.max_tokens
    return Expected(tuple(items), learnt, limit or started.budget.output_tokens, limit is not None)


def _size(request: ModelRequest) -> int:
    # A message without its own text (an answer) is short: its length is bounded by what a model writes at once.
    return sum(len(message.text.text) if message.kind != "assistant" else 0 for message in request.messages)


def ask_of(started: AgentStarted, request: ModelRequest, route: int, found: Expected, elapsed: float) -> Ask:
    """What a try asks of the budget. `elapsed` is seconds since the turn was accepted."""
    tokens = math.ceil(found.input * MARGIN)
    prices = started.prices_of(route)
    micros = None if prices is None else _micros(prices, tokens, found.output)
    most, longest = math.ceil(found.input * MISCOUNTED), _longest(found, started.window_of(route))
    dearest = Decimal(0) if prices is None or micros is None else _micros(prices, most, longest) - micros
    return Ask(
        budget=started.budget,
        agent=started.agent,
        tokens=tokens + found.output,
        micros=micros,
        excess=Excess(most - tokens + longest - found.output, max(dearest, Decimal(0))),
        provider=request.provider,
        model=request.model,
        estimate=sum(item.tokens for item in found.items),
        elapsed=elapsed,
    )


def _longest(found: Expected, window: int | None) -> int:
    """Tokens that the answer may have at most."""
    if found.bounded:
        return found.output
    return max(MAX_ANSWER_TOKENS if window is None else window - found.input, found.output)


def _micros(prices: ModelPrices, sent: int, answered: int) -> Decimal:
    """The cost if every token of the answer were of its dearer class."""
    base = prices.at(sent)
    cost = prices.cost(Usage(sent, 0, answered)).micros
    return cost + max(base.reasoning - base.output, Decimal(0)) * answered


def check_window(started: AgentStarted, route: int, found: Expected) -> None:
    """Refuse a request that cannot fit the model's context window.

    Raises:
        ContextTooLarge: with the window, what is asked and the largest parts.
    """
    window = started.window_of(route)
    reserved = found.output if found.bounded else 0
    if window is None or found.input * (1 - ERROR_SHARE) + reserved <= window:
        return
    named = largest_parts(found)
    answer = f" and {reserved:,} for the answer" if reserved else ""
    model = started.routes[route].model
    raise ContextTooLarge(
        f"The request does not fit the context window of {model} ({window:,} tokens): it has about {found.input:,}"
        f"{answer}. The largest parts: {named}.",
        fix="Shorten them, begin a new Session, rewind this one, or use a model with a larger window.",
    )


def largest_parts(found: Expected) -> str:
    """The largest parts of a request, with their tokens."""
    largest = sorted(found.items, key=lambda item: -item.tokens)[:LARGEST_NAMED]
    return ", ".join(f"{item.name} {math.ceil(item.tokens * found.factor):,}" for item in largest)


async def in_time(work: Coroutine[Any, Any, T], started: AgentStarted, elapsed: float) -> T:
    """Await a call within the time that its budget leaves. Raises BudgetTimeUp."""
    budget = started.budget
    left = [limit for limit in (budget.call.seconds, _left(budget.turn.seconds, elapsed)) if limit is not None]
    if not left or not budgets.aborts(budget):
        return await work
    timer = asyncio.timeout(min(left))
    try:
        async with timer:
            return await work
    except TimeoutError as error:
        if not timer.expired():
            raise
        raise BudgetTimeUp(
            f"The model call was ended: its budget had {min(left):.1f} s left.",
            fix=f"Raise the budget of the turn's request or agents.{started.agent}.budget (seconds).",
        ) from error


def _left(limit: float | None, elapsed: float) -> float | None:
    return None if limit is None else max(limit - elapsed, 0.0)
