"""`find_idle_agents` and `consolidate_memory`: asking a model what of an idle agent's memory belongs in its blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from temporalio import activity

from activities.boundary import boundary, retry_error
from activities.charges import ask_of, check_window, expected, in_time
from activities.guard import heartbeats
from milepost.contracts.activities import (
    CONSOLIDATE,
    FIND_IDLE,
    ConsolidateParams,
    ConsolidateResult,
    FindIdleParams,
    FindIdleResult,
    IdleAgent,
)
from milepost.domain.agents import AgentConfig
from milepost.domain.budgets import Limits
from milepost.domain.consolidation import Consolidation, ConsolidationSettings
from milepost.domain.content import Content
from milepost.domain.errors import AgentIsStopped, MilepostError, ModelError, ModelFault, ModelIncomplete
from milepost.domain.events import AgentStarted
from milepost.domain.messages import ResponseFormat, Sampling, UserMessage
from milepost.domain.prices import RoutePrices, priced
from milepost.domain.usage import UNKNOWN_USAGE, Usage
from milepost.engine.consolidation import INSTRUCTIONS, SCHEMA, request_text
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.ports.models import ModelCompleted, ModelGateway, ModelRequest, TokenCounters
from milepost.ports.prices import Prices
from milepost.ports.system import Clock
from milepost.services.consolidating import Consolidator, Dispatched, Work
from milepost.services.consolidations import ConsolidationService
from milepost.services.memory_edits import MemoryEdits
from milepost.services.memory_stores import MemoryStores

ANSWER_TOKENS = 2000
STOP_POLL_SECONDS = 1.0


class ConsolidationActivities:
    """`models_queue` names the queue that model calls of this process go to."""

    def __init__(
        self,
        ledger: Ledger,
        consolidator: Consolidator,
        gateway: ModelGateway,
        prices: Prices,
        counters: TokenCounters,
        models_queue: Callable[[], str],
    ) -> None:
        self._ledger = ledger
        self._consolidator = consolidator
        self._gateway = gateway
        self._prices = prices
        self._counters = counters
        self._models_queue = models_queue

    @activity.defn(name=FIND_IDLE.name)
    async def find_idle_agents(self, params: FindIdleParams) -> FindIdleResult:
        """Agents that are idle and may have something new; none while consolidation is off."""
        with boundary():
            found = await self._consolidator.candidates()
            agents = tuple(IdleAgent(item.session_id, item.agent) for item in found)
            return FindIdleResult(agents, self._models_queue())

    @activity.defn(name=CONSOLIDATE.name)
    async def consolidate_memory(self, params: ConsolidateParams) -> ConsolidateResult:
        """Consolidate one agent's memory in a Session, once for a pass; looks again whether there is reason to."""
        with boundary():
            async with heartbeats():
                work = await self._consolidator.begin(params.session_id, params.agent, params.key)
                if work is None:
                    return ConsolidateResult()
                answer = await self._answer(work)
                if answer is None:
                    return ConsolidateResult(work.consolidation.consolidation_id, "failed")
                return _result(await self._consolidator.conclude(work, answer))

    async def _answer(self, work: Work) -> str | None:
        """The model's answer, recorded; None if there is none."""
        await self._prices.load()
        limits = await self._ledger.read(lambda tx: tx.budgets.limits(work.consolidation.session_id))
        started = self._started(work, limits)
        spec = self._consolidator.spec(work)
        request = ModelRequest(
            provider=started.provider,
            model=started.model,
            agent=started.agent,
            system_prompt=started.system_prompt,
            messages=(UserMessage(Content(request_text(work.blocks, work.facts))),),
            tools=(),
            sampling=started.sampling,
            call_number=1,
            attempt=1,
            idempotency_key=spec.idempotency_key,
        )
        found = await expected(self._ledger, self._counters, started, request)
        dispatched = await self._consolidator.dispatch(work, spec, ask_of(started, request, 0, found, 0.0))
        if dispatched is None:
            return None
        if dispatched.recorded:
            result = dispatched.effect.result
            return None if result is None else result.decode("utf-8", "surrogatepass")
        try:
            check_window(started, 0, found)
            request = replace(request, attempt=dispatched.effect.attempt)
            completed = await in_time(self._unless_stopped(self._ask(request), started.agent), started, 0.0)
        except MilepostError as error:
            await self._failed(work, dispatched, started, error)
            return None
        except Exception as error:
            fault = ModelFault(f"{type(error).__name__}: {error}")
            fault.__cause__ = error
            await self._failed(work, dispatched, started, fault)
            return None
        usage = priced(completed.usage, started.prices_of(0))
        await self._consolidator.answered(work, dispatched.effect, completed.message.text, usage)
        return completed.message.text

    async def _failed(self, work: Work, dispatched: Dispatched, started: AgentStarted, error: MilepostError) -> None:
        again = error.retryable and activity.info().attempt < CONSOLIDATE.retry.maximum_attempts
        may_have_cost = isinstance(error, AgentIsStopped) or (isinstance(error, ModelError) and error.may_have_cost)
        usage = priced(UNKNOWN_USAGE if may_have_cost else Usage(), started.prices_of(0))
        await self._consolidator.failed(work, dispatched.effect, error, usage, final=not again)
        if again:
            raise retry_error(error, error.retry_after if isinstance(error, ModelError) else None) from error

    async def _ask(self, request: ModelRequest) -> ModelCompleted:
        completed: ModelCompleted | None = None
        async with aclosing(self._gateway.stream(request)) as stream:
            async for item in stream:
                if isinstance(item, ModelCompleted):
                    completed = item
        if completed is None:
            raise ModelIncomplete("The provider's stream ended without an answer.")
        return completed

    async def _unless_stopped(self, work: Coroutine[Any, Any, ModelCompleted], agent: str) -> ModelCompleted:
        """Await the call; close its connection when a person stops the agent. Raises AgentIsStopped."""
        call = asyncio.ensure_future(work)
        watch = asyncio.ensure_future(self._stopped(agent))
        try:
            await asyncio.wait({call, watch}, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return call.result()
            raise AgentIsStopped(f"The agent '{agent}' was stopped.")
        finally:
            for task in (call, watch):
                task.cancel()
            await asyncio.gather(call, watch, return_exceptions=True)

    async def _stopped(self, agent: str) -> None:
        def body(tx: LedgerTx) -> bool:
            return tx.lives.stopped(agent) is not None

        # A cluster of processes has no event to wait for: the row is the word.
        while True:
            if await self._ledger.read(body):
                return
            await asyncio.sleep(STOP_POLL_SECONDS)

    def _started(self, work: Work, limits: Limits) -> AgentStarted:
        """The agent as this call needs it: its route, its prices, and its budget without the limits of turns."""
        config, of = work.config, work.consolidation
        budget = replace(config.budget, turn=Limits(), session=config.budget.session.tightened(limits))
        prices, window = (
            self._prices.of(config.provider, config.model),
            self._prices.window(config.provider, config.model),
        )
        return AgentStarted(
            turn_id=of.turn_id,
            agent=of.agent,
            provider=config.provider,
            model=config.model,
            system_prompt=INSTRUCTIONS,
            tools=(),
            sampling=Sampling(max_tokens=ANSWER_TOKENS, response_format=ResponseFormat(SCHEMA, "promotions")),
            max_rounds=1,
            prices=(RoutePrices(provider=config.provider, model=config.model, prices=prices, window=window),),
            budget=budget,
        )


def _result(done: Consolidation) -> ConsolidateResult:
    promoted = sum(1 for item in done.promotions if item.version is not None)
    return ConsolidateResult(done.consolidation_id, done.state.value, promoted)


@dataclass(frozen=True, slots=True)
class ConsolidationParts:
    """What consolidation needs of the process."""

    ledger: Ledger
    clock: Clock
    agents: Mapping[str, AgentConfig]
    gateway: ModelGateway
    prices: Prices
    counters: TokenCounters
    settings: ConsolidationSettings
    worker: str


def consolidation_activities(
    parts: ConsolidationParts, stores: MemoryStores, edits: MemoryEdits, models_queue: Callable[[], str]
) -> ConsolidationActivities:
    """Build them over the stores of memory."""
    reviews = ConsolidationService(parts.ledger, parts.clock, edits, parts.agents)
    consolidator = Consolidator(
        parts.ledger,
        parts.clock,
        parts.agents,
        stores.block_service(parts.ledger),
        stores.semantic,
        reviews,
        parts.settings,
        parts.worker,
    )
    return ConsolidationActivities(
        parts.ledger, consolidator, parts.gateway, parts.prices, parts.counters, models_queue
    )
