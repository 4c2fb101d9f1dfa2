"""A worker that is killed at any moment of a turn changes nothing of what the turn does and leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos import turn as plan
from tests.chaos.conftest import Runs
from tests.chaos.evidence import check
from tests.chaos.points import Point, When
from tests.chaos.scenarios import Scenario

COMMITS = [
    # First, since a leased item waits for the end of its lease.
    Point("lease", When.AFTER),
    *(Point("deliver", when) for when in (When.BEFORE, When.AFTER)),
    *(Point(step, when) for step in ("prepare", "finish") for when in (When.BEFORE, When.AFTER)),
    *(
        Point(step, when, position)
        for position in (plan.MODEL, plan.BASH)
        for step in ("enter", "settle")
        for when in (When.BEFORE, When.AFTER)
    ),
    # The moments at which the ledger alone does not tell whether a call was made.
    *(
        Point(step, when, position)
        for position in (plan.WRITE, plan.EDIT)
        for step, when in (("enter", When.AFTER), ("settle", When.BEFORE))
    ),
]
IN_MODEL = Scenario(Point("model", When.INSIDE, plan.MODEL))
IN_TOOL = Scenario(Point("tool", When.INSIDE, plan.LAST))
SCENARIOS = [*map(Scenario, COMMITS), IN_MODEL, IN_TOOL, replace(IN_TOOL, outlives=True)]
UNFENCED = replace(IN_TOOL, fencing=False)

pytestmark = [
    pytest.mark.podman,
    pytest.mark.timeout(400),
    pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_a_kill_changes_nothing(runs: Runs, database: str, scenario: Scenario) -> None:
    check(runs.of(database, scenario), runs.of(database))


@pytest.mark.parametrize("scenario", [UNFENCED], ids=str)
def test_without_fencing_a_kill_repeats_the_call(runs: Runs, database: str, scenario: Scenario) -> None:
    """The control: what the test above asserts does not hold by itself."""
    undisturbed, found = runs.of(database), runs.of(database, scenario)
    check(undisturbed, undisturbed)
    assert found.journal == [plan.FIRST, plan.LAST, plan.LAST]
    with pytest.raises(AssertionError, match="not each call once"):
        check(found, undisturbed)
