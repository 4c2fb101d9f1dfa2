"""The wire formats that the conformance suite runs over: one entry each, nothing in the cases knows a format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from milepost.domain.messages import AssistantPart, ReasoningPart, ToolCallPart
from milepost.domain.providers import (
    AnthropicProfile,
    AnthropicProvider,
    GeminiProfile,
    GeminiProvider,
    MistralProvider,
    OllamaProvider,
    OpenAICompatibleProvider,
    OpenAIProvider,
    OpenRouterProvider,
    ProviderConfig,
)
from milepost.domain.usage import Usage
from milepost.providers.anthropic.format import MessagesFormat
from milepost.providers.endpoint import WireFormat
from milepost.providers.gemini.format import ContentFormat
from milepost.providers.mistral.format import ChatFormat as MistralFormat
from milepost.providers.ollama.format import ChatFormat
from milepost.providers.openai.format import ResponsesFormat
from tests.support.anthropic_server import AnthropicServer
from tests.support.gemini_server import GeminiServer
from tests.support.mistral_server import MistralServer
from tests.support.ollama_server import OllamaServer
from tests.support.openai_server import OpenAIServer
from tests.support.openrouter_server import OpenRouterServer
from tests.support.responses_server import ResponsesServer
from tests.support.validators import anthropic, gemini, mistral
from tests.support.validators.openai_responses import encrypt
from tests.support.wire_server import Tokens, WireServer


@dataclass(frozen=True)
class Wire:
    """One provider type with its fake.

    Attributes:
        config: the class of its configuration; `defaults` are what the cases want of it.
        finishes: the format's words for `stop`, `length`, `filter` and `calls`.
        is_finish: whether an event carries the finish reason.
        indexes, ids: how tool calls can be misnumbered and their ids missing in this format.
        interleaves: whether calls can come in turns.
        raw_arguments: whether arguments are a text (that may be anything) and no JSON object.
        late: the `usage_at` whose report comes after the finish reason; empty where the two come together.
        usages: other places where usage can be.
        format: its `WireFormat`, for types that stand on one.
        beside: what the service puts beside a part of an answer, for those types.
        messages_key: where a request has its conversation.
        counts: the usage that the service's report of a bill leads to.
        refuses: whether a refusal is told from an answer.
        names_calls: whether calls have ids by nature, so that a missing one is worth a note.
        recovers: whether a call written as text is taken as a call.
        twin: whether another type stands on the same code, so that the cases need not run for both each time.
        garbage: events that nobody can read.
    """

    name: str
    server: type[WireServer]
    config: Callable[..., ProviderConfig]
    finishes: Mapping[str, str]
    is_finish: Callable[[Any], bool]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    indexes: tuple[str, ...] = ("normal",)
    ids: tuple[str, ...] = ("normal", "none", "same")
    interleaves: bool = True
    raw_arguments: bool = True
    late: str = "late"
    usages: tuple[str, ...] = ("end", "late", "twice")
    format: Callable[[Any], WireFormat] | None = None
    beside: Callable[[AssistantPart], dict[str, Any]] = lambda part: {}
    messages_key: str = "messages"
    counts: Callable[[Tokens], Usage] = lambda tokens: Usage(
        tokens.input, tokens.cached, tokens.output, tokens.reasoning
    )
    refuses: bool = True
    names_calls: bool = True
    recovers: bool = False
    twin: bool = False
    garbage: tuple[str, ...] = ("data: {not json\n\n", "data: [1]\n\n", "data: 5\n\n")

    def made(self, server: WireServer, name: str = "fake", **changes: Any) -> ProviderConfig:
        """The configuration of a provider on the fake."""
        values = {"name": name, "base_url": server.base_url, "default_model": "fake-small", **self.defaults}
        return self.config(**{**values, **changes})

    def events_to_finish(self, server: WireServer, body: Any, reply: Any) -> int:
        """How many events of a planned answer there are up to the finish reason."""
        events = list(server.payloads(body, reply))
        return next(at for at, event in enumerate(events, 1) if self.is_finish(event))


def _openai_finish(event: Any) -> bool:
    return any(choice.get("finish_reason") for choice in event.get("choices", []))


def reasoning_item(text: str) -> dict[str, Any]:
    """A reasoning item of the fake of OpenAI's responses."""
    summary = [{"type": "summary_text", "text": text}]
    return {"id": "rs_1", "type": "reasoning", "summary": summary, "encrypted_content": encrypt("rs_1", summary)}


