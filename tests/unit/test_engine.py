"""The pure half of a turn: batches, loop guard, identity of effects, re-entry, status."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.domain.effects import (
    EFFECT_TRANSITIONS,
    RERUN_CLASSES,
    SETTLED_EFFECT_STATES,
    EffectClass,
    EffectState,
)
from milepost.domain.tools import Parallel
from milepost.domain.turns import TURN_TRANSITIONS, TurnState, TurnStatus
from milepost.engine.effects import Entry, effect_id, idempotency_key, on_entry
from milepost.engine.status import RECOVERING_AFTER_US, turn_status
from milepost.engine.turn import SAME_CALL_LIMIT, SAME_TEXT_LIMIT, CallShape, LoopGuard, batches
from tests.unit.streams import turn

shapes = st.lists(st.sampled_from(Parallel), max_size=12).map(
    lambda kinds: [CallShape(index, "t", kind, str(index)) for index, kind in enumerate(kinds)]
)


@given(shapes)
def test_batches_keep_every_call_in_order(calls: list[CallShape]) -> None:
    assert [call for batch in batches(calls) for call in batch] == calls


@given(shapes)
def test_only_safe_neighbors_share_a_batch_and_all_of_them_do(calls: list[CallShape]) -> None:
    split = batches(calls)
    assert all(batch for batch in split)
    for batch in split:
        assert len(batch) == 1 or {call.parallel for call in batch} == {Parallel.SAFE}
    for before, after in pairwise(split):
        assert {before[-1].parallel, after[0].parallel} != {Parallel.SAFE}


# --- loop guard ---------------------------------------------------------------------------------------------------

Round = tuple[str, list[tuple[str, str, bool, str]]]

rounds = st.lists(
    st.tuples(
        st.sampled_from(["", "", "text 1", "text 2"]),
        st.lists(
            st.tuples(
                st.sampled_from(["bash", "grep"]), st.sampled_from(["in", "put"]), st.booleans(), st.sampled_from("ab")
            ),
            max_size=2,
        ),
    ),
    max_size=12,
)


def run_guard(played: list[Round]) -> list[str | None]:
    guard = LoopGuard()
    reasons = []
    for text, calls in played:
        made = [
            CallShape(index, tool, Parallel.SAFE, digest, malformed)
            for index, (tool, digest, malformed, _) in enumerate(calls)
        ]
        reasons.append(guard.check(text, made, [result for *_, result in calls]))
    return reasons


def circles(played: list[Round]) -> bool:
    """The rule, over the whole past instead of counters: whether the last round closes a circle."""
    with_calls = [calls for _, calls in played if calls]
    with_text = [text for text, _ in played if text]
    text, calls = played[-1]
    same_calls = [[(tool, digest, result) for tool, digest, _, result in each] for each in with_calls]
    malformed = [bool(each) and all(bad for *_, bad, _ in each) for _, each in played]
    return (
        malformed[-2:] == [True, True]
        or (bool(calls) and _repeats(same_calls, SAME_CALL_LIMIT))
        or (bool(text) and _repeats(with_text, SAME_TEXT_LIMIT))
    )


def _repeats(values: list[object] | list[str] | list[list[tuple[str, str, str]]], times: int) -> bool:
    return len(values) >= times and all(value == values[-1] for value in values[-times:])


@given(rounds)
def test_the_guard_ends_exactly_the_turns_that_go_in_circles(played: list[Round]) -> None:
    for end, reason in enumerate(run_guard(played), start=1):
        assert (reason is not None) is circles(played[:end]), played[:end]
        if reason is not None:
            # The turn ends here; what the guard would say later does not matter.
            return


def test_a_call_is_the_same_only_with_the_same_tool_input_and_result() -> None:
    base = ("bash", "in", False, "a")
    same: Round = ("", [base])
    assert run_guard([same, same, same])[-1] is not None
    for other in (("grep", "in", False, "a"), ("bash", "put", False, "a"), ("bash", "in", False, "b")):
        assert run_guard([same, same, ("", [other]), same, same]) == [None] * 5
    # The parts of the signature are kept apart.
    assert run_guard([("", [("a:b", "c", False, "d")]), ("", [("a", "b:c", False, "d")])] * 2) == [None] * 4


@given(st.integers(1, 128), st.text(min_size=1, max_size=200))
def test_what_the_guard_keeps_does_not_grow_with_the_calls(count: int, name: str) -> None:
    guard = LoopGuard()
    calls = [CallShape(index, name, Parallel.SAFE, "d" * 64) for index in range(count)]
    guard.check("t" * 64, calls, ["r" * 64] * count)
    assert len(guard.last_round) == 64


# --- effects ------------------------------------------------------------------------------------------------------

parts = st.tuples(st.text(max_size=4), st.integers(0, 3), *[st.text(max_size=4)] * 4)
Parts = tuple[str, int, str, str, str, str]


@given(parts, parts)
def test_effects_are_the_same_only_if_every_part_is(one: Parts, other: Parts) -> None:
    assert (effect_id(*one) == effect_id(*other)) is (one == other)
    keys = [idempotency_key(owner, *rest) for owner, _, *rest in (one, other)]
    assert (keys[0] == keys[1]) is ((one[0], *one[2:]) == (other[0], *other[2:]))


@given(st.text(max_size=5), st.text(max_size=5), st.text(max_size=5), st.text(max_size=5))
def test_parts_do_not_run_into_each_other(a: str, b: str, c: str, d: str) -> None:
    joined = [effect_id(a, 0, b + c, d, "", ""), effect_id(a, 0, b, c + d, "", ""), effect_id(a + b, 0, c, d, "", "")]
    tuples = [(a, b + c, d), (a, b, c + d), (a + b, c, d)]
    assert len(set(joined)) == len(set(tuples))


def test_a_new_generation_is_a_new_effect_with_the_same_key_for_peers() -> None:
    ids = {effect_id("trn_1", generation, "coder", "tool.1.0", "tool:bash", "d") for generation in range(3)}
    assert len(ids) == 3
    key = idempotency_key("trn_1", "coder", "tool.1.0", "tool:bash", "d")
    assert key not in ids and len(key) == 64


FOUND_DISPATCHED = {
    EffectClass.PURE: Entry.DISPATCH,
    EffectClass.OBSERVE: Entry.DISPATCH,
    EffectClass.IDEMPOTENT: Entry.DISPATCH,
    EffectClass.KEYED: Entry.DISPATCH,
    EffectClass.MODEL: Entry.DISPATCH,
    EffectClass.INTERNAL_STATE: Entry.DISPATCH,
    EffectClass.ATTACHABLE: Entry.ATTACH,
    EffectClass.AT_MOST_ONCE: Entry.BECOME_UNCERTAIN,
}


@pytest.mark.parametrize(("state", "class_"), list(product([None, *EffectState], EffectClass)))
def test_re_entry_over_the_whole_matrix(state: EffectState | None, class_: EffectClass) -> None:
    match state:
        case None | EffectState.PLANNED:
            expected = Entry.DISPATCH
        case EffectState.AWAITING_APPROVAL:
            expected = Entry.WAIT_FOR_PERSON
        case EffectState.DISPATCHED:
            expected = FOUND_DISPATCHED[class_]
        case _:
            expected = Entry.RETURN_RECORDED
    assert on_entry(state, class_) is expected
    if expected is Entry.DISPATCH and state is not None:
        assert EffectState.DISPATCHED in EFFECT_TRANSITIONS[state]


def test_the_table_of_re_entry_is_whole() -> None:
    assert set(FOUND_DISPATCHED) == set(EffectClass)
    again = {class_ for class_, entry in FOUND_DISPATCHED.items() if entry is Entry.DISPATCH}
    assert again == RERUN_CLASSES | {EffectClass.INTERNAL_STATE}


def test_states_that_are_settled_stay_so() -> None:
    assert set(EFFECT_TRANSITIONS) == set(EffectState)
    assert {state for state, after in EFFECT_TRANSITIONS.items() if not after} == SETTLED_EFFECT_STATES
    assert set(TURN_TRANSITIONS) == set(TurnState)
    assert {state for state, after in TURN_TRANSITIONS.items() if not after} == {s for s in TurnState if s.terminal}


# --- status -------------------------------------------------------------------------------------------------------

times = st.none() | st.integers(0, 200_000_000)


@given(st.sampled_from(TurnState), times, times, times, st.none() | st.just("run"), st.booleans())
def test_status_over_all_turns(
    state: TurnState, dispatched: int | None, beat: int | None, stop: int | None, claim: str | None, awaiting: bool
) -> None:
    now = 200_000_000
    this = replace(turn(state), dispatched_at=dispatched, claimed_run=claim, stop_requested_at=stop)
    status = turn_status(this, awaiting_person=awaiting, owner_seen=beat, now=now)
    lost = now - max(beat or 0, dispatched or 0) > RECOVERING_AFTER_US
    if state.terminal:
        assert status is TurnStatus.ENDED
    elif dispatched is None and claim is None:
        assert status is TurnStatus.WAITING
    elif lost:
        assert status is TurnStatus.RECOVERING
    elif stop is not None:
        assert status is TurnStatus.STOPPING
    else:
        assert status is (TurnStatus.WAITING_FOR_PERSON if awaiting else TurnStatus.WORKING)
