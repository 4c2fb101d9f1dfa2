"""The model-facing conversation, independent of any provider."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from milepost.domain.attachments import AttachmentRef
from milepost.domain.content import BlobRef, Content


class FinishReason(StrEnum):
    """Why a model stopped. `INCOMPLETE` and `STOPPED` mean that the answer is partial."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    INCOMPLETE = "incomplete"
    STOPPED = "stopped"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str
    kind: Literal["text"] = "text"


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    text: str
    kind: Literal["reasoning"] = "reasoning"


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """A call the model asked for. `arguments` is the raw JSON text as the provider sent it, never re-serialized.

    `recovered` marks a call that the model wrote as text instead of calling; the Ollama route alone takes those.
    """

    call_id: str
    tool: str
    arguments: Content
    recovered: bool = False
    kind: Literal["tool_call"] = "tool_call"


AssistantPart = TextPart | ReasoningPart | ToolCallPart


@dataclass(frozen=True, slots=True)
class ProviderState:
    """What a provider wants back unchanged (signatures, encrypted reasoning); opaque, valid for that route only."""

    provider: str
    model: str
    data: Content


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image beside a person's text.

    `blob` holds the bytes and says the media type. `data` is the bytes in base64 where the message is on its way to a
    provider, and empty in the ledger. `name` is what the person called it.
    """

    blob: BlobRef
    name: str = ""
    data: str = ""

    @property
    def media_type(self) -> str:
        return self.blob.media_type


@dataclass(frozen=True, slots=True)
class UserMessage:
    """`before` is what precedes the text: what the agent was reminded of. `files` are the attachments of a request.
    `after` is what follows: what others brought, or what is to be done with it.

    On its way to a provider they have become one text with its images.
    """

    text: Content
    images: tuple[ImagePart, ...] = ()
    before: str = ""
    files: tuple[AttachmentRef, ...] = ()
    after: str = ""
    kind: Literal["user"] = "user"


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    parts: tuple[AssistantPart, ...]
    provider_state: ProviderState | None = None
    kind: Literal["assistant"] = "assistant"

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCallPart))


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The result of one call; every call of an assistant message has exactly one before the next model call."""

    call_id: str
    tool: str
    text: Content
    is_error: bool = False
    kind: Literal["tool"] = "tool"


Message = UserMessage | AssistantMessage | ToolMessage


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """An answer as JSON. `json_schema` is what it must satisfy; None: any JSON object.

    `name` (letters, digits, `_`, `-`) is for the provider. `strict` asks for constrained decoding where there is one.
    """

    json_schema: dict[str, Any] | None = None
    name: str = "answer"
    strict: bool = True


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings; None leaves the provider's default."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    reasoning_effort: str | None = None
    stop: tuple[str, ...] = field(default=())
    response_format: ResponseFormat | None = None
