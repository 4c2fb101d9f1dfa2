"""Which route a call takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from milepost.engine.routes import Failure, delay_before, next_route

FAILURES = st.lists(st.builds(Failure, st.integers(0, 4), st.booleans()), max_size=8)


def test_each_route_once_in_order_and_then_again() -> None:
    failures: list[Failure] = []
    taken = []
    for _ in range(6):
        route = next_route(3, 1, failures)
        assert route is not None
        taken.append(route)
        failures.append(Failure(route, final=False))
    assert taken == [1, 2, 0, 1, 2, 0]


def test_a_route_with_a_final_failure_is_out() -> None:
    assert next_route(2, 0, [Failure(0, final=True)]) == 1
    assert next_route(2, 0, [Failure(0, final=True), Failure(1, final=False)]) == 1
    assert next_route(2, 0, [Failure(0, final=True), Failure(1, final=True)]) is None


def test_only_a_route_that_failed_is_waited_for() -> None:
    failures = [Failure(0, final=False, retry_after=7.0), Failure(1, final=False)]
    assert [delay_before(route, failures) for route in (0, 1, 2)] == [7.0, None, 0.0]


@given(st.integers(1, 5), st.integers(0, 6), FAILURES)
def test_the_choice_is_a_route_that_may_still_answer(count: int, first: int, failures: list[Failure]) -> None:
    route = next_route(count, first, failures)
    out = {failure.route for failure in failures if failure.final and failure.route < count}
    assert (route is None) == (len(out) == count)
    assert route is None or (route < count and route not in out)
