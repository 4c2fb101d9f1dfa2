"""Reading the responses of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from milepost.domain.content import Content
from milepost.domain.errors import ModelAnswerTooLarge, ModelIncomplete
from milepost.domain.messages import FinishReason, ReasoningPart, TextPart, ToolCallPart
from milepost.domain.usage import UNKNOWN_USAGE, Usage
from milepost.ports.models import ModelRequest, ReasoningDelta, TextDelta
from milepost.providers.answers import Ending
from milepost.providers.call_ids import generated_call_id
from milepost.providers.calls import MAX_CALLS, usable_id
from milepost.providers.endpoint import Delta
from milepost.providers.events import event_object, items, kind_name, member, note, text_of, tool_name
from milepost.providers.gemini.refusals import refusal_of
from milepost.providers.gemini.usage import usage_of
from milepost.providers.raw_json import raw_at, raw_items
from milepost.providers.sealed import Block

_FINISH = {
    "STOP": FinishReason.STOP,
    "MAX_TOKENS": FinishReason.LENGTH,
    "SAFETY": FinishReason.CONTENT_FILTER,
    "RECITATION": FinishReason.CONTENT_FILTER,
    "LANGUAGE": FinishReason.CONTENT_FILTER,
    "BLOCKLIST": FinishReason.CONTENT_FILTER,
    "PROHIBITED_CONTENT": FinishReason.CONTENT_FILTER,
    "SPII": FinishReason.CONTENT_FILTER,
    "IMAGE_SAFETY": FinishReason.CONTENT_FILTER,
}

_NO_CALL = {"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"}
"""The model began a call that the service did not pass on."""

MAX_NAMES = 4
"""Members of a part that nobody understands, in a note."""

_UNSAID = {None, "", "FINISH_REASON_UNSPECIFIED"}


@dataclass(slots=True)
class _Open:
    """A part in the making. A part with a signature is closed: nothing is joined to what was signed."""

    kind: str
    pieces: list[str] = field(default_factory=list)
    signature: str | None = None
    thought: bool = False
    call: ToolCallPart | None = None
    sent_id: str | None = None


class ContentAnswer:
    """`endpoint.Answer` of one streamed `generateContent`."""

    def __init__(self, request: ModelRequest) -> None:
        self._provider = request.provider
        self._key = request.idempotency_key
        self._parts: list[_Open] = []
        self._calls = 0
        self._made = 0
        self._usage: Usage = UNKNOWN_USAGE
        self._model = ""
        self._raw = ""
        self._refusal: str | None = None
        self.notes: list[str] = []
        self.finished = False
        self.resumed = False

    def feed(self, event: str) -> Iterable[Delta]:
        value = event_object(self._provider, event)
        if value.get("error"):
            raise refusal_of(None, value)
        self._model = text_of(value, "modelVersion", []) or self._model
        self._report(value.get("usageMetadata"))
        candidates = items(self._provider, value, "candidates", "a candidate")
        if not candidates:
            self._blocked(value.get("promptFeedback"))
            return ()
        content = member(self._provider, candidates[0], "content", "a content")
        deltas: list[Delta] = []
        written: list[str] = []
        for at, part in enumerate(items(self._provider, content, "parts", "a part")):
            if part.get("functionCall") is not None:
                written = written or raw_items(raw_at(event, "candidates", 0, "content", "parts") or "[]")
                self._call(part, written[at])
            else:
                deltas += self._text(part)
        self.resumed = self.resumed or (self.finished and bool(deltas or written))
        self._finish(candidates[0])
        return deltas

    def _report(self, reported: Any) -> None:
        if isinstance(reported, Mapping):
            found = usage_of(reported)
            # Cumulative: one that is repeated, or lower than before, adds nothing.
            if (found.complete, found.total_tokens) >= (self._usage.complete, self._usage.total_tokens):
                self._usage = found

    def _blocked(self, feedback: Any) -> None:
        reason = feedback.get("blockReason") if isinstance(feedback, Mapping) else None
        if reason and not self.finished:
            self._refusal = f"the prompt was blocked ({reason})"
            self.finished = True

    def _text(self, part: dict[str, Any]) -> list[Delta]:
        """Text, a thought, or a signature alone."""
        signature = part.get("thoughtSignature")
        signature = signature if isinstance(signature, str) and signature else None
        if "text" not in part and signature is None:
            names = ", ".join(kind_name(name) for name in sorted(part)[:MAX_NAMES])
            note(self.notes, f"A part of the answer is not understood and was left out ({names}).")
            return []
        text = text_of(part, "text", self.notes)
        if not text and signature is None:
            return []
        thought = part.get("thought") is True
        kind = "signature" if not text else "thought" if thought else "text"
        last = self._parts[-1] if self._parts else None
        if last is None or last.kind != kind or last.signature is not None or signature is not None:
            last = _Open(kind, signature=signature, thought=thought)
            self._parts.append(last)
        last.pieces.append(text)
        if not text:
            return []
        return [ReasoningDelta(text) if kind == "thought" else TextDelta(text)]

    def _call(self, part: dict[str, Any], written: str) -> None:
        function = member(self._provider, part, "functionCall", "a function call")
        if self._calls >= MAX_CALLS:
            raise ModelAnswerTooLarge(f"The model made more than {MAX_CALLS} tool calls in one answer.")
        signature, sent = part.get("thoughtSignature"), function.get("id")
        sent_id = sent if isinstance(sent, str) and sent else None
        arguments = raw_at(written, "functionCall", "args")
        call_id = self._call_id(sent_id)
        self._calls += 1
        self._parts.append(
            _Open(
                "call",
                signature=signature if isinstance(signature, str) and signature else None,
                call=ToolCallPart(
                    call_id,
                    tool_name(self._provider, function.get("name")),
                    Content(arguments if arguments is not None and arguments != "null" else "{}"),
                ),
                sent_id=sent_id,
            )
        )

    def _call_id(self, sent: str | None) -> str:
        taken = {part.call.call_id for part in self._parts if part.call is not None}
        if sent is not None and usable_id(sent) and sent not in taken:
            return sent
        self._made += 1
        return generated_call_id(self._key, self._calls)

    def _finish(self, candidate: Mapping[str, Any]) -> None:
        reason = candidate.get("finishReason")
        if self.finished or (isinstance(reason, str | None) and reason in _UNSAID):
            return
        said = text_of(candidate, "finishMessage", [])
        if reason in _NO_CALL:
            raise ModelIncomplete(
                f"Provider '{self._provider}' passed on no call that the model began ({reason}); it is not complete."
            )
        if _FINISH.get(str(reason)) is FinishReason.CONTENT_FILTER:
            self._refusal = f"{reason}: {said}" if said else str(reason)
        self._raw = str(reason)
        self.finished = True

    def blocks(self) -> list[Block]:
        return [_made(part) for part in self._parts]

    def ending(self) -> Ending:
        return Ending(
            finish=_FINISH.get(self._raw, FinishReason.OTHER),
            raw=self._raw,
            usage=self._usage,
            model=self._model,
            made_ids=self._made,
            refusal=self._refusal,
        )


def _made(part: _Open) -> Block:
    signed: dict[str, Any] = {} if part.signature is None else {"signature": part.signature}
    if part.call is not None:
        # Always sealed: a call without a signature of its own is told from one of another model.
        return Block(part.call, {"id": part.sent_id, **signed})
    if part.kind == "signature":
        return Block(None, {**signed, "thought": True} if part.thought else signed)
    text = "".join(part.pieces)
    return Block(ReasoningPart(text) if part.kind == "thought" else TextPart(text), signed)
