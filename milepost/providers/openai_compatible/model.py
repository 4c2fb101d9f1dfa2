"""The library's chat model with the behavior this product needs: raw arguments, exact send-back, bounded streams."""

from __future__ import annotations

import json
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from openai import omit
from openai.types import chat
from openai.types.chat import ChatCompletionChunk, chat_completion_chunk
from pydantic_ai.messages import (
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIStreamedResponse
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider as LibraryProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from milepost.domain.errors import ModelAnswerMalformed, ModelAnswerTooLarge
from milepost.domain.providers import EndpointProfile, ThinkingReturn
from milepost.ports.models import ReasoningDelta, TextDelta
from milepost.providers.calls import CallAssembler
from milepost.providers.openai_compatible.details import ReasoningDetails
from milepost.providers.openai_compatible.shapes import tidy
from milepost.providers.wire import wire_text

_DEFAULT_TAGS = ("<think>", "</think>")
_NO_TAGS = ("", "")
_REASONING = ("reasoning", "reasoning_content")


def library_profile(profile: EndpointProfile) -> OpenAIModelProfile:
    """Every flag the library would otherwise guess from a model's name."""
    return OpenAIModelProfile(
        supports_tools=profile.supports_tools,
        json_schema_transformer=None,
        thinking_tags=profile.thinking_tags or _NO_TAGS,
        ignore_streamed_leading_whitespace=False,
        openai_chat_streaming_requires_finish_reason=True,
        openai_chat_supports_max_completion_tokens=profile.max_tokens_field == "max_completion_tokens",
        openai_system_prompt_role=profile.system_role.value,
        openai_chat_thinking_field=profile.thinking_field,
        # Reasoning goes back through `ChatModel._map_model_response`; the library's own ways change earlier messages.
        openai_chat_send_back_thinking_parts=False,
        openai_supports_strict_tool_definition=False,
        openai_supports_reasoning=False,
        openai_unsupported_model_settings=(),
    )


@dataclass(init=False)
class ChatModel(OpenAIChatModel):
    """One model of one endpoint, for one call. `diagnostics` collects what the library warns about."""

    def __init__(self, model: str, provider: LibraryProvider, endpoint: EndpointProfile) -> None:
        super().__init__(model, provider=provider)
        self._endpoint = endpoint
        self.diagnostics: list[str] = []

    def prepare_request(
        self, model_settings: ModelSettings | None, model_request_parameters: ModelRequestParameters
    ) -> tuple[ModelSettings | None, ModelRequestParameters]:
        # No await inside: the warning filters, which belong to the process, are changed for this block only.
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            prepared = super().prepare_request(model_settings, model_request_parameters)
        self.diagnostics.extend(str(warning.message) for warning in caught)
        return prepared

    @property
    def _streamed_response_cls(self) -> type[OpenAIStreamedResponse]:
        return ChatStream

    def _get_stream_options(self, model_settings: Any) -> chat.ChatCompletionStreamOptionsParam:
        if not self._endpoint.stream_usage:
            return cast(chat.ChatCompletionStreamOptionsParam, omit)
        return super()._get_stream_options(model_settings)

    def _map_model_response(self, message: ModelResponse) -> chat.ChatCompletionMessageParam | None:
        """Text and arguments byte for byte; the library would re-serialize the one and put blank lines in the other."""
        text: list[str] = []
        fields: dict[str, list[str]] = {}
        calls: list[dict[str, Any]] = []
        for part in message.parts:
            if isinstance(part, TextPart):
                text.append(part.content)
            elif isinstance(part, ThinkingPart):
                self._return_thinking(part, text, fields)
            elif isinstance(part, ToolCallPart):
                calls.append(_wire_call(part))
        if not calls and not "".join(text).strip():
            return None
        result: dict[str, Any] = {"role": "assistant", "content": "".join(text) or None}
        details = (message.provider_details or {}).get("reasoning_details")
        if details:
            # They hold the same reasoning, with what proves it.
            result["reasoning_details"] = details
        else:
            result.update({name: "".join(pieces) for name, pieces in fields.items()})
        if calls:
            result["tool_calls"] = calls
        return cast(chat.ChatCompletionMessageParam, result)

    def _return_thinking(self, part: ThinkingPart, text: list[str], fields: dict[str, list[str]]) -> None:
        how = self._endpoint.thinking_return
        content = wire_text(part.content)
        from_tags = part.id in (None, "content")
        if how is ThinkingReturn.TAGS or (how is ThinkingReturn.AUTO and from_tags):
            start, end = self._endpoint.thinking_tags or _DEFAULT_TAGS
            text.append(f"{start}{content}{end}")
        elif how is not ThinkingReturn.NEVER:
            name = self._endpoint.thinking_field or (part.id if not from_tags else None)
            if name:
                fields.setdefault(name, []).append(content)


def _wire_call(part: ToolCallPart) -> dict[str, Any]:
    function = {"name": part.tool_name, "arguments": part.args if isinstance(part.args, str) else "{}"}
    call: dict[str, Any] = {"id": part.tool_call_id, "type": "function", "function": function}
    # Gemini's thought signature on its OpenAI-compatible route.
    extra = (part.provider_details or {}).get("extra_content")
    return {**call, "extra_content": extra} if extra else call


@dataclass
class ChatStream(OpenAIStreamedResponse):
    """The stream of one answer. The fields without `init` are set by `begin` before it is read."""

    assembler: CallAssembler = field(default_factory=lambda: CallAssembler(""), init=False)
    max_events: int = field(default=0, init=False)
    on_finish: Callable[[], None] = field(default=lambda: None, init=False)
    on_resume: Callable[[], None] = field(default=lambda: None, init=False)
    raw_finish: str | None = field(default=None, init=False)
    resumed: bool = field(default=False, init=False)
    usage_reports: list[Mapping[str, Any]] = field(default_factory=list, init=False)
    events_seen: int = field(default=0, init=False)
    details: ReasoningDetails = field(default_factory=ReasoningDetails, init=False)
    notes: list[str] = field(default_factory=list, init=False)

    def begin(
        self, idempotency_key: str, max_events: int, on_finish: Callable[[], None], on_resume: Callable[[], None]
    ) -> None:
        """Set what the library's constructor has no room for.

        `on_finish` is called at the finish reason, `on_resume` when more of the answer comes after it.
        """
        self.assembler = CallAssembler(idempotency_key)
        self.max_events = max_events
        self.on_finish = on_finish
        self.on_resume = on_resume

    async def deltas(self) -> AsyncGenerator[TextDelta | ReasoningDelta, None]:
        """Text and reasoning as they come; calls and usage are complete when this ends."""
        async for event in self._get_event_iterator():
            match event:
                case PartStartEvent(part=TextPart(content=text)) if text:
                    yield TextDelta(text)
                case PartDeltaEvent(delta=TextPartDelta(content_delta=text)) if text:
                    yield TextDelta(text)
                case PartStartEvent(part=ThinkingPart(content=text)) if text:
                    yield ReasoningDelta(text)
                case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(text))) if text:
                    yield ReasoningDelta(text)
                case _:
                    pass

    async def _validate_response(self) -> AsyncIterator[ChatCompletionChunk]:
        async for chunk in self._response:
            self.events_seen += 1
            if self.events_seen > self.max_events:
                raise ModelAnswerTooLarge(
                    f"Provider '{self.provider_name}' sent more than {self.max_events} events in one answer.",
                    field="limits.events",
                    fix="Ask for a shorter answer.",
                )
            if not isinstance(chunk, ChatCompletionChunk):
                raise TypeError(f"a stream event is a JSON {type(chunk).__name__}, not an object")
            if not self._tidy(chunk):
                continue
            if chunk.choices and (extra := chunk.choices[0].delta and chunk.choices[0].delta.model_extra):
                self.details.add(extra.get("reasoning_details"))
            if chunk.choices:
                self._note_finish(chunk.choices[0])
            yield chunk

    def _note_finish(self, choice: chat_completion_chunk.Choice) -> None:
        if self.raw_finish is None and choice.finish_reason:
            self.raw_finish = choice.finish_reason
            self.on_finish()
        elif self.raw_finish is not None and _says_more(choice.delta):
            # Some servers give a reason with each event, which then ends nothing.
            self.resumed = True
            self.on_resume()

    def _tidy(self, chunk: ChatCompletionChunk) -> bool:
        """Whether the event can be read. After the finish reason the answer is whole, whatever else comes."""
        readable = True
        try:
            found = tidy(chunk, self.provider_name)
        except (ModelAnswerMalformed, TypeError):
            if self.raw_finish is None:
                raise
            readable, found = False, ["An event after the finish reason could not be read."]
        self.notes += [note for note in found if note not in self.notes]
        return readable

    def _map_usage(self, response: ChatCompletionChunk) -> RequestUsage:
        if response.usage is not None:
            self.usage_reports.append(response.usage.model_dump(warnings=False))
            del self.usage_reports[:-8]
        return RequestUsage()

    def _map_tool_call_delta(self, choice: chat_completion_chunk.Choice) -> Iterable[ModelResponseStreamEvent]:
        for piece in choice.delta.tool_calls or []:
            function = piece.function
            name = function.name if function is not None else None
            arguments = _raw_arguments(function.arguments if function is not None else None)
            index = piece.index if isinstance(cast(object, piece.index), int) else None
            known = len(self.assembler.calls)
            call = self.assembler.add(index, piece.id if isinstance(piece.id, str) else None, name, arguments)
            begun = len(self.assembler.calls) > known
            extra = (piece.model_extra or {}).get("extra_content")
            for event in self._parts_manager.handle_tool_call_delta_events(
                vendor_part_id=("call", call.call_id),
                tool_name=call.tool if begun else call.new_name or None,
                args=arguments,
                tool_call_id=call.call_id,
                provider_name=self.provider_name if extra else None,
                provider_details={"extra_content": extra} if extra else None,
            ):
                if isinstance(event, PartStartEvent):
                    self._advance_part_boundary("tool")
                yield event


def _says_more(delta: chat_completion_chunk.ChoiceDelta | None) -> bool:
    extra = (delta.model_extra if delta is not None else None) or {}
    return bool(delta and (delta.content or delta.tool_calls or any(extra.get(name) for name in _REASONING)))


def _raw_arguments(sent: object) -> str | None:
    """The text of the arguments; some servers send the object itself."""
    return sent if sent is None or isinstance(sent, str) else json.dumps(sent)
