"""Reading the chunks of a completion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from milepost.domain.content import Content
from milepost.domain.errors import ModelIncomplete
from milepost.domain.messages import FinishReason, ReasoningPart, TextPart, ToolCallPart
from milepost.ports.models import ModelRequest, ReasoningDelta, TextDelta
from milepost.providers.answers import Ending
from milepost.providers.calls import CallAssembler
from milepost.providers.endpoint import Delta
from milepost.providers.events import TEXT_DROPPED, event_object, items, kind_name, member, note, text_of, tool_name
from milepost.providers.faults import Refusal, malformed
from milepost.providers.openai_compatible.usage import last_usage
from milepost.providers.raw_json import raw_at, raw_items
from milepost.providers.sealed import Block, joined_signature

_FINISH = {
    "stop": FinishReason.STOP,
    "tool_calls": FinishReason.TOOL_CALLS,
    "length": FinishReason.LENGTH,
    "model_length": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
}

MAX_REPORTS = 8
"""Usage reports that are looked at: the first and the last ones."""


@dataclass(slots=True)
class _Run:
    """Pieces of text, or of thinking, in a row. `extra` is what came beside the thinking."""

    thinking: bool
    pieces: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)


class CompletionAnswer:
    """`endpoint.Answer` of one completion."""

    def __init__(self, request: ModelRequest) -> None:
        self._provider = request.provider
        self._runs: list[_Run] = []
        self._assembler = CallAssembler(request.idempotency_key)
        self._reports: list[Mapping[str, Any]] = []
        self._model = ""
        self._raw = ""
        self.notes: list[str] = []
        self.finished = False
        self.resumed = False

    def feed(self, event: str) -> Iterable[Delta]:
        if event.strip() == "[DONE]":
            return ()
        value = event_object(self._provider, event)
        if value.get("object") == "error" or value.get("error"):
            raise Refusal(_status(value), value)
        self._model = text_of(value, "model", []) or self._model
        usage = value.get("usage")
        if isinstance(usage, Mapping):
            self._reports.append(usage)
            del self._reports[:-MAX_REPORTS]
        choices = items(self._provider, value, "choices", "a choice")
        if not choices:
            return ()
        delta = member(self._provider, choices[0], "delta", "a delta")
        deltas = self._content(delta.get("content"))
        if delta.get("tool_calls"):
            self._calls(delta, event)
        self.resumed = self.resumed or (self.finished and bool(deltas or delta.get("tool_calls")))
        self._finish(choices[0].get("finish_reason"))
        return deltas

    def _content(self, content: Any) -> list[Delta]:
        """A text, or chunks of text and thinking."""
        if isinstance(content, str):
            return self._text(content)
        if content is None:
            return []
        if not isinstance(content, list):
            note(self.notes, TEXT_DROPPED)
            return []
        deltas: list[Delta] = []
        for chunk in content:
            match chunk:
                case {"type": "text"}:
                    deltas += self._text(text_of(chunk, "text", self.notes))
                case {"type": "thinking"}:
                    deltas += self._thinking(chunk)
                case {"type": str(kind)}:
                    note(self.notes, f"A chunk of {kind_name(kind)} is not understood and was left out.")
                case _:
                    raise malformed(self._provider, chunk, "a chunk of content", "an object with a type")
        return deltas

    def _text(self, text: str) -> list[Delta]:
        if not text:
            return []
        self._run(thinking=False).pieces.append(text)
        return [TextDelta(text)]

    def _thinking(self, chunk: Mapping[str, Any]) -> list[Delta]:
        run = self._run(thinking=True)
        sent = chunk.get("thinking")
        inner = sent if isinstance(sent, list) else [{"text": sent}]
        pieces = [text_of(piece, "text", self.notes) for piece in inner if isinstance(piece, Mapping)]
        run.pieces += pieces
        if signature := text_of(chunk, "signature", []):
            run.extra["signature"] = joined_signature(run.extra.get("signature", ""), signature)
        run.extra["closed"] = True
        return [ReasoningDelta(piece) for piece in pieces if piece]

    def _run(self, *, thinking: bool) -> _Run:
        if not self._runs or self._runs[-1].thinking is not thinking:
            self._runs.append(_Run(thinking))
        return self._runs[-1]

    def _calls(self, delta: Mapping[str, Any], event: str) -> None:
        written: list[str] = []
        for at, call in enumerate(items(self._provider, delta, "tool_calls", "a tool call")):
            function = member(self._provider, call, "function", "the function of a tool call")
            arguments, index, sent_id = function.get("arguments"), call.get("index"), call.get("id")
            if arguments is not None and not isinstance(arguments, str):
                # An object is taken as it is written.
                written = written or raw_items(raw_at(event, "choices", 0, "delta", "tool_calls") or "[]")
                arguments = raw_at(written[at], "function", "arguments")
            self._assembler.add(
                index if isinstance(index, int) else None,
                # The service's library writes "null" for a missing one.
                sent_id if isinstance(sent_id, str) and sent_id != "null" else None,
                tool_name(self._provider, function.get("name")),
                arguments,
            )

    def _finish(self, reason: object) -> None:
        if not reason or self.finished:
            return
        if reason == "error":
            raise ModelIncomplete(f"Provider '{self._provider}' reports that its answer failed; it is not complete.")
        self._raw = str(reason)
        self.finished = True

    def blocks(self) -> list[Block]:
        runs = [
            Block(ReasoningPart(text), run.extra) if run.thinking else Block(TextPart(text))
            for run in self._runs
            if (text := "".join(run.pieces))
        ]
        calls = [ToolCallPart(call.call_id, call.tool, Content(call.arguments)) for call in self._assembler.calls]
        return [*runs, *map(Block, calls)]

    def ending(self) -> Ending:
        return Ending(
            finish=_FINISH.get(self._raw, FinishReason.OTHER),
            raw=self._raw,
            usage=last_usage(self._reports),
            model=self._model,
            made_ids=self._assembler.generated,
        )


def _status(value: Mapping[str, Any]) -> int:
    """The HTTP status that an error event stands for; 500 where it names none."""
    inner = value.get("error")
    code = inner.get("code") if isinstance(inner, Mapping) else value.get("code")
    return code if isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600 else 500
