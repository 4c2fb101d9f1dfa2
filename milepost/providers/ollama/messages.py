"""From the conversation to the messages of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from milepost.domain.messages import AssistantMessage, Message, ReasoningPart, ToolMessage, UserMessage
from milepost.providers.raw_json import RawJson
from milepost.providers.transcript import normalize
from milepost.providers.wire import wire_arguments, wire_text, wire_tool_name


def wire_messages(messages: Sequence[Message], system_prompt: str, *, thinking: bool) -> list[dict[str, Any]]:
    """The whole conversation. With `thinking`, reasoning goes back as it came."""
    found: list[dict[str, Any]] = []
    waiting: list[str] = []
    if prompt := wire_text(system_prompt):
        found.append({"role": "system", "content": prompt})
    for message in normalize(messages):
        match message:
            case UserMessage():
                sent: dict[str, Any] = {"role": "user", "content": wire_text(message.text.text)}
                if message.images:
                    sent["images"] = [image.data for image in message.images]
                found.append(sent)
            case AssistantMessage():
                waiting = [wire_tool_name(call.tool) for call in message.calls]
                found.append(_answer(message, thinking=thinking))
            case ToolMessage():
                # Results have no ids here: they stand in the order of the calls, under the names of those.
                text = wire_text(message.text.text)
                found.append({"role": "tool", "tool_name": waiting.pop(0), "content": text})
    return found


def _answer(message: AssistantMessage, *, thinking: bool) -> dict[str, Any]:
    sent: dict[str, Any] = {"role": "assistant", "content": wire_text(message.text)}
    thought = "".join(part.text for part in message.parts if isinstance(part, ReasoningPart))
    if thinking and thought:
        sent["thinking"] = wire_text(thought)
    if message.calls:
        sent["tool_calls"] = [
            {
                "function": {
                    "name": wire_tool_name(call.tool),
                    "arguments": RawJson(wire_arguments(call.arguments.text)),
                }
            }
            for call in message.calls
        ]
    return sent
