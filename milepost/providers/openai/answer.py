"""Reading the events of a response."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from milepost.domain.content import Content
from milepost.domain.errors import ModelAnswerTooLarge
from milepost.domain.messages import FinishReason, ReasoningPart, TextPart, ToolCallPart
from milepost.domain.usage import UNKNOWN_USAGE, Usage
from milepost.ports.models import ModelRequest, ReasoningDelta, TextDelta
from milepost.providers.answers import Ending
from milepost.providers.call_ids import generated_call_id
from milepost.providers.calls import MAX_CALLS, usable_id
from milepost.providers.endpoint import Delta
from milepost.providers.events import event_object, items, kind_name, member, note, text_of, token_count, tool_name
from milepost.providers.faults import Refusal
from milepost.providers.sealed import Block

STATUS_OF = {
    "rate_limit_exceeded": 429,
    "insufficient_quota": 402,
    "billing_hard_limit_reached": 402,
    "context_length_exceeded": 400,
    "invalid_prompt": 400,
    "invalid_api_key": 401,
    "model_not_found": 404,
}
"""HTTP statuses that codes of errors stand for; 500 for any other inside a stream."""

_CUT = {"max_output_tokens": FinishReason.LENGTH, "content_filter": FinishReason.CONTENT_FILTER}

_KINDS = {
    "response.output_text.delta": "message",
    "response.refusal.delta": "message",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.reasoning_text.delta": "reasoning",
    "response.function_call_arguments.delta": "function_call",
}
_NOT_KEPT = {
    "message": ("content", "type", "role"),
    "function_call": ("type", "call_id", "name", "arguments"),
    "reasoning": (),
}
"""What the conversation holds of an item itself; the rest of it goes back as it came."""


@dataclass(slots=True)
class _Item:
    """An output item in the making; `whole` is the item as the service ended it."""

    kind: str
    item_id: str = ""
    call_id: str = ""
    tool: str = ""
    pieces: list[str] = field(default_factory=list)
    part: object = None
    whole: dict[str, Any] | None = None


class ResponseAnswer:
    """`endpoint.Answer` of one response."""

    def __init__(self, request: ModelRequest) -> None:
        self._provider = request.provider
        self._key = request.idempotency_key
        self._items: list[_Item] = []
        self._by_index: dict[int, _Item] = {}
        self._usage = UNKNOWN_USAGE
        self._model = ""
        self._raw = ""
        self._finish = FinishReason.OTHER
        self._refusal: list[str] = []
        self._made = 0
        self.notes: list[str] = []
        self.finished = False
        self.resumed = False

    def feed(self, event: str) -> Iterable[Delta]:
        value = event_object(self._provider, event)
        kind = str(value.get("type"))
        if kind.startswith("response.output_item.") or kind in _KINDS:
            self.resumed = self.finished
        match kind:
            case "response.output_item.added":
                self._begin(value, member(self._provider, value, "item", "an output item"))
            case "response.output_item.done":
                return self._end(value)
            case "response.completed" | "response.incomplete":
                return self._finished(member(self._provider, value, "response", "a response"))
            case "response.failed":
                response = member(self._provider, value, "response", "a response")
                raise _refusal(response.get("error"))
            case "error":
                raise _refusal(value.get("error") if isinstance(value.get("error"), dict) else value)
            case _ if kind in _KINDS:
                return self._delta(value, kind)
        # Other events repeat what the ones above say, or concern tools that are not asked for.
        return ()

    def _begin(self, event: Mapping[str, Any], item: Mapping[str, Any]) -> _Item:
        kind = str(item.get("type"))
        begun = _Item(kind, str(item.get("id") or ""))
        if kind == "function_call":
            begun.tool = tool_name(self._provider, item.get("name"))
            begun.call_id = self._call_id(item.get("call_id"))
        elif kind not in _NOT_KEPT:
            note(self.notes, f"An output item of {kind_name(kind)} is not understood and was left out.")
        self._items.append(begun)
        index = event.get("output_index")
        if isinstance(index, int):
            self._by_index[index] = begun
        return begun

    def _call_id(self, sent: object) -> str:
        calls = [item for item in self._items if item.kind == "function_call"]
        if len(calls) >= MAX_CALLS:
            raise ModelAnswerTooLarge(f"The model made more than {MAX_CALLS} tool calls in one answer.")
        if isinstance(sent, str) and usable_id(sent) and sent and all(call.call_id != sent for call in calls):
            return sent
        self._made += 1
        return generated_call_id(self._key, len(calls))

    def _find(self, event: Mapping[str, Any], kind: str) -> _Item:
        """The item an event belongs to: by index and id, by an id that only one has, by index, else the last one."""
        item_id, index = event.get("item_id") or "", event.get("output_index")
        at_index = self._by_index.get(index) if isinstance(index, int) else None
        if at_index is not None and at_index.kind == kind and item_id in ("", at_index.item_id):
            return at_index
        named = [item for item in self._items if item.kind == kind and item_id and item.item_id == item_id]
        if len(named) == 1:
            return named[0]
        if at_index is not None and at_index.kind == kind:
            return at_index
        last = next((item for item in reversed(self._items) if item.kind == kind), None)
        return last or self._begin(event, {"type": kind, "id": item_id})

    def _delta(self, event: Mapping[str, Any], kind: str) -> Iterable[Delta]:
        item = self._find(event, _KINDS[kind])
        piece = text_of(event, "delta", self.notes)
        if kind == "response.refusal.delta":
            self._refusal.append(piece)
            return ()
        part = event.get("summary_index", event.get("content_index"))
        if item.kind == "reasoning" and item.pieces and part != item.part:
            piece = f"\n\n{piece}"
        item.part = part
        item.pieces.append(piece)
        return _deltas(item.kind, piece)

    def _end(self, event: Mapping[str, Any]) -> Iterable[Delta]:
        """The whole item. What never came in pieces comes now."""
        whole = member(self._provider, event, "item", "an output item")
        kind = str(whole.get("type"))
        known = self._find({**event, "item_id": whole.get("id")}, kind) if self._items else self._begin(event, whole)
        return self._take(known, whole, kind)

    def _take(self, known: _Item, whole: Mapping[str, Any], kind: str) -> Iterable[Delta]:
        known.whole = dict(whole)
        if kind == "function_call":
            known.tool = known.tool or tool_name(self._provider, whole.get("name"))
        if known.pieces:
            return ()
        text = self._text_of(whole, kind)
        known.pieces.append(text)
        return _deltas(kind, text)

    def _text_of(self, item: Mapping[str, Any], kind: str) -> str:
        if kind == "function_call":
            return text_of(item, "arguments", self.notes)
        key = "summary" if kind == "reasoning" else "content"
        texts: list[str] = []
        for part in items(self._provider, item, key, f"a part of the {key}"):
            if part.get("type") == "refusal" and not self._refusal:
                self._refusal.append(text_of(part, "refusal", self.notes))
            elif part.get("type") in ("output_text", "summary_text"):
                texts.append(text_of(part, "text", self.notes))
        return ("\n\n" if kind == "reasoning" else "").join(texts)

    def _finished(self, response: dict[str, Any]) -> Iterable[Delta]:
        if self.finished:
            return ()
        self.finished = True
        self._model = text_of(response, "model", [])
        self._usage = usage_of(response.get("usage"))
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        self._raw = str(reason or response.get("status") or "completed")
        self._finish = FinishReason.STOP if self._raw == "completed" else _CUT.get(self._raw, FinishReason.OTHER)
        return () if self._items else self._unstreamed(response)

    def _unstreamed(self, response: Mapping[str, Any]) -> Iterable[Delta]:
        """What a server that does not stream says with its last event only."""
        deltas: list[Delta] = []
        for index, item in enumerate(items(self._provider, response, "output", "an output item")):
            deltas += self._take(self._begin({"output_index": index}, item), item, str(item.get("type")))
        return deltas

    def blocks(self) -> list[Block]:
        # Ids and phases mean something to the service beside its own reasoning only.
        reasoned = any(item.kind == "reasoning" and _sealed(item.whole) for item in self._items)
        return [block for item in self._items if (block := _made(item, reasoned)) is not None]

    def ending(self) -> Ending:
        return Ending(
            finish=self._finish,
            raw=self._raw,
            usage=self._usage,
            model=self._model,
            made_ids=self._made,
            refusal="".join(self._refusal) or None,
        )


def usage_of(reported: object) -> Usage:
    """Split a `usage` object: cached tokens are part of the input, reasoning tokens part of the output."""
    if not isinstance(reported, dict):
        return UNKNOWN_USAGE
    total_in, total_out = token_count(reported.get("input_tokens")), token_count(reported.get("output_tokens"))
    if total_in is None or total_out is None:
        return Usage(input_tokens=total_in or 0, output_tokens=total_out or 0, complete=False)
    cached = _detail(reported, "input_tokens_details", "cached_tokens")
    reasoning = _detail(reported, "output_tokens_details", "reasoning_tokens")
    sound = cached <= total_in and reasoning <= total_out
    return Usage(
        input_tokens=max(total_in - cached, 0),
        cached_input_tokens=min(cached, total_in),
        output_tokens=max(total_out - reasoning, 0),
        reasoning_tokens=min(reasoning, total_out),
        complete=sound,
    )


def _detail(reported: Mapping[str, Any], outer: str, inner: str) -> int:
    details = reported.get(outer)
    return (token_count(details.get(inner)) if isinstance(details, dict) else None) or 0


def _refusal(error: object) -> Refusal:
    code = error.get("code") or error.get("type") if isinstance(error, dict) else None
    status = code if isinstance(code, int) and 400 <= code < 600 else STATUS_OF.get(str(code), 500)
    return Refusal(status, {"error": error})


def _deltas(kind: str, piece: str) -> Iterable[Delta]:
    if not piece:
        return ()
    match kind:
        case "message":
            return (TextDelta(piece),)
        case "reasoning":
            return (ReasoningDelta(piece),)
    return ()


def _sealed(item: Mapping[str, Any] | None) -> bool:
    return bool(item and item.get("encrypted_content"))


def _made(item: _Item, reasoned: bool) -> Block | None:
    text = "".join(item.pieces)
    kept = {key: value for key, value in (item.whole or {}).items() if key not in _NOT_KEPT.get(item.kind, ())}
    match item.kind:
        case "message":
            return Block(TextPart(text), {"item": kept} if reasoned and kept else {}) if text else None
        case "reasoning":
            if not text and not _sealed(item.whole):
                return None
            # Without its encrypted content the service cannot take it back.
            return Block(ReasoningPart(text), {"item": kept} if _sealed(item.whole) else {})
        case "function_call":
            part = ToolCallPart(item.call_id, item.tool, Content(text))
            return Block(part, {"item": kept} if reasoned and kept else {})
    return None
