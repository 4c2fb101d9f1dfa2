"""The example's team, played by its script, in a real sandbox."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "reference_team"


pytestmark = [pytest.mark.podman, pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.usefixtures("podman_root")]


def test_the_team_makes_the_failing_tests_pass(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MILEPOST_")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "run.py")],
        env=environment | {"MILEPOST_HOME": str(tmp_path / "home"), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "the tests pass" in done.stdout
    assert "4. run all tests (after 2, 3)" in done.stdout and "subtask 4 succeeded" in done.stdout
