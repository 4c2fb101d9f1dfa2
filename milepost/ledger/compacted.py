"""A conversation as a compaction leaves it. Pure: the same events make the same bytes, turn after turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from milepost.domain.compaction import Boundary
from milepost.domain.content import Content
from milepost.domain.events import ContextCompacted, Event
from milepost.domain.messages import Message, ToolMessage, UserMessage
from milepost.domain.outputs import OutputRef
from milepost.ledger.transcript import Part

CLIP_HEAD = 800
CLIP_TAIL = 400
CLIP_OVER = 1_600
"""Characters of an old result: one over `CLIP_OVER` keeps `CLIP_HEAD` and `CLIP_TAIL`."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """A compaction as a later turn sees it: its boundaries count from that turn."""

    event: ContextCompacted
    clipped: Boundary | None
    covered: Boundary | None

    def covers_before(self, turns: int) -> bool:
        """Whether a summary covers all turns that lie more than so many live turns back."""
        return self.covered is not None and self.covered.turns <= turns


def newest(events: Iterable[Event], agent: str) -> ContextCompacted | None:
    """The agent's last compaction among a turn's events, which are in order."""
    found = [event for event in events if isinstance(event, ContextCompacted) and event.agent == agent]
    return found[-1] if found else None


def seen_from(event: ContextCompacted, turns: int) -> Compacted:
    """A compaction as it is seen so many live turns later."""
    clipped, covered = event.clipped, event.covered
    return Compacted(event, clipped and clipped.later(turns), covered and covered.later(turns))


def compacted_parts(parts: Sequence[Part], found: Compacted | None, *, readable: bool) -> list[Part]:
    """The parts that are left, old results shortened. `readable`: the model has a tool to read them whole."""
    if found is None:
        return list(parts)
    left: list[Part] = []
    for part in parts:
        if found.covered is not None and found.covered.covers(part.turns, part.round):
            continue
        clip = found.clipped is not None and found.clipped.covers(part.turns, part.round)
        left.append(clipped_part(part, readable=readable) if clip else part)
    return left


def summary_message(event: ContextCompacted, summary: str, *, readable: bool) -> UserMessage:
    """What stands before the parts that a compaction with a summary leaves."""
    turns = _counted(event.covered_turns, "turn")
    steps = f"the first {_counted(event.covered_rounds, 'step')} of the work on the request that follows"
    covered = " and ".join(
        text for text, is_there in ((turns, event.covered_turns), (steps, event.covered_rounds)) if is_there
    )
    lines = [f"[Your own summary of {covered}, which no longer fit the context window.]", summary]
    if readable:
        lines.append("[The outputs of tool calls that it leaves out are kept: find them with search_output.]")
    return UserMessage(Content("\n\n".join(lines)))


def compaction_note(event: ContextCompacted) -> str:
    """What was done, in a sentence for people."""
    done = [f"{_counted(event.clipped_results, 'result')} shortened"] if event.clipped_results else []
    if event.effect_id and event.summary is not None:
        done.append(f"{_covered(event)} summarized")
    what = " and ".join(done) or "nothing could be done"
    sizes = f"from about {event.tokens_before:,} to {event.tokens_after:,} of {event.window:,} tokens"
    why = f" {event.error}" if event.error else ""
    if event.refused:
        sizes = f"from about {event.tokens_before:,} to {event.tokens_after:,} tokens"
        when = f"after the provider had refused model call {event.round} as too long"
    else:
        when = f"before model call {event.round}"
    return f"The conversation was compacted {when}: {what}, {sizes}.{why}"


def _covered(event: ContextCompacted) -> str:
    found = [_counted(event.covered_turns, "turn")] if event.covered_turns else []
    if event.covered_rounds:
        found.append(f"{_counted(event.covered_rounds, 'step')} of the turn after")
    return " and ".join(found)


def clipped_part(part: Part, *, readable: bool) -> Part:
    """The part with its long results shortened."""
    messages: list[Message] = []
    index = 0
    for message in part.messages:
        if isinstance(message, ToolMessage):
            index += 1
            ref = OutputRef(part.number, part.round, index) if readable else None
            message = replace(message, text=Content(clipped_text(message.text.text, ref)))
        messages.append(message)
    return replace(part, messages=tuple(messages))


def clipped_text(text: str, ref: OutputRef | None) -> str:
    """Beginning and end of a long result, and where the rest is."""
    if len(text) <= CLIP_OVER:
        return text
    left = len(text) - CLIP_HEAD - CLIP_TAIL
    where = f"; read_output has all of it under ref {ref}" if ref is not None else ""
    return f"{text[:CLIP_HEAD]}\n[... an old result: {left} characters left out here{where} ...]\n{text[-CLIP_TAIL:]}"


def clips(part: Part) -> int:
    """How many results of the part would be shortened."""
    return sum(isinstance(message, ToolMessage) and len(message.text.text) > CLIP_OVER for message in part.messages)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
