"""A worker that is killed at any moment of a turn changes nothing of what the turn does and leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from milepost.temporal.client import TemporalAddress
from tests.chaos import turn as plan
from tests.chaos.conftest import NewLedger
from tests.chaos.evidence import Evidence, check
from tests.chaos.points import Point, When
from tests.chaos.scenarios import Scenario, World, killed, undisturbed, world

AT_ONCE = 6
"""Worlds at a time. Most of their time they wait for Temporal to notice a death."""

COMMITS = [
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

pytestmark = [pytest.mark.podman, pytest.mark.timeout(400)]


class Worlds:
    """Makes a world for each run, a few at a time."""

    def __init__(self, folder: Path, new_ledger: NewLedger, podman_root: Path, temporal: str) -> None:
        self._folder = folder
        self._new_ledger = new_ledger
        self._podman_root = podman_root
        self._temporal = temporal
        self._places = asyncio.Semaphore(AT_ONCE)
        self._number = 0

    async def run(self, play: Callable[[World], Awaitable[Evidence]], *, gate: bool = True) -> Evidence:
        self._number += 1
        folder = self._folder / str(self._number)
        folder.mkdir()
        async with self._places:
            url = self._new_ledger(folder)
            async with world(folder, url, self._podman_root, self._temporal, gate=gate) as made:
                return await play(made)

    async def run_scenario(self, scenario: Scenario) -> Evidence:
        return await self.run(lambda made: killed(scenario, made), gate=not scenario.outlives)


@pytest.fixture
def worlds(tmp_path: Path, new_ledger: NewLedger, podman_root: Path, temporal_address: TemporalAddress) -> Worlds:
    return Worlds(tmp_path, new_ledger, podman_root, temporal_address.target)


async def test_a_kill_at_any_boundary_changes_nothing(worlds: Worlds) -> None:
    reference, *found = await asyncio.gather(
        worlds.run(undisturbed), *map(worlds.run_scenario, SCENARIOS), return_exceptions=True
    )
    if isinstance(reference, BaseException):
        raise reference
    check(reference, reference, lost_model_calls=0)
    faults = [fault for pair in zip(SCENARIOS, found, strict=True) for fault in _faults(*pair, reference)]
    assert not faults, "\n\n".join(faults)


async def test_without_fencing_a_kill_repeats_the_call(worlds: Worlds) -> None:
    """The control: what the test above asserts does not hold by itself."""
    scenario = replace(IN_TOOL, fencing=False)
    reference, found = await asyncio.gather(worlds.run(undisturbed), worlds.run_scenario(scenario))
    assert found.journal == [plan.FIRST, plan.LAST, plan.LAST]
    with pytest.raises(AssertionError, match="not each call once"):
        check(found, reference, lost_model_calls=0)


def _faults(scenario: Scenario, found: Evidence | BaseException, reference: Evidence) -> list[str]:
    if isinstance(found, Evidence):
        try:
            check(found, reference, lost_model_calls=scenario.lost_model_calls)
        except AssertionError as error:
            return [f"{scenario}:\n{error}"]
        return []
    if isinstance(found, Exception):
        return [f"{scenario}: {type(found).__name__}: {found}"]
    raise found
