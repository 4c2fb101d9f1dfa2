"""Where a conversation is cut, for any conversation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from milepost.domain.compaction import Boundary
from milepost.domain.content import Content
from milepost.domain.messages import AssistantMessage, TextPart, ToolCallPart, ToolMessage, UserMessage
from milepost.domain.outputs import OutputRef
from milepost.engine.compaction import SHRINK_SHARE, Piece, plan, room_of, summary_tokens
from milepost.engine.tokens import text_tokens
from milepost.ledger.compacted import CLIP_OVER, clipped_text
from milepost.ledger.summaries import summary_request
from milepost.ledger.transcript import parts_of

ROOM = 6_800.0


@st.composite
def conversations(draw: st.DrawFn) -> list[Piece]:
    pieces: list[Piece] = []
    for back in range(draw(st.integers(0, 6)), -1, -1):
        for round_ in range(draw(st.integers(1, 5))):
            tokens = draw(st.floats(1, 4_000))
            pieces.append(Piece(back, round_, tokens, tokens * draw(st.floats(0.1, 1.0)) if round_ else tokens))
    return pieces


@given(conversations(), st.floats(0, 3_000), st.floats(0, 700))
def test_a_plan_shrinks_and_cuts_nothing_that_is_new(pieces: list[Piece], fixed: float, summary: float) -> None:
    found = plan(pieces, fixed, summary, ROOM)
    if found is None:
        return
    before = fixed + summary + sum(piece.tokens for piece in pieces)
    assert found.clip or found.cover
    assert found.tokens <= before * (1 - SHRINK_SHARE) + 1e-6
    newest = max(piece.round for piece in pieces if piece.turns == 0)
    for boundary in (found.clip, found.cover):
        assert boundary is None or not (boundary.covers(0, 0) or boundary.covers(0, newest))
    left = [piece for piece in pieces if found.cover is None or not found.cover.covers(piece.turns, piece.round)]
    sent = sum(
        piece.clipped if found.clip and found.clip.covers(piece.turns, piece.round) else piece.tokens for piece in left
    )
    after = fixed + sent + (summary_tokens(ROOM) if found.cover else summary)
    assert abs(after - found.tokens) < 1e-6, "what is promised is what is sent"
    if found.cover is not None:
        assert left != pieces
        whole = {piece.turns for piece in left if piece.turns > 0}
        assert all(piece in left for piece in pieces if piece.turns in whole), "earlier turns are whole or gone"


def test_shortening_alone_does_if_it_can() -> None:
    pieces = [Piece(5, 1, 5_000, 300), Piece(4, 1, 500, 500), Piece(0, 0, 100, 100)]
    found = plan(pieces, 1_000, 0, ROOM)
    assert found is not None and found.clip == Boundary(4, 1) and found.cover is None


def test_what_is_new_is_not_cut_however_long() -> None:
    assert plan([Piece(1, 1, 100, 100), Piece(0, 0, 9_000, 9_000)], 1_000, 0, ROOM) is None
    assert plan([Piece(0, 0, 10, 10), Piece(0, 1, 9_000, 100)], 1_000, 0, ROOM) is None


def test_the_room_is_what_the_answer_leaves() -> None:
    assert room_of(200_000, 0, 85) == 170_000
    assert room_of(200_000, 64_000, 85) == 136_000


def test_boundaries_are_places_between_rounds_and_turns() -> None:
    boundary = Boundary(2, 3)
    assert [boundary.covers(turns, 1) for turns in (1, 2, 3)] == [False, True, True]
    assert [boundary.covers(2, round_) for round_ in (0, 2, 3)] == [False, True, False]
    assert Boundary(2).later(3) == Boundary(5) and not Boundary(2).covers(2, 1) and Boundary(2).covers(3, 0)


@given(st.text(max_size=5_000))
def test_a_shortened_result_is_short_and_says_where_the_rest_is(text: str) -> None:
    shown = clipped_text(text, OutputRef(1, 2, 3))
    assert shown == text if len(text) <= CLIP_OVER else "ref 1.2.3" in shown
    assert len(shown) <= CLIP_OVER and clipped_text(shown, None) == shown


def test_the_text_for_a_summary_fits_whatever_it_is_of() -> None:
    call = ToolCallPart("c", "bash", Content("x" * 50_000))
    turn = [
        UserMessage(Content("Do " * 9_000)),
        AssistantMessage((TextPart("I do."), call)),
        ToolMessage("c", "bash", Content("y" * 50_000), True),
    ]
    parts = [part for number in range(1, 30) for part in parts_of(turn, number, 30 - number)]
    text = summary_request(parts, "Before it all.", tokens=4_000, answer=400)
    assert text_tokens(text) <= 4_200
    assert "Before it all." in text and "older entries are left out" in text
    assert text.rstrip().endswith("not addressed to you.") and "# Request 29" in text
    short = summary_request(parts_of(turn[:2], 1, 1)[:1], "", tokens=100_000, answer=400)
    assert "left out" not in short and "# Request 1" in short
