"""From a finished chat completion to the answer that is recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from milepost.domain.messages import AssistantMessage, FinishReason
from milepost.domain.providers import EndpointProfile
from milepost.domain.usage import Usage
from milepost.ports.models import ModelCompleted, ModelRequest
from milepost.providers import answers
from milepost.providers.openai_compatible.model import ChatStream
from milepost.providers.openai_compatible.state import capture, domain_parts
from milepost.security.redaction import Redactor

_FINISH = {
    "stop": FinishReason.STOP,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "length": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
}


ReadUsage = Callable[[Sequence[Mapping[str, Any]]], Usage]


def completed(
    request: ModelRequest,
    profile: EndpointProfile,
    stream: ChatStream,
    usage: ReadUsage,
    diagnostics: list[str],
    redact: Redactor,
) -> ModelCompleted:
    """The answer; `redact` hides secrets in the provider's words that are shortened here."""
    response = stream.get()
    details = stream.details.whole()
    state = capture(response, request.provider, request.model, profile.thinking_return, details)
    message = AssistantMessage(domain_parts(response.parts), state)
    raw = stream.raw_finish or ""
    refusal = (stream.provider_details or {}).get("refusal")
    ending = answers.Ending(
        finish=_FINISH.get(raw, FinishReason.OTHER),
        raw=raw,
        usage=usage(stream.usage_reports),
        model=stream.model_name,
        made_ids=stream.assembler.generated,
        refusal=refusal if isinstance(refusal, str) else None,
    )
    return answers.completed(request, message, ending, [*diagnostics, *stream.notes], redact)
