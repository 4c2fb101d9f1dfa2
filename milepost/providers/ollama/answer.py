"""Reading the lines of a chat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from milepost.domain.content import Content
from milepost.domain.errors import ModelAnswerTooLarge, ModelUnavailable
from milepost.domain.messages import AssistantPart, FinishReason, ReasoningPart, TextPart, ToolCallPart
from milepost.domain.usage import UNKNOWN_USAGE, Usage
from milepost.ports.models import ModelRequest, ReasoningDelta, TextDelta
from milepost.providers.answers import Ending
from milepost.providers.call_ids import generated_call_id
from milepost.providers.calls import MAX_CALLS, usable_id
from milepost.providers.endpoint import Delta
from milepost.providers.events import event_object, items, member, text_of, token_count, tool_name
from milepost.providers.faults import Refusal
from milepost.providers.ollama.recovery import written_calls
from milepost.providers.raw_json import raw_at, raw_items
from milepost.providers.sealed import Block

_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
LOADING = "load"
"""The reason of an answer that only says that the model is loaded now."""


class ChatAnswer:
    """`endpoint.Answer` of one chat. With `recover`, calls that the whole text consists of are taken as calls."""

    def __init__(self, request: ModelRequest, tools: Sequence[str], *, recover: bool) -> None:
        self._provider = request.provider
        self._key = request.idempotency_key
        self._tools = frozenset(tools)
        self._recover = recover
        self._parts: list[tuple[type[AssistantPart], list[str]]] = []
        self._calls: list[ToolCallPart] = []
        self._usage = UNKNOWN_USAGE
        self._model = ""
        self._raw = ""
        self._made = 0
        self.notes: list[str] = []
        self.finished = False
        self.resumed = False

    def feed(self, event: str) -> Iterable[Delta]:
        value = event_object(self._provider, event)
        if value.get("error"):
            raise Refusal(500, value)
        self._model = self._model or text_of(value, "model", [])
        message = member(self._provider, value, "message", "a message")
        deltas = [*self._text(message, "thinking"), *self._text(message, "content")]
        calls = items(self._provider, message, "tool_calls", "a tool call")
        if calls:
            # Once for all of them: each look at the text reads all of it.
            written = raw_items(raw_at(event, "message", "tool_calls") or "[]")
            for call, text in zip(calls, written, strict=True):
                self._call(call, raw_at(text, "function", "arguments"))
        self.resumed = self.resumed or (self.finished and bool(deltas or calls))
        if value.get("done") is True and not self.finished:
            self._end(value)
        return deltas

    def _text(self, message: dict[str, Any], key: str) -> list[Delta]:
        piece = text_of(message, key, self.notes)
        if not piece:
            return []
        kind: type[AssistantPart] = ReasoningPart if key == "thinking" else TextPart
        if not self._parts or self._parts[-1][0] is not kind:
            self._parts.append((kind, []))
        self._parts[-1][1].append(piece)
        return [ReasoningDelta(piece) if key == "thinking" else TextDelta(piece)]

    def _call(self, call: dict[str, Any], raw: str | None) -> None:
        function = member(self._provider, call, "function", "the function of a tool call")
        name = tool_name(self._provider, function.get("name"))
        arguments = function.get("arguments")
        # A server that sends a text has the arguments inside it.
        text = arguments if isinstance(arguments, str) else raw or "{}"
        self._calls.append(ToolCallPart(self._call_id(call.get("id")), name, Content(text)))

    def _call_id(self, sent: object) -> str:
        if len(self._calls) >= MAX_CALLS:
            raise ModelAnswerTooLarge(f"The model made more than {MAX_CALLS} tool calls in one answer.")
        if isinstance(sent, str) and sent and usable_id(sent) and all(call.call_id != sent for call in self._calls):
            return sent
        # Ollama's own calls have no ids of worth; making them is nothing to report.
        return generated_call_id(self._key, len(self._calls))

    def _end(self, value: dict[str, Any]) -> None:
        self._raw = str(value.get("done_reason") or "stop")
        if self._raw == LOADING and not self._parts and not self._calls:
            raise ModelUnavailable(f"Provider '{self._provider}' loaded the model and did not answer yet.")
        self.finished = True
        sent, answered = token_count(value.get("prompt_eval_count")), token_count(value.get("eval_count"))
        # A prompt that was in the cache as a whole is not counted by some releases: unknown, not zero.
        complete = sent is not None and answered is not None
        self._usage = Usage(input_tokens=sent or 0, output_tokens=answered or 0, complete=complete)

    def blocks(self) -> list[Block]:
        parts: list[AssistantPart] = [kind("".join(pieces)) for kind, pieces in self._parts]  # type: ignore[call-arg]
        return [Block(part) for part in (*self._recovered(parts), *self._calls)]

    def _recovered(self, parts: list[AssistantPart]) -> list[AssistantPart]:
        text = "".join(part.text for part in parts if isinstance(part, TextPart))
        if not self._recover or self._calls or self._raw == "length":
            return parts
        written = written_calls(text, self._tools)
        if not written:
            return parts
        names = ", ".join(f"'{call.tool}'" for call in written)
        self.notes.append(f"The model wrote its call of {names} as text; it was recovered and is run like any other.")
        calls = [
            ToolCallPart(generated_call_id(self._key, at), call.tool, Content(call.arguments), recovered=True)
            for at, call in enumerate(written)
        ]
        return [*(part for part in parts if not isinstance(part, TextPart)), *calls]

    def ending(self) -> Ending:
        finish = _FINISH.get(self._raw, FinishReason.OTHER)
        return Ending(finish, self._raw, self._usage, self._model)
