"""From the conversation to the messages of a request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from milepost.domain.messages import AssistantMessage, Message, ReasoningPart, TextPart, ToolMessage, UserMessage
from milepost.providers.sealed import Block, unseal
from milepost.providers.transcript import normalize
from milepost.providers.wire import BEGINNING, EMPTY, WireIds, wire_arguments, wire_text, wire_tool_name

WIRE = "mistral"
INTERRUPTED = "(interrupted)"
"""Stands between results and the user's next message, where the service wants the assistant to have spoken."""

_CALL_ID = re.compile(r"[A-Za-z0-9]{9}")

WireMessage = dict[str, Any]


def wire_messages(
    messages: Sequence[Message], system_prompt: str, provider: str, model: str, *, thinking: bool
) -> list[WireMessage]:
    """The messages. Thinking goes back, if at all, to the model that wrote it, byte for byte."""
    result: list[WireMessage] = []
    ids = WireIds(_CALL_ID, "", 9)
    open_ids: list[str] = []
    for message in normalize(messages):
        match message:
            case UserMessage():
                if result and result[-1]["role"] == "tool":
                    result.append({"role": "assistant", "content": INTERRUPTED})
                result.append({"role": "user", "content": _user(message)})
            case AssistantMessage():
                open_ids = [ids.next(call.call_id) for call in message.calls]
                blocks = unseal(message, WIRE, provider, model) if thinking else None
                if not result:
                    result.append({"role": "user", "content": BEGINNING})
                result.append(_assistant(message, blocks, open_ids))
            case ToolMessage():
                result.append(
                    {
                        "role": "tool",
                        "name": wire_tool_name(message.tool),
                        "content": wire_text(message.text.text),
                        "tool_call_id": open_ids.pop(0),
                    }
                )
    if result and (prompt := wire_text(system_prompt).strip()):
        result.insert(0, {"role": "system", "content": prompt})
    return result


def _user(message: UserMessage) -> str | list[dict[str, Any]]:
    text = wire_text(message.text.text)
    if not message.images:
        return text if text.strip() else EMPTY
    images = [
        {"type": "image_url", "image_url": f"data:{image.media_type};base64,{image.data}"} for image in message.images
    ]
    return [*([{"type": "text", "text": text}] if text.strip() else []), *images]


def _assistant(message: AssistantMessage, blocks: list[Block] | None, ids: Sequence[str]) -> WireMessage:
    result: WireMessage = {"role": "assistant"}
    content = _thought(blocks or ()) or wire_text(message.text)
    if not isinstance(content, str) or content.strip():
        result["content"] = content
    if message.calls:
        result["tool_calls"] = [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": wire_tool_name(call.tool), "arguments": wire_arguments(call.arguments.text)},
            }
            for call, call_id in zip(message.calls, ids, strict=True)
        ]
    return result


def _thought(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """Content with thinking, in the order in which it came."""
    content: list[dict[str, Any]] = []
    for block in blocks:
        match block.part:
            case ReasoningPart(text=thought) if thought.strip():
                content.append({"type": "thinking", "thinking": [{"type": "text", "text": thought}], **block.extra})
            case TextPart(text=text) if text:
                content.append({"type": "text", "text": wire_text(text)})
    return content
