"""The model-facing conversation, independent of any provider."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from milepost.domain.content import Content


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
    """A call the model asked for. `arguments` is the raw JSON text as the provider sent it, never re-serialized."""

    call_id: str
    tool: str
    arguments: Content
    kind: Literal["tool_call"] = "tool_call"


AssistantPart = TextPart | ReasoningPart | ToolCallPart


@dataclass(frozen=True, slots=True)
class ProviderState:
    """What a provider wants back unchanged (signatures, encrypted reasoning); opaque, valid for that route only."""

    provider: str
    model: str
    data: Content


@dataclass(frozen=True, slots=True)
class UserMessage:
    text: Content
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
class Sampling:
    """Sampling settings; None leaves the provider's default."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    reasoning_effort: str | None = None
    stop: tuple[str, ...] = field(default=())
