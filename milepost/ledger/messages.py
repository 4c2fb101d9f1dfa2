"""Messages from the JSON-shaped values that `codec.to_json` makes of them.

Written out, since a whole conversation is read at once: it takes a fifth of the time that the general converter does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from milepost.domain.attachments import AttachmentRef, AttachmentState
from milepost.domain.content import BlobRef, Content
from milepost.domain.messages import (
    AssistantMessage,
    AssistantPart,
    ImagePart,
    Message,
    ProviderState,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)

Value = Mapping[str, Any]


def read_messages(values: Sequence[Value]) -> tuple[Message, ...]:
    """Raises KeyError, TypeError: values of another shape."""
    return tuple([_READ[value["kind"]](value) for value in values])


def _content(value: Value) -> Content:
    blob = value["blob"]
    return Content(value["text"]) if blob is None else Content(value["text"], _blob(blob))


def _blob(value: Value) -> BlobRef:
    return BlobRef(value["digest"], value["size"], value["media_type"])


def _user(value: Value) -> UserMessage:
    images = [ImagePart(_blob(image["blob"]), image["name"], image["data"]) for image in value["images"]]
    files = tuple([_file(file) for file in value.get("files", ())])
    return UserMessage(_content(value["text"]), tuple(images), value["before"], files, value.get("after", ""))


def _file(value: Value) -> AttachmentRef:
    text, image = value["text"], value["image"]
    return AttachmentRef(
        value["attachment_id"],
        value["name"],
        _blob(value["blob"]),
        AttachmentState(value["state"]),
        None if text is None else _blob(text),
        None if image is None else _blob(image),
        value["note"],
    )


def _assistant(value: Value) -> AssistantMessage:
    state = value["provider_state"]
    if state is not None:
        state = ProviderState(state["provider"], state["model"], _content(state["data"]))
    return AssistantMessage(tuple([_part(part) for part in value["parts"]]), state)


def _part(value: Value) -> AssistantPart:
    match value["kind"]:
        case "text":
            return TextPart(value["text"])
        case "reasoning":
            return ReasoningPart(value["text"])
        case "tool_call":
            arguments = _content(value["arguments"])
            return ToolCallPart(value["call_id"], value["tool"], arguments, value["recovered"])
    raise KeyError(value["kind"])


def _tool(value: Value) -> ToolMessage:
    return ToolMessage(value["call_id"], value["tool"], _content(value["text"]), value["is_error"])


_READ: dict[str, Callable[[Value], Message]] = {"user": _user, "assistant": _assistant, "tool": _tool}
