"""Where to cut a conversation that is too long for its model. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from milepost.domain.compaction import Boundary

KEEP_SHARE = 0.3
"""Of the room: the newest messages that are left as they are."""
TARGET_SHARE = 0.6
"""Of the room: shortening old results has to bring a request down to this, else older turns are summarized too."""
SHRINK_SHARE = 0.1
"""Of the request: what a compaction must save at least."""
SUMMARY_SHARE = 0.1
REFUSED_SHARE = 0.5
"""Of a request that the provider refused as too long: what there is taken to be room for, as nobody says how much."""
MAX_SUMMARY_TOKENS = 4_000


@dataclass(frozen=True, slots=True)
class Piece:
    """A request (round 0) or a model round with its results, `turns` live turns ago.

    `tokens` as it is sent now, `clipped` if its results are shortened.
    """

    turns: int
    round: int
    tokens: float
    clipped: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do: shorten results before `clip`, summarize what lies before `cover`; None: nothing of the kind.

    `tokens` is what the request has then, with the summary at its largest.
    """

    clip: Boundary | None
    cover: Boundary | None
    tokens: float


def room_of(window: int, reserved: int, threshold: int) -> float:
    """Tokens that a request may have before it is compacted; `reserved` are those of the answer."""
    return min(window * threshold / 100, float(window - reserved))


def room_after_refusal(tokens: int, window: int | None) -> float:
    """Tokens that a request may have which was refused as too long with `tokens`; `window` is what was thought."""
    return min(tokens, tokens if window is None else window) * REFUSED_SHARE


def summary_tokens(room: float) -> int:
    """How long a summary may be."""
    return max(64, min(MAX_SUMMARY_TOKENS, int(room * SUMMARY_SHARE)))


def plan(pieces: Sequence[Piece], fixed: float, summary: float, room: float) -> Plan | None:
    """What brings a request under its room; None if nothing would shrink it enough.

    `pieces` are in order, the current turn's (0 turns ago) last. `fixed` are the tokens of what is never cut beside
    them, `summary` those of the summary that stands before them. The current request and the newest round, which holds
    what the model has not seen, are never cut.
    """
    before = fixed + summary + sum(piece.tokens for piece in pieces)
    clip = _boundary(pieces, room * KEEP_SHARE, whole_turns=False)
    clipped = [_clipped(piece, clip) for piece in pieces]
    after = fixed + summary + sum(piece.tokens for piece in clipped)
    useful = clip if any(old.tokens > new.tokens for old, new in zip(pieces, clipped, strict=True)) else None
    if after <= room * TARGET_SHARE and _shrinks(before, after):
        return Plan(useful, None, after)
    cover = _boundary(clipped, room * KEEP_SHARE, whole_turns=True)
    left = sum(piece.tokens for piece in clipped if cover is None or not cover.covers(piece.turns, piece.round))
    with_summary = fixed + summary_tokens(room) + left
    if cover is not None and with_summary <= after and _shrinks(before, with_summary):
        return Plan(useful, cover, with_summary)
    return Plan(useful, None, after) if _shrinks(before, after) else None


def _shrinks(before: float, after: float) -> bool:
    return after <= before * (1 - SHRINK_SHARE)


def _clipped(piece: Piece, clip: Boundary | None) -> Piece:
    if clip is None or not clip.covers(piece.turns, piece.round):
        return piece
    return Piece(piece.turns, piece.round, piece.clipped, piece.clipped)


def _boundary(pieces: Sequence[Piece], keep: float, *, whole_turns: bool) -> Boundary | None:
    """The place before which the newest `keep` tokens begin; None if nothing lies before it.

    With `whole_turns`, earlier turns are kept whole or not at all.
    """
    newest = max((piece.round for piece in pieces if piece.turns == 0), default=0)
    kept = Boundary(0, newest)
    left = keep - sum(piece.tokens for piece in pieces if piece.turns == 0 and piece.round in (0, newest))
    for group in _groups(pieces, newest, whole_turns=whole_turns):
        left -= sum(piece.tokens for piece in group)
        if left < 0:
            break
        kept = Boundary(group[0].turns, group[0].round)
    return kept if any(kept.covers(piece.turns, piece.round) for piece in pieces) else None


def _groups(pieces: Sequence[Piece], newest: int, *, whole_turns: bool) -> list[list[Piece]]:
    """What is kept or cut together, newest first: rounds, or earlier turns."""
    groups: list[list[Piece]] = []
    for piece in reversed(pieces):
        if piece.turns == 0 and piece.round in (0, newest):
            continue
        together = whole_turns and piece.turns > 0
        if groups and together and groups[-1][0].turns == piece.turns:
            groups[-1].insert(0, piece)
        else:
            groups.append([piece])
    return groups
