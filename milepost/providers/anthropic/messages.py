"""From the conversation to the messages of a request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from milepost.domain.messages import (
    AssistantMessage,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)
from milepost.providers.raw_json import RawJson
from milepost.providers.sealed import Block, unseal
from milepost.providers.transcript import normalize
from milepost.providers.wire import BEGINNING, EMPTY, WireIds, wire_arguments, wire_text, wire_tool_name

WIRE = "anthropic"

_CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

WireMessage = dict[str, Any]


def wire_messages(
    messages: Sequence[Message], provider: str, model: str, *, thinking: bool
) -> tuple[list[WireMessage], bool]:
    """The messages, and whether the model may think: asked for with `thinking`, refused by an open tool call without.

    Thinking goes back to the model that wrote it, byte for byte; without thinking there is none in the messages.
    """
    conversation = normalize(messages)
    sealed = [
        unseal(message, WIRE, provider, model) if isinstance(message, AssistantMessage) else None
        for message in conversation
    ]
    thinking = thinking and _may_think(conversation, sealed)
    result: list[WireMessage] = []
    ids = WireIds(_CALL_ID, "call_", 29)
    open_ids: list[str] = []
    for message, blocks in zip(conversation, sealed, strict=True):
        match message:
            case UserMessage():
                _append(result, "user", _user(message))
            case AssistantMessage():
                open_ids = [ids.next(call.call_id) for call in message.calls]
                _append(result, "assistant", _assistant(message, blocks, open_ids, thinking=thinking))
            case ToolMessage():
                _append(result, "user", [_result(message, open_ids.pop(0))])
    if result and result[0]["role"] == "assistant":
        result.insert(0, {"role": "user", "content": [_text(BEGINNING)]})
    return result, thinking


def _may_think(conversation: Sequence[Message], sealed: Sequence[list[Block] | None]) -> bool:
    """An answer whose calls are being answered has to begin with thinking, if there is to be any."""
    for at in range(len(conversation) - 1, -1, -1):
        message, blocks = conversation[at], sealed[at]
        # A text right after results is one message with them, and the calls are still being answered.
        if isinstance(message, UserMessage) and not (at and isinstance(conversation[at - 1], ToolMessage)):
            return True
        if isinstance(message, AssistantMessage) and not (blocks and _is_thinking(blocks[0])):
            return False
    return True


def _is_thinking(block: Block) -> bool:
    return block.part is None or (isinstance(block.part, ReasoningPart) and "signature" in block.extra)


def _append(result: list[WireMessage], role: str, content: list[dict[str, Any]]) -> None:
    if result and result[-1]["role"] == role:
        result[-1]["content"].extend(content)
    else:
        result.append({"role": role, "content": content})


def _user(message: UserMessage) -> list[dict[str, Any]]:
    images = [
        {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": image.data}}
        for image in message.images
    ]
    text = wire_text(message.text.text)
    return [*images, *([_text(text)] if text.strip() or not images else [])]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text if text.strip() else EMPTY}


def _result(message: ToolMessage, call_id: str) -> dict[str, Any]:
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id}
    if message.text.text:
        result["content"] = wire_text(message.text.text)
    if message.is_error:
        result["is_error"] = True
    return result


def _assistant(
    message: AssistantMessage, blocks: list[Block] | None, ids: Iterable[str], *, thinking: bool
) -> list[dict[str, Any]]:
    remaining = iter(ids)
    if blocks is None:
        # Text first: whatever wrote this may have mixed it with calls.
        blocks = [Block(TextPart(message.text)), *map(Block, message.calls)]
    content: list[dict[str, Any]] = []
    for block in blocks:
        match block.part:
            case None if thinking:
                content.append({"type": "redacted_thinking", "data": block.extra["data"]})
            case ReasoningPart(text=thought) if thinking and "signature" in block.extra:
                content.append({"type": "thinking", "thinking": thought, "signature": block.extra["signature"]})
            case TextPart(text=text) if text.strip():
                content.append({"type": "text", "text": wire_text(text)})
            case ToolCallPart() as call:
                arguments = RawJson(wire_arguments(call.arguments.text))
                name = wire_tool_name(call.tool)
                content.append({"type": "tool_use", "id": next(remaining), "name": name, "input": arguments})
            case _:
                pass
    return content
