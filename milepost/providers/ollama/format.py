"""Ollama's chat as a wire format."""

from __future__ import annotations

from typing import Any

from milepost.domain.errors import ModelRequestRejected
from milepost.domain.providers import OllamaProfile, OllamaProvider
from milepost.ports.models import ModelRequest
from milepost.providers.endpoint import Outgoing
from milepost.providers.faults import Refusal
from milepost.providers.ollama.answer import ChatAnswer
from milepost.providers.ollama.messages import wire_messages
from milepost.providers.settings import json_output, offered_tools, supported, without_images

LATEST = ":latest"

_OPTIONS = {"temperature": "temperature", "top_p": "top_p", "max_tokens": "num_predict", "stop": "stop"}


class ChatFormat:
    """`endpoint.WireFormat` of `/api/chat`."""

    name = "ollama"
    models_path = "/api/tags"

    def __init__(self, config: OllamaProvider) -> None:
        self._config = config

    def outgoing(self, request: ModelRequest, notes: list[str]) -> Outgoing:
        profile = self._config.profile_of(request.model)
        chosen = supported(request.sampling, profile.unsupported, notes)
        think = _think(profile, chosen.pop("reasoning_effort", None), notes)
        conversation = request.messages if profile.supports_images else without_images(request.messages, notes)
        messages = wire_messages(conversation, request.system_prompt, thinking=profile.think != "off")
        if not messages:
            raise ModelRequestRejected("There is no message to send.", field="messages")
        body: dict[str, Any] = {"model": request.model, "stream": True, **think}
        options = {sent: chosen[name] for name, sent in _OPTIONS.items() if name in chosen}
        if profile.num_ctx is not None:
            options["num_ctx"] = profile.num_ctx
        if options := {**options, **profile.options}:
            body["options"] = options
        if profile.keep_alive is not None:
            body["keep_alive"] = profile.keep_alive
        wanted = json_output(request.sampling, profile, notes)
        if wanted is not None:
            body["format"] = "json" if wanted.json_schema is None else wanted.json_schema
        if tools := offered_tools(request.tools, profile.supports_tools, notes):
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
                }
                for tool in tools
            ]
        return Outgoing("/api/chat", {**body, **profile.extra_body, "messages": messages})

    def answer(self, request: ModelRequest) -> ChatAnswer:
        profile = self._config.profile_of(request.model)
        tools = [tool.name for tool in request.tools] if profile.supports_tools else []
        return ChatAnswer(request, tools, recover=profile.recover_calls)

    def refusal(self, status: int, body: Any) -> Refusal:
        return Refusal(status, body)

    def model_ids(self, listed: Any) -> Any:
        return [str(entry["name"]).removesuffix(LATEST) for entry in listed["models"]]


def _think(profile: OllamaProfile, effort: str | None, notes: list[str]) -> dict[str, Any]:
    if profile.think == "off":
        return {"think": False}
    if effort is None:
        return {}
    match profile.think:
        case "switch":
            return {"think": effort != "none"}
        case "levels":
            return {"think": effort}
    notes.append("The model's profile does not say how it thinks; 'reasoning_effort' was left out.")
    return {}
