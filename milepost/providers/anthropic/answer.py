"""Reading the events of a message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from milepost.domain.content import Content
from milepost.domain.errors import ModelAnswerTooLarge
from milepost.domain.messages import FinishReason, ReasoningPart, TextPart, ToolCallPart
from milepost.ports.models import ModelRequest, ReasoningDelta, TextDelta
from milepost.providers.answers import Ending
from milepost.providers.anthropic.usage import UsageReports
from milepost.providers.call_ids import generated_call_id
from milepost.providers.calls import MAX_CALLS, usable_id
from milepost.providers.endpoint import Delta
from milepost.providers.events import event_object, kind_name, member, note, text_of, tool_name
from milepost.providers.faults import Refusal, malformed
from milepost.providers.raw_json import raw_at
from milepost.providers.sealed import Block, joined_signature

STATUS_OF = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""HTTP statuses that types of errors stand for inside a stream; 500 for any other."""

_FINISH = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_use": FinishReason.TOOL_CALLS,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "refusal": FinishReason.CONTENT_FILTER,
}

_TYPE_OF_DELTA = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "thinking"}


@dataclass(slots=True)
class _Open:
    """A content block in the making. `pieces` is its text, thinking, or raw input; `begun` the input it began with."""

    kind: str
    pieces: list[str] = field(default_factory=list)
    begun: str = ""
    signature: str = ""
    data: str = ""
    call_id: str = ""
    tool: str = ""


class MessageAnswer:
    """`endpoint.Answer` of one message."""

    def __init__(self, request: ModelRequest) -> None:
        self._provider = request.provider
        self._key = request.idempotency_key
        self._blocks: list[_Open] = []
        self._by_index: dict[int, _Open] = {}
        self._reports = UsageReports()
        self._model = ""
        self._raw = ""
        self._refusal: str | None = None
        self._made = 0
        self.notes: list[str] = []
        self.finished = False
        self.resumed = False

    def feed(self, event: str) -> Iterable[Delta]:
        value = event_object(self._provider, event)
        match value.get("type"):
            case "message_start":
                message = member(self._provider, value, "message", "a message")
                self._model = text_of(message, "model", [])
                self._reports.add(message.get("usage"), end=False)
            case "content_block_start" | "content_block_delta" as kind:
                self.resumed = self.finished
                return self._start(value, event) if kind == "content_block_start" else self._delta(value, event)
            case "message_delta":
                self._message_delta(value)
            case "error":
                error = value.get("error")
                kind = error.get("type") if isinstance(error, dict) else None
                raise Refusal(STATUS_OF.get(str(kind), 500), value)
        # `ping`, `content_block_stop`, `message_stop` and what is not known say nothing that is needed.
        return ()

    def _start(self, event: dict[str, Any], text: str) -> Iterable[Delta]:
        block = member(self._provider, event, "content_block", "a content block")
        opened = _Open(str(block.get("type")))
        match opened.kind:
            case "text":
                opened.pieces.append(text_of(block, "text", self.notes))
            case "thinking":
                opened.pieces.append(text_of(block, "thinking", self.notes))
                opened.signature = text_of(block, "signature", [])
            case "redacted_thinking":
                opened.data = text_of(block, "data", self.notes)
            case "tool_use":
                opened.tool = tool_name(self._provider, block.get("name"))
                opened.call_id = self._call_id(block.get("id"))
                if block.get("input") is not None:
                    # As it is written: no reader's numbers and escapes.
                    opened.begun = raw_at(text, "content_block", "input") or ""
            case kind:
                note(self.notes, f"A block of {kind_name(kind)} is not understood and was left out.")
        self._blocks.append(opened)
        index = event.get("index")
        if isinstance(index, int):
            self._by_index[index] = opened
        return _deltas(opened.kind, "".join(opened.pieces))

    def _call_id(self, sent: object) -> str:
        calls = [block for block in self._blocks if block.kind == "tool_use"]
        if len(calls) >= MAX_CALLS:
            raise ModelAnswerTooLarge(f"The model made more than {MAX_CALLS} tool calls in one answer.")
        if isinstance(sent, str) and usable_id(sent) and all(call.call_id != sent for call in calls):
            return sent
        self._made += 1
        return generated_call_id(self._key, len(calls))

    def _delta(self, event: dict[str, Any], text: str) -> Iterable[Delta]:
        delta = member(self._provider, event, "delta", "a delta")
        kind = str(delta.get("type"))
        block = self._block_of(event.get("index"), kind)
        match kind:
            case "text_delta":
                piece = text_of(delta, "text", self.notes)
            case "thinking_delta":
                piece = text_of(delta, "thinking", self.notes)
            case "signature_delta":
                piece, signature = "", text_of(delta, "signature", [])
                block.signature = joined_signature(block.signature, signature)
            case "input_json_delta":
                sent = delta.get("partial_json")
                piece = sent if isinstance(sent, str) else raw_at(text, "delta", "partial_json") or ""
            case _:
                return ()
        block.pieces.append(piece)
        return _deltas(block.kind, piece)

    def _block_of(self, index: object, kind: str) -> _Open:
        """The block that a delta belongs to: by its index, else the last one, else one that was never begun."""
        block = self._by_index.get(index) if isinstance(index, int) else None
        if block is None and self._blocks and not isinstance(index, int):
            block = self._blocks[-1]
        if block is None:
            if kind not in _TYPE_OF_DELTA:
                raise malformed(
                    self._provider, index, "a delta of a block that was never begun: its index", "a known one"
                )
            block = _Open(_TYPE_OF_DELTA[kind])
            self._blocks.append(block)
            if isinstance(index, int):
                self._by_index[index] = block
        return block

    def _message_delta(self, event: dict[str, Any]) -> None:
        delta = member(self._provider, event, "delta", "a delta")
        reason = delta.get("stop_reason")
        if reason and not self.finished:
            self._raw = str(reason)
            self.finished = True
            explained = delta.get("stop_details")
            if isinstance(explained, dict) and isinstance(explained.get("explanation"), str):
                self._refusal = explained["explanation"]
        self._reports.add(event.get("usage"), end=self.finished)

    def blocks(self) -> list[Block]:
        return [made for block in self._blocks if (made := _made(block)) is not None]

    def ending(self) -> Ending:
        return Ending(
            finish=_FINISH.get(self._raw, FinishReason.OTHER),
            raw=self._raw,
            usage=self._reports.usage(),
            model=self._model,
            made_ids=self._made,
            refusal=self._refusal,
        )


def _deltas(kind: str, piece: str) -> Iterable[Delta]:
    if piece and kind == "text":
        return (TextDelta(piece),)
    return (ReasoningDelta(piece),) if piece and kind == "thinking" else ()


def _made(block: _Open) -> Block | None:
    text = "".join(block.pieces)
    match block.kind:
        case "text":
            return Block(TextPart(text)) if text else None
        case "thinking":
            return Block(ReasoningPart(text), {"signature": block.signature} if block.signature else {})
        case "redacted_thinking":
            return Block(None, {"data": block.data})
        case "tool_use":
            return Block(ToolCallPart(block.call_id, block.tool, Content(text or block.begun)))
    return None
