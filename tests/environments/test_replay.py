"""Recorded histories of environments replay on the present workflow code."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.bootstrap.system import release
from tests.environments.histories import RECORDED, SCENARIOS
from tests.environments.planted import FailsFirst
from tests.histories.bounds import oversize
from tests.histories.test_replay import load, replay

FILES = sorted(RECORDED.glob("*/*.json"))


def test_every_scenario_of_this_release_is_recorded() -> None:
    assert {path.stem for path in FILES if path.parent.name == release()} == set(SCENARIOS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_a_recorded_history_replays_and_another_order_is_noticed(path: Path) -> None:
    history = load(path)
    assert oversize(history) == []
    assert (await replay(history)).replay_failure is None
    assert (await replay(history, [FailsFirst])).replay_failure is not None
