"""Assembling streamed tool calls from servers that omit, repeat or churn index and id."""

from __future__ import annotations

from dataclasses import dataclass, field

from milepost.domain.errors import ModelAnswerTooLarge
from milepost.providers.call_ids import generated_call_id
from milepost.providers.wire import parse_object

MAX_CALLS = 1_024
"""Of one answer; the agent loop accepts far fewer and says so."""

MAX_ID_CHARACTERS = 256

MAX_CHECKS = 64
"""How often the arguments of one call are parsed to see whether they are whole."""


@dataclass(slots=True)
class Call:
    """A call in the making. `call_id` is what the conversation uses, `sent_id` what the server called it.

    `new_name` is the tool's name if the last piece brought it, else empty.
    """

    call_id: str
    sent_id: str | None
    tool: str = ""
    new_name: str = ""
    pieces: list[str] = field(default_factory=list)
    checks: int = 0

    @property
    def arguments(self) -> str:
        """The raw text of the arguments so far, exactly as streamed."""
        return "".join(self.pieces)

    def is_whole(self) -> bool:
        """Whether the arguments are a finished JSON object already, so that more text must belong to another call."""
        if not self.pieces or not self.pieces[-1].rstrip().endswith("}") or self.checks >= MAX_CHECKS:
            return False
        self.checks += 1
        return parse_object(self.arguments) is not None


class CallAssembler:
    """Decides for each piece to which call it belongs.

    A piece names its call by index, by id, by both, or by neither. The rules, in order:

    1. A known id names its call, also under another index (some servers send index 0 always), unless it begins an
       index of its own with a tool name: then the server repeats ids.
    2. An unknown id begins a call if the piece has a tool name; without one the server changes the id all the time.
    3. Without an id the index decides, without both the piece belongs to the last call.
    4. Another tool name, or the same one after whole arguments, begins a call; so does an object after a whole object.
    """

    def __init__(self, idempotency_key: str) -> None:
        self._key = idempotency_key
        self._by_index: dict[int, Call] = {}
        self.calls: list[Call] = []
        self.generated = 0

    def add(self, index: int | None, sent_id: str | None, tool: str | None, text: str | None) -> Call:
        """Take in a piece; return its call, which may be new. Raises ModelAnswerTooLarge at `MAX_CALLS`."""
        tool, text = tool or "", text or ""
        call = self._find(index, sent_id, tool, text) if sent_id else self._find_without_id(index, tool)
        if call is not None and text.lstrip()[:1] == "{" and call.is_whole():
            tool, call = tool or call.tool, None
        if call is None:
            call = self._begin(sent_id or None)
        if index is not None:
            self._by_index[index] = call
        call.new_name = "" if call.tool else tool
        call.tool = call.tool or tool
        if text:
            call.pieces.append(text)
        return call

    def _find(self, index: int | None, sent_id: str, tool: str, text: str) -> Call | None:
        at_index = None if index is None else self._by_index.get(index)
        if at_index is not None and at_index.sent_id == sent_id:
            known: Call | None = at_index
        else:
            known = next((call for call in reversed(self.calls) if call.sent_id == sent_id), None)
            if known is not None and tool and index is not None and at_index is None:
                return None
        if known is not None:
            again = tool and known.tool and (tool != known.tool or (bool(text) and known.is_whole()))
            return None if again else known
        if tool:
            # An id that comes late belongs to the call that has neither id nor name yet.
            late = at_index is not None and at_index.sent_id is None and not at_index.tool
            return at_index if late else None
        return at_index or self._last()

    def _find_without_id(self, index: int | None, tool: str) -> Call | None:
        call = self._last() if index is None else self._by_index.get(index)
        if call is None or not tool or not call.tool:
            return call
        return None if tool != call.tool or call.is_whole() else call

    def _last(self) -> Call | None:
        return self.calls[-1] if self.calls else None

    def _begin(self, sent_id: str | None) -> Call:
        number = len(self.calls)
        if number >= MAX_CALLS:
            raise ModelAnswerTooLarge(f"The model made more than {MAX_CALLS} tool calls in one answer.")
        call_id = sent_id
        if call_id is None or not usable_id(call_id) or any(call.call_id == call_id for call in self.calls):
            call_id = generated_call_id(self._key, number)
            self.generated += 1
        call = Call(call_id, sent_id)
        self.calls.append(call)
        return call


def usable_id(call_id: str) -> bool:
    return len(call_id) <= MAX_ID_CHARACTERS and call_id.isprintable()
