"""What a compaction would do to the conversation of a model call."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from activities.charges import largest_parts
from activities.modelcalls import ModelCall
from milepost.domain.compaction import Boundary
from milepost.domain.errors import ModelContextTooLong
from milepost.domain.events import ContextCompacted
from milepost.domain.messages import ToolMessage
from milepost.engine.compaction import Piece, plan, summary_tokens
from milepost.ledger.compacted import CLIP_HEAD, CLIP_OVER, CLIP_TAIL, Compacted, clips
from milepost.ledger.transcript import Part

_CLIPPED = CLIP_HEAD + CLIP_TAIL + 150
"""Characters of a shortened result with its note."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A compaction before its summary is written. `covered` is what it is to be of; empty: results are shortened only.

    `without` are the tokens of the request then, without its summary.
    """

    event: ContextCompacted
    covered: tuple[Part, ...]
    without: float
    without_summary: ContextCompacted

    @property
    def refused(self) -> Draft:
        """The same, made since the provider refused the request."""
        undone = replace(self.without_summary, refused=True)
        return replace(self, event=replace(self.event, refused=True), without_summary=undone)


def compactions_of(call: ModelCall) -> list[ContextCompacted]:
    """The agent's compactions of the turn so far."""
    agent = call.context.started.agent
    return [event for event in call.context.events if isinstance(event, ContextCompacted) and event.agent == agent]


def was_compacted_for_refusal(call: ModelCall) -> bool:
    """Whether this call was refused as too long before, and its conversation compacted then."""
    return any(event.refused and event.round == call.params.round for event in compactions_of(call))


def still_too_long(call: ModelCall, error: ModelContextTooLong) -> ModelContextTooLong:
    """The refusal with what the request has and what was done about it, for whoever reads it as the turn's end."""
    started = call.context.started
    done = " It had been compacted before." if was_compacted_for_refusal(call) else ""
    off = "" if started.context.compact else f" Or allow compaction (agents.{started.agent}.context.compact)."
    parts = largest_parts(call.expected)
    message = f"{error.message} It has about {call.expected.input:,} tokens.{done} The largest parts: {parts}."
    return ModelContextTooLong(message, fix=f"{error.fix or ''}{off}".strip(), status=error.status)


def draft_of(call: ModelCall, window: int, room: float, number: int) -> Draft | None:
    """What to do about a request that has no room; None if nothing would shrink it enough."""
    context, factor = call.context, call.expected.factor
    tokens = [item.tokens * factor for item in call.expected.items]
    conversation = tokens[1 + len(call.request.tools) :]
    fixed = sum(tokens) - sum(conversation)
    # Before the parts stands what an earlier compaction left: its summary.
    first = len(conversation) - sum(len(part.messages) for part in context.parts)
    summary = sum(conversation[:first])
    pieces = list(_pieces(context.parts, conversation[first:]))
    found = plan(pieces, fixed, summary, room)
    if found is None:
        return None
    old = context.compacted
    clip = _later(found.clip, None if old is None else old.clipped)
    event = ContextCompacted(
        turn_id=call.params.turn_id,
        agent=call.params.agent,
        round=call.params.round,
        number=number,
        window=window,
        tokens_before=math.ceil(sum(tokens)),
        tokens_after=math.ceil(found.tokens),
        clipped=clip,
        clipped_results=sum(clips(part) for part in context.parts if clip and clip.covers(part.turns, part.round)),
        covered=None if old is None else old.covered,
        covered_turns=0 if old is None else old.event.covered_turns,
        covered_rounds=0 if old is None else old.event.covered_rounds,
        summary=None if old is None else old.event.summary,
    )
    if found.cover is None:
        return Draft(event, (), found.tokens, event)
    cover = found.cover
    covered = tuple(part for part in context.parts if cover.covers(part.turns, part.round))
    without = found.tokens - summary_tokens(room)
    # What it would be with results shortened alone.
    alone = sum(piece.clipped if clip and clip.covers(piece.turns, piece.round) else piece.tokens for piece in pieces)
    undone = replace(event, tokens_after=math.ceil(fixed + summary + alone))
    turns, rounds = _counts(covered, cover, old)
    return Draft(replace(event, covered=cover, covered_turns=turns, covered_rounds=rounds), covered, without, undone)


def _counts(covered: tuple[Part, ...], cover: Boundary, old: Compacted | None) -> tuple[int, int]:
    """How many turns, and rounds of the turn with the boundary, are covered now."""
    turns = len({part.turns for part in covered if part.turns > cover.turns})
    rounds = sum(part.turns == cover.turns for part in covered)
    if old is not None and old.covered is not None:
        turns += old.event.covered_turns
        rounds += old.event.covered_rounds if old.covered.turns == cover.turns and cover.round else 0
    return turns, rounds


def _pieces(parts: tuple[Part, ...], tokens: list[float]) -> Iterator[Piece]:
    at = 0
    for part in parts:
        own = tokens[at : at + len(part.messages)]
        at += len(part.messages)
        clipped = [_clipped(message, count) for message, count in zip(part.messages, own, strict=True)]
        yield Piece(part.turns, part.round, sum(own), sum(clipped))


def _clipped(message: object, tokens: float) -> float:
    if not isinstance(message, ToolMessage) or len(message.text.text) <= CLIP_OVER:
        return tokens
    return tokens * _CLIPPED / len(message.text.text)


def _later(first: Boundary | None, second: Boundary | None) -> Boundary | None:
    """The boundary that leaves less alone."""
    if first is None or second is None:
        return first or second
    return first if (-first.turns, first.round) >= (-second.turns, second.round) else second
