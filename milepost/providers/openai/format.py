"""Responses as a wire format."""

from __future__ import annotations

from typing import Any

from milepost.domain.errors import ModelRequestRejected
from milepost.domain.providers import OpenAIProfile, OpenAIProvider
from milepost.ports.models import ModelRequest
from milepost.providers.endpoint import Outgoing
from milepost.providers.faults import Refusal
from milepost.providers.health import listed_ids
from milepost.providers.openai.answer import STATUS_OF, ResponseAnswer
from milepost.providers.openai.messages import WIRE, input_items
from milepost.providers.settings import json_output, offered_tools, supported, without_images
from milepost.providers.wire import wire_text

MIN_OUTPUT_TOKENS = 16

_SETTINGS = {"temperature": "temperature", "top_p": "top_p", "max_tokens": "max_output_tokens"}


class ResponsesFormat:
    """`endpoint.WireFormat` of OpenAI's responses, without state at the service (`store` is false)."""

    name = WIRE
    models_path = "/models"

    def __init__(self, config: OpenAIProvider) -> None:
        self._config = config

    def outgoing(self, request: ModelRequest, notes: list[str]) -> Outgoing:
        profile = self._config.profile_of(request.model)
        # The API has no stop sequences.
        chosen = supported(request.sampling, profile.unsupported | {"stop"}, notes)
        conversation = request.messages if profile.supports_images else without_images(request.messages, notes)
        found = input_items(conversation, self._config.name, request.model)
        if not found:
            raise ModelRequestRejected("There is no message to send.", field="messages")
        body: dict[str, Any] = {"model": request.model, "stream": True, "store": False}
        if prompt := wire_text(request.system_prompt):
            body["instructions"] = prompt
        if tools := offered_tools(request.tools, profile.supports_tools, notes):
            body["tools"] = [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                    "strict": False,
                }
                for tool in tools
            ]
        body.update(_reasoning(profile, chosen.pop("reasoning_effort", None), notes))
        if chosen.get("max_tokens", MIN_OUTPUT_TOKENS) < MIN_OUTPUT_TOKENS:
            notes.append(f"The API takes no 'max_tokens' below {MIN_OUTPUT_TOKENS}; that was sent.")
            chosen["max_tokens"] = MIN_OUTPUT_TOKENS
        body.update({sent: chosen[name] for name, sent in _SETTINGS.items() if name in chosen})
        if text := _text_format(request, profile, notes):
            body["text"] = text
        if profile.prompt_cache_key and request.cache_key:
            body["prompt_cache_key"] = request.cache_key
        # The conversation is last: all before it stays the same from call to call.
        return Outgoing("/responses", {**body, **profile.extra_body, "input": found})

    def answer(self, request: ModelRequest) -> ResponseAnswer:
        return ResponseAnswer(request)

    def refusal(self, status: int, body: Any) -> Refusal:
        error = body.get("error") if isinstance(body, dict) else None
        code = str(error.get("code")) if isinstance(error, dict) else ""
        # Used-up credit is refused with 429, and waiting does not help.
        return Refusal(status, body, like=402 if STATUS_OF.get(code) == 402 else None)

    def model_ids(self, listed: Any) -> Any:
        return listed_ids(listed)


def _reasoning(profile: OpenAIProfile, effort: str | None, notes: list[str]) -> dict[str, Any]:
    if not profile.reasoning:
        if effort is not None:
            notes.append("The model's profile says that it does not reason; 'reasoning_effort' was left out.")
        return {}
    asked = {} if effort is None else {"effort": effort}
    if profile.reasoning_summary != "off":
        asked["summary"] = profile.reasoning_summary
    # What the service does not store it must get back, and only encrypted content can be given back.
    body: dict[str, Any] = {"include": ["reasoning.encrypted_content"]}
    return {**body, "reasoning": asked} if asked else body


def _text_format(request: ModelRequest, profile: OpenAIProfile, notes: list[str]) -> dict[str, Any]:
    wanted = json_output(request.sampling, profile, notes)
    if wanted is None:
        return {}
    if wanted.json_schema is None:
        return {"format": {"type": "json_object"}}
    schema = {"name": wanted.name, "schema": wanted.json_schema, "strict": wanted.strict}
    return {"format": {"type": "json_schema", **schema}}
