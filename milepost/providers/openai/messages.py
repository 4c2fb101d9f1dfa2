"""From the conversation to the input items of a response."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from milepost.domain.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)
from milepost.providers.sealed import Block, unseal
from milepost.providers.transcript import normalize
from milepost.providers.wire import WireIds, wire_arguments, wire_text, wire_tool_name

WIRE = "openai_responses"
MAX_ID = 64

_SAID = {"type": "message", "role": "assistant", "status": "completed"}
_FITS = re.compile(rf"[\x21-\x7e]{{1,{MAX_ID}}}")


def input_items(messages: Sequence[Message], provider: str, model: str) -> list[dict[str, Any]]:
    """The whole conversation as input items.

    Reasoning goes back as the very item it came as, to the model that wrote it, with all its items around it; whatever
    changed since, and whatever came without encrypted content, is dropped whole.
    """
    found: list[dict[str, Any]] = []
    ids = WireIds(_FITS, "call_", 29)
    waiting: list[str] = []
    for message in normalize(messages):
        match message:
            case UserMessage():
                found.append({"type": "message", "role": "user", "content": _content(message)})
            case AssistantMessage():
                waiting = [ids.next(call.call_id) for call in message.calls]
                found.extend(_answer(message, waiting, provider, model))
            case ToolMessage():
                text = wire_text(message.text.text)
                found.append({"type": "function_call_output", "call_id": waiting.pop(0), "output": text})
    return found


def _content(message: UserMessage) -> list[dict[str, Any]]:
    text = wire_text(message.text.text)
    parts: list[dict[str, Any]] = [{"type": "input_text", "text": text}] if text or not message.images else []
    return parts + [_image(image) for image in message.images]


def _image(image: ImagePart) -> dict[str, Any]:
    return {"type": "input_image", "image_url": f"data:{image.media_type};base64,{image.data}", "detail": "auto"}


def _answer(message: AssistantMessage, ids: Sequence[str], provider: str, model: str) -> list[dict[str, Any]]:
    blocks = unseal(message, WIRE, provider, model)
    # An id that had to be replaced is not the one that the reasoning belongs to.
    if blocks is None or [call.call_id for call in message.calls] != list(ids) or not _followed(blocks):
        text = message.text
        said = [Block(TextPart(text))] if text.strip() else []
        blocks = [*said, *(Block(call) for call in message.calls)]
    remaining = iter(ids)
    found: list[dict[str, Any]] = []
    for block in blocks:
        kept = block.extra.get("item", {})
        match block.part:
            case TextPart(text=text):
                content = [{"type": "output_text", "text": wire_text(text), "annotations": []}]
                found.append(
                    {"type": "message", "role": "assistant", "status": "completed", **kept, "content": content}
                )
            case ToolCallPart():
                found.append(_call(block.part, next(remaining), kept))
            case ReasoningPart() if kept:
                found.append(kept)
            case _:
                pass
    return found


def _call(call: ToolCallPart, call_id: str, kept: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "function_call",
        **kept,
        "call_id": call_id,
        "name": wire_tool_name(call.tool),
        "arguments": wire_arguments(call.arguments.text),
    }


def _followed(blocks: Sequence[Block]) -> bool:
    """Whether each reasoning item has the item after it that it was written for."""
    kept = [block.part for block in blocks if not isinstance(block.part, ReasoningPart) or block.extra]
    return not kept or not isinstance(kept[-1], ReasoningPart)
