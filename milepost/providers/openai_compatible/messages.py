"""From the conversation to the library's messages, fit for the wire."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from milepost.domain.messages import AssistantMessage, Message, ToolMessage, UserMessage
from milepost.domain.providers import SystemRole
from milepost.providers.openai_compatible.calls import parse_object
from milepost.providers.openai_compatible.state import restore
from milepost.providers.transcript import normalize

MAX_WIRE_ID = 40
MAX_WIRE_NAME = 64

_UNSENDABLE = re.compile("[\x00\ud800-\udfff]")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_WIRE_ID = re.compile(rf"[\x21-\x7e]{{1,{MAX_WIRE_ID}}}\Z")


def wire_text(text: str) -> str:
    """Text as an endpoint can take it: lone surrogates (not UTF-8) and NUL (ends a C string) become U+FFFD."""
    return _UNSENDABLE.sub("\ufffd", text)


def wire_tool_name(name: str) -> str:
    """A tool name of a past call within OpenAI's alphabet (letters, digits, `_`, `-`; 64 characters)."""
    return _NOT_IN_NAMES.sub("_", name)[:MAX_WIRE_NAME] or "unnamed"


def wire_arguments(raw: str) -> str:
    """The arguments of a past call: the raw text when it is a JSON object.

    Servers that parse them refuse anything else, so an object inside a JSON string is unpacked, nothing becomes `{}`,
    and text that is no object is wrapped, for the model to see what it wrote.
    """
    raw = wire_text(raw)
    if not raw.strip():
        return "{}"
    if parse_object(raw) is not None:
        return raw
    try:
        inner = json.loads(raw)
    except (ValueError, RecursionError):
        inner = None
    if isinstance(inner, str) and parse_object(inner) is not None:
        return wire_text(inner)
    return json.dumps({"malformed_arguments": raw}, ensure_ascii=False)


def library_messages(
    messages: Sequence[Message], system_prompt: str, role: SystemRole, provider: str, model: str
) -> list[ModelMessage]:
    """The whole conversation. Provider state is used for the same provider and model, else dropped whole."""
    result: list[ModelMessage] = []
    prefix = wire_text(system_prompt)
    if prefix and role is not SystemRole.USER:
        result.append(ModelRequest(parts=[SystemPromptPart(prefix)]))
        prefix = ""
    ids: list[str] = []
    for message in normalize(messages):
        match message:
            case UserMessage():
                text = wire_text(message.text.text)
                # Two neighboring user messages break templates that want roles to alternate.
                result.append(ModelRequest(parts=[UserPromptPart(f"{prefix}\n\n{text}" if prefix else text)]))
                prefix = ""
            case AssistantMessage():
                ids = _wire_ids(message)
                result.append(_response(message, ids, provider, model))
            case ToolMessage():
                content = wire_text(message.text.text)
                name, call_id = wire_tool_name(message.tool), ids.pop(0)
                result.append(ModelRequest(parts=[ToolReturnPart(name, content, tool_call_id=call_id)]))
    if prefix:
        result.insert(0, ModelRequest(parts=[UserPromptPart(prefix)]))
    return result


def _response(message: AssistantMessage, ids: Sequence[str], provider: str, model: str) -> ModelResponse:
    restored = restore(message, provider, model)
    if restored is None:
        text = message.text
        calls = [ToolCallPart(call.tool, call.arguments.text, tool_call_id=call.call_id) for call in message.calls]
        restored = ModelResponse(parts=[*([TextPart(text)] if text.strip() else []), *calls])
    remaining = iter(ids)
    for part in restored.parts:
        if isinstance(part, TextPart):
            part.content = wire_text(part.content)
        elif isinstance(part, ToolCallPart):
            part.tool_name = wire_tool_name(part.tool_name)
            part.args = wire_arguments(part.args if isinstance(part.args, str) else "")
            part.tool_call_id = next(remaining)
    return restored


def _wire_ids(message: AssistantMessage) -> list[str]:
    """One id per call, unique within the message; an id the wire does not allow is replaced by its digest."""
    result: list[str] = []
    for index, call in enumerate(message.calls):
        call_id = call.call_id
        if not _WIRE_ID.match(call_id) or call_id in result:
            digest = hashlib.sha256(f"{call_id}\n{index}".encode("utf-8", "surrogatepass")).hexdigest()
            call_id = f"call_{digest[:24]}"
        result.append(call_id)
    return result
