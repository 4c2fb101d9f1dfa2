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
from milepost.engine.turn import REMEMBERED, SAME_CALL_LIMIT, SAME_TEXT_LIMIT, CallShape, LoopGuard, batches
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

Call = tuple[str, str, str, str]
"""Tool, input, fault (`ok` for a call that could be run), result."""
Round = tuple[str, list[Call]]

calls_of_rounds = st.tuples(
    st.sampled_from(["bash", "grep"]),
    st.sampled_from(["in", "put"]),
    st.sampled_from(["ok", "ok", "cut", "json", "rejected"]),
    st.sampled_from("ab"),
)
rounds = st.lists(
    st.tuples(st.sampled_from(["", "", "text 1", "text 2"]), st.lists(calls_of_rounds, max_size=2)), max_size=14
)


def shape(index: int, call: Call) -> CallShape:
    tool, digest, fault, _ = call
    parallel = Parallel.EXCLUSIVE if tool == "bash" else Parallel.SAFE
    return CallShape(index, tool, parallel, digest, fault != "ok", fault if fault in ("cut", "json") else "")


def run_guard(played: list[Round]) -> list[str | None]:
    guard = LoopGuard()
    reasons = []
    for text, calls in played:
        made = [shape(index, call) for index, call in enumerate(calls)]
        reasons.append(guard.check(text, made, [result for *_, result in calls]))
    return reasons


def circles(played: list[Round]) -> bool:
    """The rule, over the whole past instead of counters: whether the last round closes a circle."""
    text, calls = played[-1]
    faults = [_faults(each) for _, each in played[-2:]]
    if len(faults) == 2 and faults[0] and faults[0] == faults[1]:
        return True
    with_text = [text for text, _ in played if text]
    if text and len(with_text) >= SAME_TEXT_LIMIT and set(with_text[-SAME_TEXT_LIMIT:]) == {text}:
        return True
    return bool(calls) and _since_change([_kind(each) for _, each in played if each]) >= SAME_CALL_LIMIT


def _kind(calls: list[Call]) -> tuple[tuple[str, str, str], ...]:
    return tuple((tool, digest, result) for tool, digest, _, result in calls)


def _faults(calls: list[Call]) -> set[tuple[str, str, str]]:
    if not calls or any(fault == "ok" for _, _, fault, _ in calls):
        return set()
    return {(tool, fault, result if fault == "rejected" else "") for tool, _, fault, result in calls}


def _since_change(kinds: list[tuple[tuple[str, str, str], ...]]) -> int:
    """How often the last kind of round was there since a change, among the few others that are remembered."""
    begin = 0
    for index, kind in enumerate(kinds):
        changes = any(tool == "bash" for tool, _, _ in kind)
        if changes and kind not in kinds[begin:index]:
            begin = index
    return kinds[begin:].count(kinds[-1])


@given(rounds)
def test_the_guard_ends_exactly_the_turns_that_go_in_circles(played: list[Round]) -> None:
    for end, reason in enumerate(run_guard(played), start=1):
        if len({_kind(calls) for _, calls in played[:end] if calls}) > REMEMBERED:
            return
        assert (reason is not None) is circles(played[:end]), played[:end]
        if reason is not None:
            # The turn ends here; what the guard would say later does not matter.
            return


def test_a_call_is_the_same_only_with_the_same_tool_input_and_result() -> None:
    base = ("grep", "in", "ok", "a")
    same: Round = ("", [base])
    assert run_guard([same, same, same])[-1] is not None
    for other in (("glob", "in", "ok", "a"), ("grep", "put", "ok", "a"), ("grep", "in", "ok", "b")):
        assert run_guard([same, same, ("", [other])]) == [None] * 3
    # The parts of the signature are kept apart.
    assert run_guard([("", [("a:b", "c", "ok", "d")]), ("", [("a", "b:c", "ok", "d")])] * 2) == [None] * 4


def test_a_circle_may_have_other_calls_in_it_but_no_change() -> None:
    look, find = ("", [("grep", "in", "ok", "a")]), ("", [("glob", "in", "ok", "a")])
    reasons = run_guard([look, find] * 3)
    assert reasons[:4] == [None] * 4 and "nothing changed in between" in str(reasons[4])
    tests = ("", [("bash", "test", "ok", "failed")])
    edits: list[Round] = [("", [("bash", f"edit {number}", "ok", "done")]) for number in range(6)]
    assert run_guard([each for edit in edits for each in (look, edit, tests)]) == [None] * 18
    assert run_guard([look, tests] * 3)[5] is not None, "a command that does the same again changes nothing"
    far: list[Round] = [("", [("grep", f"in {number}", "ok", "a")]) for number in range(REMEMBERED)]
    assert run_guard([look, *far] * 4) == [None] * 4 * (1 + REMEMBERED), (
        "what is looked at again much later is no circle"
    )


def test_the_same_fault_twice_in_a_row_ends_the_turn_and_another_does_not() -> None:
    cut, json, wrong = (
        ("bash", digest, fault, "x") for digest, fault in (("1", "cut"), ("2", "json"), ("3", "rejected"))
    )
    assert run_guard([("", [cut]), ("", [json]), ("", [wrong]), ("", [cut])]) == [None] * 4
    for one, other in (
        (cut, ("bash", "4", "cut", "y")),
        (json, ("bash", "5", "json", "y")),
        (wrong, ("bash", "6", "rejected", "x")),
    ):
        assert run_guard([("", [one]), ("", [other])])[-1] is not None
    assert run_guard([("", [wrong]), ("", [("bash", "6", "rejected", "another reason")])]) == [None] * 2
    fine = ("grep", "in", "ok", "a")
    assert run_guard([("", [cut, fine]), ("", [cut, fine])]) == [None] * 2


@given(st.integers(1, 128), st.text(min_size=1, max_size=200))
def test_what_the_guard_keeps_does_not_grow_with_the_calls(count: int, name: str) -> None:
    guard = LoopGuard()
    calls = [CallShape(index, name, Parallel.SAFE, "d" * 64) for index in range(count)]
    guard.check("t" * 64, calls, ["r" * 64] * count)
    for other in range(20):
        guard.check("", [CallShape(0, name, Parallel.SAFE, str(other))], ["r"])
    assert len(guard.seen) == REMEMBERED and {len(signature) for signature in guard.seen} == {32}


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
