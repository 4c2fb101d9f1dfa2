"""From the configuration's sections to the domain's values, with the checks that need more than one section."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from milepost.config import embeddings, longterm, teams
from milepost.config.budgets import BudgetSection
from milepost.config.document import Fault
from milepost.config.hooks import HttpHookSection
from milepost.config.memory import block_specs, memory_settings
from milepost.config.models import (
    DEFAULT_AGENT,
    SCRIPTED,
    AgentSection,
    ResponseFormatSection,
    Settings,
    TemporalSection,
)
from milepost.config.prices import TokenPricesSection
from milepost.config.problems import nearest
from milepost.config.providers import (
    DEMO_MODEL,
    HttpSection,
    RecordedSection,
    RouteSection,
)
from milepost.config.references import is_reference
from milepost.config.tools import HttpToolSection, effect_class
from milepost.domain.agents import AgentConfig
from milepost.domain.budgets import Budget, Limits, limits_of
from milepost.domain.compaction import ContextPolicy
from milepost.domain.effects import EffectClass
from milepost.domain.embeddings import BUILTIN_EMBEDDERS
from milepost.domain.extensions import HookConfig, HttpHook, HttpPeer, HttpTool, PythonHook, PythonTool, ToolConfig
from milepost.domain.hooks import HookRule, HookWhen
from milepost.domain.longterm import LONG_TERM_TOOLS
from milepost.domain.memory import BlockSpec
from milepost.domain.messages import ResponseFormat, Sampling
from milepost.domain.prices import PriceList, PriceRule, PriceTier, TokenPrices
from milepost.domain.providers import (
    Route,
)
from milepost.domain.skills import SKILL_TOOL
from milepost.domain.teams import AgentFailure, AgentRole
from milepost.domain.tools import ANY_TOOL, BUILTIN_TOOL_POLICIES, Approval, ToolDefinition, ToolPolicy


def check(settings: Settings) -> Iterator[Fault]:
    """Faults that no section can see alone."""
    providers = {SCRIPTED, *settings.providers}
    for name, agent in settings.agents.items():
        if agent.provider not in providers:
            message = f"names a provider '{agent.provider}' that is not configured."
            yield ("agents", name, "provider"), message, nearest(agent.provider, sorted(providers))
        elif agent.model is None and _default_model(settings, agent.provider) is None:
            message = f"has no model, and the provider '{agent.provider}' has no default one."
            yield ("agents", name), message, f"Set agents.{name}.model or providers.{agent.provider}.model."
    yield from _check_fallbacks(settings, sorted(providers))
    for name, provider in settings.providers.items():
        if isinstance(provider, RecordedSection) and provider.source is not None and provider.source not in providers:
            message = f"names a provider '{provider.source}' that is not configured."
            yield ("providers", name, "source"), message, nearest(provider.source, sorted(providers))
    yield from _check_default_agent(settings)
    yield from teams.check(settings.agents)
    yield from _check_tools(settings)
    yield from _check_hooks(settings)
    yield from _check_shared_blocks(settings)
    yield from embeddings.check(settings.embeddings, settings.providers)
    yield from longterm.check(settings.long_term_memory, [*BUILTIN_EMBEDDERS, *settings.embeddings.embedders])
    encryption = settings.temporal.encryption
    if encryption is not None and encryption.current not in encryption.keys:
        message = f"names a key '{encryption.current}' that is not among the keys."
        yield ("temporal", "encryption", "current"), message, nearest(encryption.current, sorted(encryption.keys))
    if not settings.temporal.address:
        for key in ("api_key", "namespace", "tls"):
            if getattr(settings.temporal, key) != TemporalSection.model_fields[key].default:
                yield ("temporal", key), "is of no use without 'temporal.address'.", "Set it, or remove this key."


def _check_fallbacks(settings: Settings, known: list[str]) -> Iterator[Fault]:
    places = [(("agents", name, "fallbacks"), agent.fallbacks or ()) for name, agent in settings.agents.items()]
    places += [
        (("providers", name, "fallbacks"), provider.fallbacks)
        for name, provider in settings.providers.items()
        if isinstance(provider, HttpSection)
    ]
    for path, routes in places:
        for index, route in enumerate(routes):
            if route.provider not in known:
                message = f"names a provider '{route.provider}' that is not configured."
                yield (*path, index, "provider"), message, nearest(route.provider, known)
            elif route.model is None and _default_model(settings, route.provider) is None:
                message = f"has no model, and the provider '{route.provider}' has no default one."
                yield (*path, index), message, f"Set its model, or providers.{route.provider}.model."


def _check_tools(settings: Settings) -> Iterator[Fault]:
    """Names of tools: each is built in or configured, and none is both."""
    built_in = [*BUILTIN_TOOL_POLICIES, *LONG_TERM_TOOLS]
    known = [*built_in, *settings.tools]
    for name in settings.tools:
        if name in built_in:
            yield ("tools", name), "has the name of a built-in tool.", "Give it another name."
    for agent_id, agent in settings.agents.items():
        for index, tool in enumerate(agent.tools):
            if tool not in known:
                message = f"names a tool '{tool}' that is neither built in nor configured under 'tools'."
                yield ("agents", agent_id, "tools", index), message, nearest(tool, known)
        for tool in agent.approvals:
            if tool not in (*known, ANY_TOOL):
                message = "is neither a built-in tool nor one configured under 'tools'."
                yield ("agents", agent_id, "approvals", tool), message, nearest(tool, [*known, ANY_TOOL])


def check_skills(settings: Settings, known: Iterable[str]) -> Iterator[Fault]:
    """Skills of agents that there are not, and tools with a skill's name."""
    ids = sorted(known)
    for agent_id, agent in settings.agents.items():
        for index, skill in enumerate(agent.skills):
            if skill not in ids:
                message = f"names a skill '{skill}' that is not there."
                yield ("agents", agent_id, "skills", index), message, nearest(skill, ids)
    for name in settings.tools:
        if name.startswith(SKILL_TOOL):
            yield ("tools", name), f"begins with '{SKILL_TOOL}', as the tools of skills do.", "Give it another name."


