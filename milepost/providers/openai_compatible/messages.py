"""From the conversation to the library's messages, fit for the wire."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_ai.messages import (
    ImageUrl,
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
from milepost.providers.openai_compatible.state import restore
from milepost.providers.transcript import normalize
from milepost.providers.wire import wire_arguments, wire_ids, wire_text, wire_tool_name


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
                result.append(ModelRequest(parts=[_prompt(f"{prefix}\n\n{text}" if prefix else text, message)]))
                prefix = ""
            case AssistantMessage():
                ids = wire_ids(message)
                result.append(_response(message, ids, provider, model))
            case ToolMessage():
                content = wire_text(message.text.text)
                name, call_id = wire_tool_name(message.tool), ids.pop(0)
                result.append(ModelRequest(parts=[ToolReturnPart(name, content, tool_call_id=call_id)]))
    if prefix:
        result.insert(0, ModelRequest(parts=[UserPromptPart(prefix)]))
    return result


def _prompt(text: str, message: UserMessage) -> UserPromptPart:
    if not message.images:
        return UserPromptPart(text)
    images = [
        ImageUrl(f"data:{image.media_type};base64,{image.data}", media_type=image.media_type)
        for image in message.images
    ]
    return UserPromptPart([*([text] if text else []), *images])


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
