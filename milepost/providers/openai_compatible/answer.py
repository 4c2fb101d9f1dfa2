"""From a finished stream to the answer that is recorded."""

from __future__ import annotations

import re
from collections.abc import Collection

from milepost.domain.messages import AssistantMessage, FinishReason
from milepost.domain.providers import EndpointProfile
from milepost.domain.usage import Usage
from milepost.ports.models import ModelCompleted, ModelRequest
from milepost.providers.openai_compatible.model import ChatStream
from milepost.providers.openai_compatible.state import capture, domain_parts
from milepost.providers.openai_compatible.usage import last_usage
from milepost.providers.wire import parse_object
from milepost.security.redaction import Redactor

MAX_MODEL_NAME = 256
MAX_FINISH_REASON = 80
MAX_SEARCHED_TEXT = 64 * 1024

_FINISH = {
    "stop": FinishReason.STOP,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "length": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
}

_WRAPPED_CALL = re.compile(r"(?:```(?:json)?|<tool_call>|<function_call>)\s*(\{.*\})\s*(?:```|</\w+>)?", re.DOTALL)


def completed(
    request: ModelRequest, profile: EndpointProfile, stream: ChatStream, diagnostics: list[str], redact: Redactor
) -> ModelCompleted:
    """The answer; `redact` hides secrets in the provider's words that are shortened here."""
    response = stream.get()
    usage = last_usage(list(stream.usage_reports))
    message = AssistantMessage(
        domain_parts(response.parts), capture(response, request.provider, request.model, profile.thinking_return)
    )
    finish = _finish(stream, message, diagnostics, redact)
    limit = request.sampling.max_tokens
    if finish is FinishReason.TOOL_CALLS and limit is not None and _was_cut(message, usage, limit):
        finish = FinishReason.LENGTH
        said = redact.cut(stream.raw_finish or "", MAX_FINISH_REASON)
        diagnostics.append(f"The provider reports '{said}', but the answer was cut at {limit} tokens.")
    diagnostics += stream.notes
    if not usage.complete:
        diagnostics.append("The provider reported no usable token usage.")
    if (tool := tool_in_text(message.text, {tool.name for tool in request.tools})) and not message.calls:
        diagnostics.append(
            f"The model wrote a call of '{tool}' as text, which is not run: "
            "the model, or the template of its server, may not support tools."
        )
    if stream.assembler.generated:
        diagnostics.append(f"{stream.assembler.generated} tool call(s) came without an id of their own; ids were made.")
    return ModelCompleted(
        message, finish, usage, request.provider, redact.cut(stream.model_name, MAX_MODEL_NAME), tuple(diagnostics)
    )


def _finish(stream: ChatStream, message: AssistantMessage, diagnostics: list[str], redact: Redactor) -> FinishReason:
    refusal = (stream.provider_details or {}).get("refusal")
    if isinstance(refusal, str):
        diagnostics.append(f"The model refused: {redact.cut(refusal, 500)}")
        return FinishReason.CONTENT_FILTER
    raw = stream.raw_finish or ""
    finish = _FINISH.get(raw, FinishReason.OTHER)
    said = redact.cut(raw, MAX_FINISH_REASON)
    if finish is FinishReason.OTHER:
        diagnostics.append(f"The provider's finish reason '{said}' is unknown.")
    if finish is FinishReason.STOP and message.calls:
        return FinishReason.TOOL_CALLS
    if finish is FinishReason.TOOL_CALLS and not message.calls:
        diagnostics.append(f"The provider's finish reason is '{said}', but there is no call.")
        return FinishReason.STOP
    return finish


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