def _check_hooks(settings: Settings) -> Iterator[Fault]:
    tools = [*BUILTIN_TOOL_POLICIES, *LONG_TERM_TOOLS, *settings.tools]
    agents = list(settings.agents) or [DEFAULT_AGENT]
    for name, hook in settings.hooks.items():
        for key, given, known in (("tools", hook.tools, tools), ("agents", hook.agents, agents)):
            for index, word in enumerate(given or ()):
                if word not in known:
                    message = f"names '{word}', which is none of the {key}."
                    yield ("hooks", name, key, index), message, nearest(word, known)
        if hook.keep_original and hook.when is HookWhen.BEFORE:
            yield ("hooks", name, "keep_original"), "is for hooks with 'when: after'.", "Remove it."


def _check_shared_blocks(settings: Settings) -> Iterator[Fault]:
    """A block that several agents share is one: it has one limit and one value to begin with."""
    first: dict[str, tuple[str, BlockSpec]] = {}
    for name, agent in settings.agents.items():
        for spec in block_specs(agent.memory) if agent.memory.enabled else ():
            if not spec.shared:
                continue
            other, known = first.setdefault(spec.label, (name, spec))
            for key in ("limit", "value"):
                if getattr(known, key) != getattr(spec, key):
                    message = f"differs from that of the agent '{other}', which shares the block."
                    yield ("agents", name, "memory", "blocks", spec.label, key), message, "Write the same in both."


def _check_default_agent(settings: Settings) -> Iterator[Fault]:
    agents = list(settings.agents) or [DEFAULT_AGENT]
    if settings.default_agent is not None:
        if settings.default_agent not in agents:
            message = f"names an agent '{settings.default_agent}' that is not configured."
            yield ("default_agent",), message, nearest(settings.default_agent, agents)
    elif len(agents) > 1 and DEFAULT_AGENT not in agents:
        yield (
            ("agents",),
            "has several agents and none is the default.",
            f"Set default_agent: one of {', '.join(agents)}.",
        )


def _default_model(settings: Settings, provider: str) -> str | None:
    section = settings.providers.get(provider)
    return DEMO_MODEL if section is None and provider == SCRIPTED else section.model if section else None


def default_agent(settings: Settings) -> str:
    """Agent of Sessions that name none."""
    if settings.default_agent is not None:
        return settings.default_agent
    agents = list(settings.agents)
    return agents[0] if len(agents) == 1 else DEFAULT_AGENT


def agents(settings: Settings) -> dict[str, AgentConfig]:
    """All agents; without any there is `default` on the scripted provider."""
    sections = settings.agents or {DEFAULT_AGENT: AgentSection()}
    return {name: _agent(settings, name, section) for name, section in sections.items()}


