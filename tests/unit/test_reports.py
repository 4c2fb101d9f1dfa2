"""A lone surrogate in a report does not end a parallel test run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TEST = """
import sys
def test_passes():
    sys.stderr.write("half \\ud83d")
def test_fails():
    assert "half \\ud83d" == ""
"""


def test_surrogates_in_output_and_failures_reach_the_report(tmp_path: Path) -> None:
    (tmp_path / "test_odd.py").write_text(TEST)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.support.reports"]\n')
    command = [sys.executable, "-m", "pytest", "-n", "1", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    result = subprocess.run(
        [*command, str(tmp_path)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )
    assert "1 failed, 1 passed" in result.stdout, result.stdout[-3000:]
    assert "INTERNALERROR" not in result.stdout
