"""The wire formats that the conformance suite runs over: one entry each, nothing in the cases knows a format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from milepost.domain.providers import (
    AnthropicProfile,
    AnthropicProvider,
    OpenAICompatibleProvider,
    ProviderConfig,
)
from milepost.providers.anthropic.format import MessagesFormat
from milepost.providers.endpoint import WireFormat
from tests.support.anthropic_server import AnthropicServer
from tests.support.openai_server import OpenAIServer
from tests.support.validators.anthropic import sign
from tests.support.wire_server import WireServer


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
        late: the `usage_at` whose report comes after the finish reason.
        usages: other places where usage can be.
        format: its `WireFormat`, for types that stand on one.
        signed: what the service puts beside a reasoning text, for those types.
        messages_key: where a request has its conversation.
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
    signed: Callable[[str], dict[str, Any]] = lambda text: {}
    messages_key: str = "messages"
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
        signed=lambda text: {"signature": sign(text)},
    ),
]
