"""What a budget allows, by arithmetic alone."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.domain.budgets import Budget, Limits, Reservation, Spending, Window, limits_of
from milepost.domain.errors import InvalidInput
from milepost.domain.usage import UNKNOWN_USAGE, Cost, Usage
from milepost.engine import budgets as rules

HOUR = 3_600_000_000


def held(tokens: int, micros: int | None = 0) -> Reservation:
    return Reservation("e", 1, "s", "t", "a", ("session/s",), tokens, None if micros is None else Decimal(micros))


calls = st.tuples(st.integers(1, 500), st.integers(0, 500), st.booleans(), st.booleans())


@given(st.lists(calls, max_size=30), st.integers(0, 3000))
def test_calls_that_keep_to_their_reservations_never_pass_a_limit(
    plan: list[tuple[int, int, bool, bool]], of: int
) -> None:
    """Whatever is open at the same time, ends in whatever order, or is lost."""
    limits, state, under_way = Limits(tokens=of), Spending(), []
    used = Usage()
    for reserve, uses, known, ends in plan:
        if rules.breach("session/s", limits, state, reserve, None) is None:
            state = rules.with_reserved(state, reserve, Decimal(0))
            under_way.append((held(reserve), min(uses, reserve), known))
        if ends and under_way:
            reservation, tokens, known = under_way.pop(0)
            usage = Usage(tokens, cost=Cost()) if known else UNKNOWN_USAGE
            used += usage
            state = rules.with_settled(state, reservation, usage, 0)
        assert state.tokens <= of
    assert state.usage.total_tokens == used.total_tokens
    for reservation, tokens, _ in under_way:
        state = rules.with_settled(state, reservation, Usage(tokens, cost=Cost()), 0)
    assert (state.reserved_tokens, state.reserved_micros) == (0, 0)


def test_what_is_not_known_of_a_lost_call_is_charged_as_it_was_reserved() -> None:
    begun = rules.with_reserved(Spending(), 100, Decimal(30))
    assert (begun.tokens, begun.micros, begun.model_calls) == (100, 30, 1)
    lost = rules.with_settled(begun, held(100, 30), UNKNOWN_USAGE, 0)
    assert (lost.tokens, lost.micros, lost.reserved_tokens, lost.usage.complete) == (100, 30, 0, False)
    refused = rules.with_settled(begun, held(100, 30), Usage(), 0)
    assert (refused.tokens, refused.micros) == (0, 0)
    known = rules.with_settled(begun, held(100, 30), Usage(7, 0, 3, cost=Cost(Decimal(5))), 2)
    assert (known.tokens, known.micros, known.tool_calls) == (10, 5, 2)


def test_the_message_has_the_numbers() -> None:
    state = Spending(usage=Usage(7_200, cost=Cost(Decimal(1_500_000))))
    found = rules.breach("turn/t", Limits(tokens=10_000), state, 5_120, Decimal(0))
    assert found is not None
    assert found.text == "The turn may use 10,000 (tokens): 7,200 are used, and this call may need 5,120."
    assert rules.breach("turn/t", Limits(tokens=10_000), state, 2_800, Decimal(0)) is None
    money = rules.breach("agent/a/total", Limits(cost=Decimal(2)), state, 1, Decimal(600_000))
    assert money is not None and money.text.startswith("The agent may use 2 (cost): 1.5 are used")
    unknown = rules.breach("session/s", Limits(cost=Decimal(2)), state, 1, None)
    assert unknown is not None and "the price of the model is unknown" in unknown.text
    late = rules.breach_of_time(Limits(seconds=5), 5.04)
    assert late is not None and late.text == "The turn may use 5 (seconds): 5.0 are used."


def test_alerts_are_given_once_for_each_limit_and_level() -> None:
    limits = Limits(tokens=100, model_calls=4)
    state = Spending(usage=Usage(85, cost=Cost()), model_calls=4)
    assert [(limit, level) for limit, level, _, _ in rules.reached(limits, state, 80)] == [
        ("tokens", 80),
        ("model_calls", 80),
        ("model_calls", 100),
    ]
    told = Spending(usage=Usage(85, cost=Cost()), told=("tokens:80",))
    assert not list(rules.reached(limits, told, 80))


def test_an_agents_use_counts_by_day_month_or_altogether() -> None:
    at = 1_769_900_400_000_000  # 2026-01-31T23:00:00Z
    names = {
        window: list(rules.scopes(Budget(agent=Limits(tokens=1), agent_window=window), "s", "t", "a", when))[-1]
        for when in (at,)
        for window in Window
    }
    assert names == {
        Window.TOTAL: "agent/a/total",
        Window.MONTH: "agent/a/2026-01",
        Window.DAY: "agent/a/2026-01-31",
    }
    later = rules.scopes(Budget(agent=Limits(tokens=1), agent_window=Window.MONTH), "s", "t", "a", at + HOUR)
    assert list(later) == ["session/s", "agent/a/2026-02"]
    assert list(rules.scopes(Budget(), "s", "t", "a", at)) == ["session/s"]


@pytest.mark.parametrize(
    "bad",
    [
        {"tokens": "1.5"},
        {"tokens": "-1"},
        {"euros": "1"},
        {"cost": "NaN"},
        {"seconds": "1e99"},
        # Written out it has a million digits.
        {"cost": "1e-999999"},
        {"cost": "0.0000000000001"},
    ],
)
def test_limits_that_mean_nothing_are_refused(bad: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        limits_of({name: Decimal(amount) for name, amount in bad.items()})


def test_the_tighter_limit_holds() -> None:
    tight = Limits(tokens=5, cost=Decimal(2)).tightened(Limits(tokens=9, cost=Decimal(1), seconds=3))
    assert tight == Limits(tokens=5, cost=Decimal(1), seconds=3)
