"""What an endpoint wants back unchanged: the library's message without the texts that the conversation holds itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)

from milepost.domain.content import Content
from milepost.domain.messages import AssistantMessage, AssistantPart, ProviderState, ReasoningPart
from milepost.domain.messages import TextPart as OurText
from milepost.domain.messages import ToolCallPart as OurCall
from milepost.domain.providers import ThinkingReturn
from milepost.providers.openai_compatible.details import sealed, unsealed

_DETAILS = "reasoning_details"
_KEPT = ("kind", "model_name", "provider_name", "canonical_system")


def domain_parts(parts: Sequence[ModelResponsePart]) -> tuple[AssistantPart, ...]:
    """The library's parts as ours, one to one; kinds that a chat answer cannot have are left out."""
    result: list[AssistantPart] = []
    for part in parts:
        match part:
            case TextPart():
                result.append(OurText(part.content))
            case ThinkingPart():
                result.append(ReasoningPart(part.content))
            case ToolCallPart():
                arguments = part.args if isinstance(part.args, str) else ""
                result.append(OurCall(part.tool_call_id, part.tool_name, Content(arguments)))
            case _:
                pass
    return tuple(result)


def capture(
    response: ModelResponse,
    provider: str,
    model: str,
    returned: ThinkingReturn,
    details: list[dict[str, Any]],
) -> ProviderState | None:
    """State to keep with an answer, or None when rebuilding the message from its parts loses nothing."""
    thinking = returned is not ThinkingReturn.NEVER
    details = details if thinking else []
    if not details and not any(
        (thinking and isinstance(part, ThinkingPart)) or _has_details(part) for part in response.parts
    ):
        return None
    (dumped,) = ModelMessagesTypeAdapter.dump_python([response], mode="json")
    state: dict[str, Any] = {key: dumped[key] for key in _KEPT if dumped.get(key) is not None}
    state["parts"] = [_without_text(part) for part in dumped["parts"]]
    if details:
        state[_DETAILS] = sealed(details)
    return ProviderState(provider, model, Content(json.dumps(state, sort_keys=True, separators=(",", ":"))))


def _has_details(part: ModelResponsePart) -> bool:
    return bool(getattr(part, "provider_details", None) or getattr(part, "signature", None))


def _without_text(part: dict[str, Any]) -> dict[str, Any]:
    held = {"content": "", "args": ""}
    return {key: held.get(key, value) for key, value in part.items() if value is not None}


def restore(message: AssistantMessage, provider: str, model: str) -> ModelResponse | None:
    """The library's message as it was received, or None: no state, another route, or state that does not fit."""
    state = message.provider_state
    if state is None or (state.provider, state.model) != (provider, model):
        return None
    try:
        kept = json.loads(state.data.text)
        details = kept.pop(_DETAILS, None)
        (response,) = ModelMessagesTypeAdapter.validate_python([kept])
    except (ValueError, TypeError, AttributeError, ValidationError, RecursionError):
        return None
    if not isinstance(response, ModelResponse) or len(response.parts) != len(message.parts):
        return None
    for part, ours in zip(response.parts, message.parts, strict=True):
        match part, ours:
            case TextPart(), OurText():
                part.content = ours.text
            case ThinkingPart(), ReasoningPart():
                part.content = ours.text
            case ToolCallPart(), OurCall() if part.tool_call_id == ours.call_id:
                part.args = ours.arguments.text
            case _:
                return None
    if details is not None:
        whole = unsealed(details)
        if whole is None:
            return None
        response.provider_details = {"reasoning_details": whole}
    return response
