"""A conversation every provider accepts, whatever a stop, a crash or a switch of models left behind.

Pure and free of any provider's format.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from milepost.domain.content import Content
from milepost.domain.messages import AssistantMessage, Message, TextPart, ToolMessage, UserMessage

CANCELLED = "cancelled"
"""Result text of a call that has none."""


def normalize(messages: Sequence[Message]) -> list[Message]:
    """Repair a conversation without changing what is already right.

    - Every call has exactly one result, directly after its message, in call order; a missing one is `CANCELLED`,
      one that answers nothing is dropped, of two for one call the first counts.
    - An assistant message without text and calls is dropped.
    - Neighbors of one role (user or assistant) are one message; a merged assistant message loses its provider state.
    """
    kept = [message for message in messages if not _is_empty(message)]
    result: list[Message] = []
    index = 0
    while index < len(kept):
        message = kept[index]
        index += 1
        if isinstance(message, UserMessage):
            _append_user(result, message)
        elif isinstance(message, AssistantMessage):
            end = _next_assistant(kept, index)
            rest = kept[index:end]
            index = end
            _append_assistant(result, message)
            result.extend(_results(message, rest))
            for other in rest:
                if isinstance(other, UserMessage):
                    _append_user(result, other)
        # A result here answers no call.
    return result


def _is_empty(message: Message) -> bool:
    return isinstance(message, AssistantMessage) and not message.calls and not message.text.strip()


def _next_assistant(messages: Sequence[Message], start: int) -> int:
    for index in range(start, len(messages)):
        if isinstance(messages[index], AssistantMessage):
            return index
    return len(messages)


def _results(message: AssistantMessage, rest: Iterable[Message]) -> list[ToolMessage]:
    found: dict[str, ToolMessage] = {}
    for other in rest:
        if isinstance(other, ToolMessage):
            found.setdefault(other.call_id, other)
    return [
        found.get(call.call_id) or ToolMessage(call.call_id, call.tool, Content(CANCELLED), is_error=True)
        for call in message.calls
    ]


def _append_user(result: list[Message], message: UserMessage) -> None:
    last = result[-1] if result else None
    if isinstance(last, UserMessage):
        text = "\n\n".join(text for text in (last.text.text, message.text.text) if text)
        result[-1] = UserMessage(Content(text), (*last.images, *message.images))
    else:
        result.append(message)


def _append_assistant(result: list[Message], message: AssistantMessage) -> None:
    last = result[-1] if result else None
    if isinstance(last, AssistantMessage):
        result[-1] = AssistantMessage((*last.parts, TextPart("\n\n"), *message.parts))
    else:
        result.append(message)
