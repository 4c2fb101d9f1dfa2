"""What can be called with the configured keys: the models each provider lists, and whether each route works."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace

from milepost.domain.agents import AgentConfig
from milepost.domain.content import Content
from milepost.domain.errors import MilepostError
from milepost.domain.messages import Sampling, UserMessage
from milepost.domain.providers import ProviderConfig, RecordedProvider, Route, ScriptedProvider
from milepost.domain.tools import ToolDefinition
from milepost.domain.usage import UNKNOWN_USAGE, Usage
from milepost.ports.models import ModelCompleted, ModelGateway, ModelInfo, ModelRequest
from milepost.ports.system import IdSource

LIST_SECONDS = 15.0
CALL_SECONDS = 45.0
MAX_CALL_TOKENS = 1_024
"""Of the answer to a call that tries a route; what is sent has about 200."""

TRIAL_TOOL = ToolDefinition(
    "report_status",
    "Report whether you are ready.",
    {"type": "object", "properties": {"status": {"type": "string", "enum": ["ready"]}}, "required": ["status"]},
)
TRIAL_PROMPT = "This is a connection test. Do exactly what you are asked, briefly."
TRIAL_REQUEST = "Call the tool report_status with the status 'ready', and nothing else."


@dataclass(frozen=True, slots=True)
class ProviderModels:
    """What one provider lists. Without `ok`, `detail` and `fix` say why it could not be asked."""

    provider: str
    type: str
    default_model: str | None
    ok: bool
    detail: str
    fix: str | None = None
    models: tuple[ModelInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class Trial:
    """A real call of a route: how long the answer took in seconds, what it used, and whether a tool was called."""

    seconds: float
    usage: Usage
    called_tool: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RouteCheck:
    """Whether a route works. `used_by` says who uses it; `fix` is the exact thing to do."""

    provider: str
    model: str
    used_by: tuple[str, ...]
    ok: bool
    detail: str
    fix: str | None = None
    trial: Trial | None = None


class ModelService:
    """Asks providers at the same time, each with a time limit; one that fails does not hold up the others."""

    def __init__(
        self,
        gateway: ModelGateway,
        providers: Mapping[str, ProviderConfig],
        agents: Mapping[str, AgentConfig],
        ids: IdSource,
    ) -> None:
        self._gateway = gateway
        self._providers = providers
        self._agents = agents
        self._ids = ids

    async def listing(self, provider: str | None = None) -> list[ProviderModels]:
        """The models of one provider or of all. Raises ProviderUnknown."""
        names = [self._gateway.known(provider)] if provider is not None else sorted(self._providers)
        return list(await asyncio.gather(*(self._listed(name) for name in names)))

    async def check(self, provider: str | None = None, *, call: bool = False) -> list[RouteCheck]:
        """Every route that an agent uses, or those of one provider; with `call`, by a real call each.

        A call sends about 200 tokens and asks for at most `MAX_CALL_TOKENS`. Raises ProviderUnknown.
        """
        wanted = None if provider is None else self._gateway.known(provider)
        used = {route: users for route, users in self._routes().items() if wanted in (None, route.provider)}
        if wanted is not None and not used:
            used = {Route(wanted, self._providers[wanted].default_model or ""): ()}
        return list(await asyncio.gather(*(self._checked(route, users, call) for route, users in used.items())))

    def _routes(self) -> dict[Route, tuple[str, ...]]:
        found: dict[Route, tuple[str, ...]] = {}
        for agent in self._agents.values():
            own = Route(agent.provider, agent.model)
            found[own] = (*found.get(own, ()), f"agent {agent.agent_id}")
            for route in agent.fallbacks:
                found[route] = (*found.get(route, ()), f"fallback of agent {agent.agent_id}")
        return found

    async def _listed(self, name: str) -> ProviderModels:
        config = self._providers[name]
        shape = ProviderModels(name, config.type, config.default_model, ok=True, detail="")
        try:
            async with asyncio.timeout(LIST_SECONDS):
                models = await self._gateway.models(name)
        except MilepostError as error:
            return replace(shape, ok=False, detail=error.message, fix=error.fix)
        except TimeoutError:
            return replace(shape, ok=False, detail=f"No answer within {LIST_SECONDS:.0f} s.")
        if models is None:
            offline = isinstance(config, ScriptedProvider | RecordedProvider)
            said = "Calls no model." if offline else "Does not list its models; any name can be used."
            return replace(shape, detail=said)
        return replace(shape, detail=_count(len(models)), models=tuple(models))

    async def _checked(self, route: Route, users: tuple[str, ...], call: bool) -> RouteCheck:
        shape = RouteCheck(route.provider, route.model, users, ok=False, detail="")
        try:
            async with asyncio.timeout(LIST_SECONDS):
                self._gateway.validate(route.provider, route.model)
                health = await self._gateway.check(route.provider, route.model)
        except MilepostError as error:
            return replace(shape, detail=error.message, fix=error.fix)
        except TimeoutError:
            return replace(shape, detail=f"No answer within {LIST_SECONDS:.0f} s.")
        shape = replace(shape, ok=health.ok, detail=health.detail, fix=health.fix)
        return await self._tried(shape) if call and health.ok else shape

    async def _tried(self, shape: RouteCheck) -> RouteCheck:
        began = time.monotonic()
        try:
            async with asyncio.timeout(CALL_SECONDS):
                answer = await self._call(shape)
        except MilepostError as error:
            return replace(shape, ok=False, detail=f"A call failed: {error.message}", fix=error.fix)
        except TimeoutError:
            return replace(shape, ok=False, detail=f"A call had no answer within {CALL_SECONDS:.0f} s.")
        usage = UNKNOWN_USAGE if answer is None else answer.usage
        called = answer is not None and any(part.tool == TRIAL_TOOL.name for part in answer.message.calls)
        notes = () if answer is None else answer.diagnostics
        trial = Trial(time.monotonic() - began, usage, called, notes)
        tools = "and calls tools" if called else "but called no tool when asked to; agents with tools may not work"
        return replace(shape, detail=f"Answers in {trial.seconds:.1f} s {tools}.", trial=trial)

    async def _call(self, shape: RouteCheck) -> ModelCompleted | None:
        request = ModelRequest(
            provider=shape.provider,
            model=shape.model,
            agent="check",
            system_prompt=TRIAL_PROMPT,
            messages=(UserMessage(Content(TRIAL_REQUEST)),),
            tools=(TRIAL_TOOL,),
            sampling=Sampling(max_tokens=MAX_CALL_TOKENS),
            call_number=1,
            attempt=1,
            idempotency_key=self._ids.new("check"),
        )
        answer: ModelCompleted | None = None
        async with aclosing(self._gateway.stream(request)) as items:
            async for item in items:
                answer = item if isinstance(item, ModelCompleted) else answer
        return answer


def _count(models: int) -> str:
    return f"{models or 'No'} {'model' if models < 2 else 'models'} listed."
