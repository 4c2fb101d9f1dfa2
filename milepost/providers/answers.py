"""From what a provider's stream ended with to the answer that is recorded; the same for every wire format."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from milepost.domain.messages import AssistantMessage, FinishReason
from milepost.domain.usage import Usage
from milepost.ports.models import ModelCompleted, ModelRequest
from milepost.providers.wire import parse_object
from milepost.security.redaction import Redactor

MAX_MODEL_NAME = 256
MAX_FINISH_REASON = 80
MAX_REFUSAL = 500
MAX_SEARCHED_TEXT = 64 * 1024

_WRAPPED_CALL = re.compile(r"(?:```(?:json)?|<tool_call>|<function_call>)\s*(\{.*\})\s*(?:```|</\w+>)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Ending:
    """What a stream ended with.

    Attributes:
        finish: the reason, read from `raw`, which is the provider's own word.
        model: what the provider says it is.
        made_ids: calls that came without a usable id of their own.
        refusal: the model's words where it refused.
    """

    finish: FinishReason
    raw: str
    usage: Usage
    model: str
    made_ids: int = 0
    refusal: str | None = None


def completed(
    request: ModelRequest, message: AssistantMessage, ending: Ending, notes: Sequence[str], redact: Redactor
) -> ModelCompleted:
    """The answer; `redact` hides secrets in the provider's words that are shortened here."""
    said = redact.cut(ending.raw, MAX_FINISH_REASON)
    finish, diagnostics = _finish(ending, message, said, redact)
    limit = request.sampling.max_tokens
    if finish is FinishReason.TOOL_CALLS and limit is not None and _was_cut(message, ending.usage, limit):
        finish = FinishReason.LENGTH
        diagnostics.append(f"The provider reports '{said}', but the answer was cut at {limit} tokens.")
    diagnostics += notes
    if not ending.usage.complete:
        diagnostics.append("The provider reported no usable token usage.")
    if (tool := tool_in_text(message.text, {tool.name for tool in request.tools})) and not message.calls:
        diagnostics.append(
            f"The model wrote a call of '{tool}' as text, which is not run: "
            "the model, or the template of its server, may not support tools."
        )
    if ending.made_ids:
        diagnostics.append(f"{ending.made_ids} tool call(s) came without an id of their own; ids were made.")
    model = redact.cut(ending.model, MAX_MODEL_NAME)
    return ModelCompleted(message, finish, ending.usage, request.provider, model, tuple(diagnostics))


def _finish(ending: Ending, message: AssistantMessage, said: str, redact: Redactor) -> tuple[FinishReason, list[str]]:
    if ending.refusal is not None:
        return FinishReason.CONTENT_FILTER, [f"The model refused: {redact.cut(ending.refusal, MAX_REFUSAL)}"]
    match ending.finish:
        case FinishReason.OTHER:
            return FinishReason.OTHER, [f"The provider's finish reason '{said}' is unknown."]
        case FinishReason.STOP if message.calls:
            return FinishReason.TOOL_CALLS, []
        case FinishReason.TOOL_CALLS if not message.calls:
            return FinishReason.STOP, [f"The provider's finish reason is '{said}', but there is no call."]
    return ending.finish, []


def _was_cut(message: AssistantMessage, usage: Usage, limit: int) -> bool:
    """Some servers report tool calls as the reason although the token limit cut the arguments."""
    if not usage.complete or usage.output_tokens + usage.reasoning_tokens < limit:
        return False
    texts = [call.arguments.text for call in message.calls]
    return any(text.strip() and parse_object(text) is None for text in texts)


def tool_in_text(text: str, tools: Collection[str]) -> str | None:
    """The offered tool that a whole text, without fences and tags, is a JSON call of; None for any other text."""
    text = text.strip()
    if not tools or len(text) > MAX_SEARCHED_TEXT:
        return None
    inner = _WRAPPED_CALL.fullmatch(text)
    value = parse_object(inner.group(1) if inner else text)
    if value is None:
        return None
    function = value.get("function")
    named = function.get("name") if isinstance(function, dict) else function
    name = value.get("name") or value.get("tool") or named
    return name if isinstance(name, str) and name in tools else None
