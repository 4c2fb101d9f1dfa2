"""Keeping a provider's keys out of its answers: what it sends back of them is hidden before anybody sees it."""

from __future__ import annotations

from dataclasses import replace

from milepost.domain.content import Content
from milepost.domain.messages import AssistantMessage, AssistantPart, ReasoningPart, TextPart, ToolCallPart
from milepost.ports.models import ModelCompleted, ReasoningDelta, TextDelta
from milepost.security.redaction import Redactor, StreamRedactor


class HiddenDeltas:
    """The deltas of one answer without secrets, also of those that lie across several deltas."""

    def __init__(self, redact: Redactor) -> None:
        self._text = StreamRedactor(redact)
        self._reasoning = StreamRedactor(redact)

    def feed(self, delta: TextDelta | ReasoningDelta) -> list[TextDelta | ReasoningDelta]:
        """What can be shown now: the delta, a part of it, or nothing yet."""
        if isinstance(delta, TextDelta):
            return [TextDelta(text)] if (text := self._text.feed(delta.text)) else []
        return [ReasoningDelta(text)] if (text := self._reasoning.feed(delta.text)) else []

    def end(self) -> list[TextDelta | ReasoningDelta]:
        """What was held back, when no more deltas come."""
        reasoning, text = self._reasoning.end(), self._text.end()
        return [*([ReasoningDelta(reasoning)] if reasoning else []), *([TextDelta(text)] if text else [])]


def hidden(completed: ModelCompleted, redact: Redactor) -> ModelCompleted:
    """The answer without secrets, also of those that lie across several parts."""
    message = completed.message
    state = message.provider_state
    if state is not None:
        state = replace(state, data=Content(redact.certain(state.data.text)))
    parts = _parts(message.parts, redact)
    return replace(
        completed,
        message=AssistantMessage(tuple(parts), state),
        model=redact.certain(completed.model),
        diagnostics=tuple(redact.known(text) for text in completed.diagnostics),
    )


def _parts(parts: tuple[AssistantPart, ...], redact: Redactor) -> list[AssistantPart]:
    text, reasoning = StreamRedactor(redact), StreamRedactor(redact)
    shown: list[AssistantPart] = []
    for part in parts:
        match part:
            case TextPart():
                shown.append(TextPart(text.feed(part.text)))
            case ReasoningPart():
                shown.append(ReasoningPart(reasoning.feed(part.text)))
            case ToolCallPart():
                call_id, tool = redact.certain(part.call_id), redact.certain(part.tool)
                arguments = Content(redact.certain(part.arguments.text))
                shown.append(replace(part, call_id=call_id, tool=tool, arguments=arguments))
    rests = {TextPart: text.end(), ReasoningPart: reasoning.end()}
    # The rest of a channel belongs to its last part: the number of parts is part of a provider's state.
    for index in range(len(shown) - 1, -1, -1):
        part = shown[index]
        if isinstance(part, TextPart | ReasoningPart) and (rest := rests.pop(type(part), "")):
            shown[index] = type(part)(part.text + rest)
    return shown