def _anthropic_beside(part: AssistantPart) -> dict[str, Any]:
    return {"signature": anthropic.sign(part.text)} if isinstance(part, ReasoningPart) else {}


def _gemini_beside(part: AssistantPart) -> dict[str, Any]:
    if isinstance(part, ToolCallPart):
        return {"id": part.call_id[:9] or None, "signature": gemini.sign(part.tool)}
    return {"signature": gemini.sign(part.text)} if len(part.text) % 2 else {}


def _mistral_beside(part: AssistantPart) -> dict[str, Any]:
    return {"closed": True, "signature": mistral.sign(part.text)} if isinstance(part, ReasoningPart) else {}


def _openai_beside(part: AssistantPart) -> dict[str, Any]:
    return {"item": reasoning_item(part.text)} if isinstance(part, ReasoningPart) else {}


WIRES = [
    Wire(
        name="openai_compatible",
        server=OpenAIServer,
        config=OpenAICompatibleProvider,
        finishes={"stop": "stop", "length": "length", "filter": "content_filter", "calls": "tool_calls"},
        is_finish=_openai_finish,
        indexes=("normal", "none", "zero"),
        ids=("normal", "none", "same", "every_chunk"),
        late="end",
        usages=("end", "finish", "each", "twice"),
    ),
    Wire(
        name="anthropic",
        server=AnthropicServer,
        config=AnthropicProvider,
        finishes={"stop": "end_turn", "length": "max_tokens", "filter": "refusal", "calls": "tool_use"},
        is_finish=lambda event: bool(event.get("delta", {}).get("stop_reason")),
        defaults={"profile": AnthropicProfile(thinking="budget")},
        indexes=("normal", "none", "zero"),
        format=MessagesFormat,
        beside=_anthropic_beside,
    ),
    Wire(
        name="openai",
        server=ResponsesServer,
        config=OpenAIProvider,
        finishes={"stop": "completed", "length": "max_output_tokens", "filter": "content_filter"},
        is_finish=lambda event: event.get("type") in ("response.completed", "response.incomplete"),
        indexes=("normal", "none", "zero"),
        late="",
        usages=("end",),
        format=ResponsesFormat,
        messages_key="input",
        beside=_openai_beside,
    ),
    Wire(
        name="openrouter",
        server=OpenRouterServer,
        twin=True,
        config=OpenRouterProvider,
        finishes={"stop": "stop", "length": "length", "filter": "content_filter", "calls": "tool_calls"},
        is_finish=lambda event: isinstance(event, dict) and _openai_finish(event),
        indexes=("normal", "none", "zero"),
        ids=("normal", "none", "same", "every_chunk"),
        late="end",
        usages=("end", "finish", "each", "twice"),
    ),
    Wire(
        name="ollama",
        server=OllamaServer,
        config=OllamaProvider,
        finishes={"stop": "stop", "length": "length"},
        is_finish=lambda event: isinstance(event, dict) and event["done"],
        interleaves=False,
        raw_arguments=False,
        late="",
        usages=("end",),
        format=ChatFormat,
        # Neither what came from the cache nor what was thought is counted apart.
        counts=lambda tokens: Usage(tokens.input + tokens.cached, output_tokens=tokens.output + tokens.reasoning),
        refuses=False,
        names_calls=False,
        recovers=True,
        garbage=("{not json\n", "[1]\n", "5\n"),
    ),
    Wire(
        name="gemini",
        server=GeminiServer,
        config=GeminiProvider,
        finishes={"stop": "STOP", "length": "MAX_TOKENS", "filter": "SAFETY", "calls": "STOP"},
        is_finish=lambda event: any(each.get("finishReason") for each in event.get("candidates", [])),
        defaults={"profile": GeminiProfile(thinking="budget")},
        interleaves=False,
        raw_arguments=False,
        usages=("end", "late", "twice", "each"),
        format=ContentFormat,
        beside=_gemini_beside,
        messages_key="contents",
    ),
    Wire(
        name="mistral",
        server=MistralServer,
        config=MistralProvider,
        finishes={"stop": "stop", "length": "length", "filter": "content_filter", "calls": "tool_calls"},
        is_finish=_openai_finish,
        indexes=("normal", "none", "zero"),
        ids=("normal", "none", "same", "every_chunk"),
        usages=("end", "late", "twice", "each"),
        refuses=False,
        format=MistralFormat,
        beside=_mistral_beside,
    ),
]

WIRE_PARAMETERS = [pytest.param(wire, id=wire.name, marks=[pytest.mark.slow] if wire.twin else []) for wire in WIRES]
"""The formats as parameters of cases."""
