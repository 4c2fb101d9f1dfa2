"""Mistral's chat completions as a wire format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from milepost.domain.errors import ModelRequestRejected
from milepost.domain.providers import MistralProvider
from milepost.ports.models import ModelInfo, ModelRequest
from milepost.providers.endpoint import Outgoing
from milepost.providers.faults import Refusal
from milepost.providers.mistral.answer import CompletionAnswer
from milepost.providers.mistral.messages import WIRE, wire_messages
from milepost.providers.settings import json_output, offered_tools, supported, without_images

_ABILITIES = {"function_calling": "tools", "vision": "images", "reasoning": "reasoning"}


class ChatFormat:
    """`endpoint.WireFormat` of Mistral's chat completions."""

    name = WIRE
    models_path = "/models"

    def __init__(self, config: MistralProvider) -> None:
        self._config = config

    def outgoing(self, request: ModelRequest, notes: list[str]) -> Outgoing:
        profile = self._config.profile_of(request.model)
        conversation = request.messages if profile.supports_images else without_images(request.messages, notes)
        messages = wire_messages(
            conversation,
            request.system_prompt,
            self._config.name,
            request.model,
            thinking=profile.return_thinking,
        )
        if not messages:
            raise ModelRequestRejected("There is no message to send.", field="messages")
        body: dict[str, Any] = {"model": request.model}
        if tools := offered_tools(request.tools, profile.supports_tools, notes):
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
                }
                for tool in tools
            ]
        body["stream"] = True
        body.update(supported(request.sampling, profile.unsupported, notes))
        wanted = json_output(request.sampling, profile, notes)
        if wanted is not None and wanted.json_schema is not None:
            schema = {"name": wanted.name, "schema": wanted.json_schema, "strict": wanted.strict}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif wanted is not None:
            body["response_format"] = {"type": "json_object"}
        # The messages are last: all before them stays the same from call to call.
        return Outgoing("/chat/completions", {**body, **profile.extra_body, "messages": messages})

    def answer(self, request: ModelRequest) -> CompletionAnswer:
        return CompletionAnswer(request)

    def refusal(self, status: int, body: Any) -> Refusal:
        return Refusal(status, body)

    def model_ids(self, listed: Any) -> Sequence[str | ModelInfo]:
        return [_info(entry) for entry in listed["data"]]


def _info(entry: Any) -> ModelInfo:
    size, can = entry.get("max_context_length"), entry.get("capabilities") or {}
    abilities = tuple(ours for theirs, ours in _ABILITIES.items() if can.get(theirs) is True)
    return ModelInfo(str(entry["id"]), size if isinstance(size, int) else None, abilities)
