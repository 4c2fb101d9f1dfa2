"""The messages API as a wire format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from milepost.domain.errors import ModelRequestRejected
from milepost.domain.providers import AnthropicProfile, AnthropicProvider
from milepost.ports.models import ModelInfo, ModelRequest
from milepost.providers.anthropic.answer import STATUS_OF, MessageAnswer
from milepost.providers.anthropic.messages import WIRE, wire_messages
from milepost.providers.endpoint import Outgoing
from milepost.providers.faults import Refusal
from milepost.providers.health import listed_ids
from milepost.providers.settings import json_output, offered_tools, supported, without_images
from milepost.providers.wire import wire_text

MIN_BUDGET = 1024
"""The smallest thinking budget the API takes."""

BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 32768, "max": 65536}
"""Thinking budgets of `reasoning_effort` for models that take a number of tokens."""

_SETTINGS = {"temperature": "temperature", "top_p": "top_p", "stop": "stop_sequences"}


class MessagesFormat:
    """`endpoint.WireFormat` of Anthropic's messages API, version 2023-06-01."""

    name = WIRE
    models_path = "/models?limit=1000"

    def __init__(self, config: AnthropicProvider) -> None:
        self._config = config

    def outgoing(self, request: ModelRequest, notes: list[str]) -> Outgoing:
        profile = self._config.profile_of(request.model)
        chosen = supported(request.sampling, profile.unsupported, notes)
        thinking, effort = _thinking(profile, chosen, notes)
        conversation = request.messages if profile.supports_images else without_images(request.messages, notes)
        messages, may_think = wire_messages(
            conversation, self._config.name, request.model, thinking=thinking is not None
        )
        if not messages:
            raise ModelRequestRejected("There is no message to send.", field="messages")
        if thinking is not None and not may_think:
            thinking = None
            notes.append("A tool call that is being answered came without thinking, so there is none now.")
        body: dict[str, Any] = {"model": request.model, "max_tokens": chosen.get("max_tokens", profile.max_tokens)}
        if prompt := wire_text(request.system_prompt).strip():
            body["system"] = [{"type": "text", "text": prompt}]
        if tools := offered_tools(request.tools, profile.supports_tools, notes):
            body["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in tools
            ]
        body["stream"] = True
        if thinking is not None:
            body["thinking"] = thinking
            _without(chosen, ("temperature", "top_p"), notes)
        body.update({sent: chosen[name] for name, sent in _SETTINGS.items() if name in chosen})
        if output := self._output(request, profile, effort, notes):
            body["output_config"] = output
        if profile.prompt_cache != "off":
            _mark_prefix(body, profile.prompt_cache)
        # The messages are last: all before them stays the same from call to call.
        return Outgoing("/messages", {**body, **profile.extra_body, "messages": messages})

    def _output(
        self, request: ModelRequest, profile: AnthropicProfile, effort: str | None, notes: list[str]
    ) -> dict[str, Any]:
        output: dict[str, Any] = {} if effort is None else {"effort": effort}
        wanted = json_output(request.sampling, profile, notes)
        if wanted is not None and wanted.json_schema is not None:
            output["format"] = {"type": "json_schema", "schema": wanted.json_schema}
        elif wanted is not None:
            notes.append("The endpoint takes a JSON format with its schema only; 'response_format' was left out.")
        return output

    def answer(self, request: ModelRequest) -> MessageAnswer:
        return MessageAnswer(request)

    def refusal(self, status: int, body: Any) -> Refusal:
        error = body.get("error") if isinstance(body, dict) else None
        kind = error.get("type") if isinstance(error, dict) else None
        # Used-up credit is refused with 400; its type says more.
        return Refusal(status, body, like=STATUS_OF["billing_error"] if kind == "billing_error" else None)

    def model_ids(self, listed: Any) -> Sequence[str | ModelInfo]:
        return listed_ids(listed)


def _thinking(
    profile: AnthropicProfile, chosen: dict[str, Any], notes: list[str]
) -> tuple[dict[str, Any] | None, str | None]:
    """What to send as `thinking` and as the effort. Takes `reasoning_effort` out of what was chosen."""
    effort = chosen.pop("reasoning_effort", None)
    if profile.thinking == "off":
        if effort is not None:
            notes.append("Thinking is off in the model's profile; 'reasoning_effort' was left out.")
        return None, None
    if effort == "none":
        return None, None
    if profile.thinking == "adaptive":
        return {"type": "adaptive"}, effort
    budget = BUDGETS.get(effort or "", profile.thinking_budget)
    if effort is not None and effort not in BUDGETS:
        notes.append(f"The effort '{effort[:40]}' is unknown; thinking has its usual budget of {budget} tokens.")
    room = chosen.get("max_tokens", profile.max_tokens) - 1
    if room < MIN_BUDGET:
        notes.append(f"An answer of {room + 1} tokens leaves no room for thinking; there was none.")
        return None, None
    if budget > room:
        notes.append(f"The thinking budget was cut from {budget} to {room} tokens, to stay below 'max_tokens'.")
    return {"type": "enabled", "budget_tokens": max(min(budget, room), MIN_BUDGET)}, None


def _without(chosen: dict[str, Any], names: tuple[str, ...], notes: list[str]) -> None:
    for name in names:
        if chosen.pop(name, None) is not None:
            notes.append(f"The endpoint takes no '{name}' while it thinks; it was left out.")


def _mark_prefix(body: dict[str, Any], ttl: str) -> None:
    """Set cache breakpoints: after the tools and the system prompt, and at the end (`cache_control` of the request).

    The service reads the longest prefix it knows, so what a request adds to the one before is all that is new. Nothing
    inside the messages moves, so a request is a byte prefix of the next one.
    """
    mark = {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
    if blocks := body.get("system") or body.get("tools"):
        blocks[-1] = {**blocks[-1], "cache_control": mark}
    body["cache_control"] = mark
