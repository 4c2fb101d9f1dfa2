"""From the conversation to the contents of a request."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
from milepost.providers.wire import BEGINNING, EMPTY, wire_arguments, wire_text, wire_tool_name

WIRE = "gemini"
PLACEHOLDER = "skip_thought_signature_validator"
"""What Google documents to be sent for calls that a model without signatures made."""

_BEGINS_NAME = re.compile(r"[A-Za-z_]")

Wired = dict[str, Any]


def wire_contents(messages: Sequence[Message], provider: str, model: str, *, placeholders: bool) -> list[Wired]:
    """The contents. What was signed goes back to the model that wrote it, byte for byte and part for part.

    Calls and results are paired by their order, and by the service's own ids where it gave some. `placeholders` marks
    calls of other models.
    """
    result: list[Wired] = []
    calls: list[Block] = []
    for message in normalize(messages):
        match message:
            case UserMessage():
                # A content of its own also after results, which stand alone.
                result.append({"role": "user", "parts": _user(message)})
            case AssistantMessage():
                blocks = unseal(message, WIRE, provider, model)
                own = blocks is not None
                if blocks is None:
                    blocks = [Block(TextPart(message.text)), *map(Block, message.calls)]
                calls = [block for block in blocks if isinstance(block.part, ToolCallPart)]
                if not result:
                    result.append({"role": "user", "parts": [{"text": BEGINNING}]})
                result.append({"role": "model", "parts": _model(blocks, mark=placeholders and not own)})
            case ToolMessage():
                answered = calls.pop(0)
                if "functionResponse" not in result[-1]["parts"][0]:
                    result.append({"role": "user", "parts": []})
                result[-1]["parts"].append(_response(message, answered))
    return result


def function_name(name: str) -> str:
    """A name within the service's alphabet: it begins with a letter or an underscore."""
    name = wire_tool_name(name)
    return name if _BEGINS_NAME.match(name) else f"_{name[1:]}"


def _user(message: UserMessage) -> list[Wired]:
    images = [{"inlineData": {"mimeType": image.media_type, "data": image.data}} for image in message.images]
    text = wire_text(message.text.text)
    if not text.strip():
        return images or [{"text": EMPTY}]
    return [*images, {"text": text}]


def _model(blocks: Sequence[Block], *, mark: bool) -> list[Wired]:
    parts: list[Wired] = []
    for block in blocks:
        signature = block.extra.get("signature")
        signed = {} if signature is None else {"thoughtSignature": signature}
        match block.part:
            case None:
                thought = {"thought": True} if block.extra.get("thought") else {}
                parts.append({"text": "", **thought, **signed})
            case ReasoningPart(text=text) if signed:
                parts.append({"text": text, "thought": True, **signed})
            case TextPart(text=text) if text:
                parts.append({"text": wire_text(text), **signed})
            case ToolCallPart() as call:
                if mark:
                    signed, mark = {"thoughtSignature": PLACEHOLDER}, False
                parts.append({"functionCall": _call(call, block), **signed})
            case _:
                pass
    return parts


def _call(call: ToolCallPart, block: Block) -> Wired:
    wired: Wired = {"name": function_name(call.tool), "args": RawJson(wire_arguments(call.arguments.text))}
    return {**_id(block), **wired}


def _response(message: ToolMessage, answered: Block) -> Wired:
    assert isinstance(answered.part, ToolCallPart)  # noqa: S101 - the calls of a message are such parts
    text = wire_text(message.text.text)
    response = {"error": text} if message.is_error else {"output": text}
    return {"functionResponse": {**_id(answered), "name": function_name(answered.part.tool), "response": response}}


def _id(block: Block) -> Wired:
    return {} if block.extra.get("id") is None else {"id": block.extra["id"]}
