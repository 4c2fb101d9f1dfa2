"""Several processes on one PostgreSQL and one Temporal cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import apart
from tests.chaos.conftest import Plays
from tests.chaos.evidence import Fault, Kind

pytestmark = [pytest.mark.podman, pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(450)]


@pytest.mark.play(runs=[apart.two_apis])
def test_two_apis_serve_one_instance(plays: Plays) -> None:
    found = plays.of(apart.two_apis)
    assert not found["faults"]
    assert found["created"] == [False, True], "a request that both got made one turn"
    assert found["stopped"], "a turn begun through one is stopped through the other"
    assert found["ended"], "a reader of the one sees turns begun through the other"


@pytest.mark.play(runs=[apart.drained])
def test_a_worker_that_is_told_to_stop_ends_or_hands_on_its_work(plays: Plays) -> None:
    found = plays.of(apart.drained)
    assert not found["faults"]
    assert found["codes"] == [0, 0]
    assert found["attempts"] == [{}, {apart.HELD: 2}]
    assert found["handed on"]
    assert found["at once"]


async def frozen(podman_root: Path) -> list[Fault]:
    return await apart.frozen(podman_root)


async def frozen_without_fence(podman_root: Path) -> list[Fault]:
    return await apart.frozen(podman_root, frozenset({"fence"}))


@pytest.mark.play(runs=[frozen, frozen_without_fence])
def test_a_worker_that_comes_back_after_its_work_was_taken_over_changes_nothing(plays: Plays) -> None:
    assert not plays.of(frozen)
    without: list[Fault] = plays.of(frozen_without_fence)
    assert Kind.RESULT in {fault.kind for fault in without}, "only the fence keeps it from that"


@pytest.mark.play(runs=[apart.alone_and_frozen])
def test_a_turn_whose_only_worker_is_stopped_is_not_shown_as_worked_on(plays: Plays) -> None:
    assert not plays.of(apart.alone_and_frozen)


@pytest.mark.play(runs=[apart.upgraded])
def test_a_turn_ends_on_the_release_it_began_on(plays: Plays) -> None:
    found = plays.of(apart.upgraded)
    assert not found["faults"]
    assert found["before"] == apart.THIS_RELEASE
    assert (found["pinned"], found["next"], found["code"]) == (True, True, 0)