def _agent(settings: Settings, name: str, section: AgentSection) -> AgentConfig:
    sampling = section.sampling
    return AgentConfig(
        agent_id=name,
        provider=section.provider,
        model=section.model or _default_model(settings, section.provider) or "",
        system_prompt=section.system_prompt,
        tools=tuple(section.tools),
        sampling=Sampling(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            reasoning_effort=sampling.reasoning_effort,
            stop=sampling.stop,
            response_format=_response_format(sampling.response_format),
        ),
        max_rounds=section.max_rounds,
        approvals={tool: Approval(choice) for tool, choice in section.approvals.items()},
        approval_seconds=section.approval_seconds,
        hooks=tuple(
            hook.rule for key, hook in hooks(settings).items() if name in (settings.hooks[key].agents or (name,))
        ),
        fallbacks=_fallbacks(settings, section),
        budget=_budget(section.budget),
        memory=memory_settings(section.memory),
        skills=tuple(section.skills),
        context=ContextPolicy(section.context.compact, section.context.threshold, section.context.window),
        long_term=longterm.agent_long_term(name, section.long_term_memory),
        role=AgentRole(section.role),
        workers=section.workers,
        depends_on=section.depends_on,
        on_failure=AgentFailure(section.on_failure),
    )


def _limits(amounts: Mapping[Any, Decimal]) -> Limits:
    return limits_of({str(name): amount for name, amount in amounts.items()})


def _budget(section: BudgetSection) -> Budget:
    return Budget(
        call=_limits(section.call),
        turn=_limits(section.turn),
        session=_limits(section.session),
        agent=_limits(section.agent),
        agent_window=section.agent_window,
        overflow=section.overflow,
        alert_percent=section.alert_percent,
        output_tokens=section.output_tokens,
    )


def _fallbacks(settings: Settings, section: AgentSection) -> tuple[Route, ...]:
    routes = section.fallbacks
    if routes is None:
        provider = settings.providers.get(section.provider)
        routes = provider.fallbacks if isinstance(provider, HttpSection) else ()
    return _routes(settings, routes)


def _routes(settings: Settings, routes: Iterable[RouteSection]) -> tuple[Route, ...]:
    return tuple(
        Route(route.provider, route.model or _default_model(settings, route.provider) or "") for route in routes
    )


def _response_format(section: ResponseFormatSection | None) -> ResponseFormat | None:
    return None if section is None else ResponseFormat(section.json_schema, section.name, section.strict)


def tools(settings: Settings) -> dict[str, ToolConfig]:
    """All tools of the user's own, in the order of the file."""
    result: dict[str, ToolConfig] = {}
    for name, section in settings.tools.items():
        if isinstance(section, HttpToolSection):
            result[name] = _http_tool(name, section)
        else:
            entry_point, effect = section.entry_point or name, effect_class(section.effect)
            result[name] = PythonTool(name, entry_point, effect, section.parallel, section.approval, section.timeout)
    return result


def hooks(settings: Settings) -> dict[str, HookConfig]:
    """All hooks, in the order of the file."""
    result: dict[str, HookConfig] = {}
    for name, section in settings.hooks.items():
        rule = HookRule(name, section.when, section.tools, section.on_failure, section.timeout, section.keep_original)
        if isinstance(section, HttpHookSection):
            result[name] = HttpHook(rule, _peer(section.url, "POST", section.headers, section.idempotency_header))
        else:
            result[name] = PythonHook(rule, section.entry_point or name)
    return result


def _peer(url: str, method: str, headers: Mapping[str, str], idempotency_header: str) -> HttpPeer:
    return HttpPeer(
        url=url,
        method=method,
        headers={key: text for key, text in headers.items() if not is_reference(text)},
        secret_headers={key: text for key, text in headers.items() if is_reference(text)},
        idempotency_header=idempotency_header,
    )


def _http_tool(name: str, section: HttpToolSection) -> HttpTool:
    return HttpTool(
        definition=ToolDefinition(name, section.description, section.parameters),
        peer=_peer(section.url, section.method, section.headers, section.idempotency_header),
        policy=ToolPolicy(EffectClass(section.effect), section.parallel, section.approval),
        timeout=section.timeout,
        response_bytes=int(section.response_limit),
    )


def prices(settings: Settings) -> PriceList:
    """The price list; classes without a price of their own cost what input or output costs."""
    section = settings.prices
    rules = tuple(
        PriceRule(
            provider=entry.provider,
            model=entry.model,
            prices=_token_prices(entry),
            tiers=tuple(
                PriceTier(tier.above_input_tokens, _token_prices(tier))
                for tier in sorted(entry.tiers, key=lambda tier: tier.above_input_tokens)
            ),
        )
        for entry in section.models
    )
    return PriceList(section.version, section.currency, section.packaged, rules)


def _token_prices(section: TokenPricesSection) -> TokenPrices:
    return TokenPrices(
        input=section.input,
        cached_input=section.input if section.cached_input is None else section.cached_input,
        output=section.output,
        reasoning=section.output if section.reasoning is None else section.reasoning,
        cache_write=section.input if section.cache_write is None else section.cache_write,
    )
