"""The Gemini API as a wire format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from milepost.domain.errors import ModelRequestRejected
from milepost.domain.providers import GeminiProfile, GeminiProvider
from milepost.ports.models import ModelInfo, ModelRequest
from milepost.providers.endpoint import Outgoing
from milepost.providers.faults import Refusal
from milepost.providers.gemini.answer import ContentAnswer
from milepost.providers.gemini.messages import WIRE, wire_contents
from milepost.providers.gemini.refusals import refusal_of
from milepost.providers.settings import json_output, offered_tools, supported, without_images
from milepost.providers.wire import wire_text

BUDGETS = {"none": 0, "minimal": 512, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 24576, "max": 24576}
"""Thinking budgets of `reasoning_effort` for models that take a number of tokens."""

_SETTINGS = {
    "temperature": "temperature",
    "top_p": "topP",
    "max_tokens": "maxOutputTokens",
    "stop": "stopSequences",
}


class ContentFormat:
    """`endpoint.WireFormat` of `streamGenerateContent`."""

    name = WIRE
    models_path = "/models?pageSize=1000"

    def __init__(self, config: GeminiProvider) -> None:
        self._config = config

    def outgoing(self, request: ModelRequest, notes: list[str]) -> Outgoing:
        profile = self._config.profile_of(request.model)
        conversation = request.messages if profile.supports_images else without_images(request.messages, notes)
        contents = wire_contents(
            conversation, self._config.name, request.model, placeholders=profile.placeholder_signatures
        )
        if not contents:
            raise ModelRequestRejected("There is no message to send.", field="messages")
        body: dict[str, Any] = {}
        if prompt := wire_text(request.system_prompt).strip():
            body["systemInstruction"] = {"parts": [{"text": prompt}]}
        if tools := offered_tools(request.tools, profile.supports_tools, notes):
            declared = [
                {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters}
                for tool in tools
            ]
            body["tools"] = [{"functionDeclarations": declared}]
        if config := _generation(request, profile, notes):
            body["generationConfig"] = config
        # The contents are last: all before them stays the same from call to call.
        return Outgoing(_path(request.model), {**body, **profile.extra_body, "contents": contents})

    def answer(self, request: ModelRequest) -> ContentAnswer:
        return ContentAnswer(request)

    def refusal(self, status: int, body: Any) -> Refusal:
        return refusal_of(status, body)

    def model_ids(self, listed: Any) -> Sequence[str | ModelInfo]:
        return [
            _info(entry)
            for entry in listed["models"]
            if "generateContent" in entry.get("supportedGenerationMethods", ["generateContent"])
        ]


def _path(model: str) -> str:
    """A model by its name, or by its whole path (`tunedModels/NAME`)."""
    named = model if "/" in model else f"models/{model}"
    return f"/{quote(named, safe='/')}:streamGenerateContent?alt=sse"


def _generation(request: ModelRequest, profile: GeminiProfile, notes: list[str]) -> dict[str, Any]:
    chosen = supported(request.sampling, profile.unsupported, notes)
    config = {sent: chosen[name] for name, sent in _SETTINGS.items() if name in chosen}
    if thinking := _thinking(profile, chosen.get("reasoning_effort"), notes):
        config["thinkingConfig"] = thinking
    wanted = json_output(request.sampling, profile, notes)
    if wanted is not None:
        config["responseMimeType"] = "application/json"
        if wanted.json_schema is not None:
            config["responseJsonSchema"] = wanted.json_schema
    return config


def _thinking(profile: GeminiProfile, effort: str | None, notes: list[str]) -> dict[str, Any]:
    match profile.thinking:
        case "budget":
            if effort is not None and effort not in BUDGETS:
                notes.append(f"The effort '{effort[:40]}' is unknown; thinking has its usual budget.")
            budget = BUDGETS.get(effort or "", profile.thinking_budget)
            return {"includeThoughts": budget != 0, "thinkingBudget": budget}
        case "level":
            return {"includeThoughts": True, **({} if effort is None else {"thinkingLevel": effort.upper()})}
    if effort is not None:
        notes.append("Thinking is off in the model's profile; 'reasoning_effort' was left out.")
    return {}


def _info(entry: Any) -> ModelInfo:
    size = entry.get("inputTokenLimit")
    abilities = ("reasoning",) if entry.get("thinking") is True else ()
    return ModelInfo(str(entry["name"]).removeprefix("models/"), size if isinstance(size, int) else None, abilities)
