"""Let the team make the failing tests of `repository/` pass, on a copy, and look at the result without the team.

Usage: python examples/reference_team/run.py [--config FILE] [--keep]

With the configuration beside this file the scripted provider plays the team. With a configuration of your own (a copy
of `milepost.yaml` with your provider) your model does it. Exits with 0 if all tests of the repository pass afterwards,
and the tests themselves are what they were.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE / "repository"
REQUEST = (
    "Some tests of this repository fail. Find out which and why, correct the faults, and show that all tests pass."
)
TURN_SECONDS = 3600
TEST_SECONDS = 120


def tests_pass(folder: Path) -> bool:
    """Run the repository's tests here, in a process of their own: what the agents say does not count."""
    command = [sys.executable, "-m", "unittest", "discover", "-t", ".", "-s", "tests"]
    return subprocess.run(command, cwd=folder, timeout=TEST_SECONDS, check=False).returncode == 0


def same_tests(folder: Path) -> bool:
    """Whether the tests are byte for byte those of the repository."""
    names = [path.relative_to(REPOSITORY) for path in REPOSITORY.glob("tests/*.py")]
    return all((folder / name).read_bytes() == (REPOSITORY / name).read_bytes() for name in names)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--config", type=Path, default=HERE / "milepost.yaml", help="configuration with the team")
    parser.add_argument("--keep", action="store_true", help="leave the copy where it is")
    arguments = parser.parse_args()
    scripted = arguments.config == HERE / "milepost.yaml"
    folder = Path(tempfile.mkdtemp(prefix="reference-team-"))
    copy = folder / "repository"
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    try:
        if tests_pass(copy):
            print("The tests pass before anybody has done anything.")
            return 1
        command = [sys.executable, "-c", "from cli.main import app; app()", "run", REQUEST, "--workspace", str(copy)]
        command += ["--config", str(arguments.config), *(("--script", str(HERE / "script.yaml")) if scripted else ())]
        turn = subprocess.run(command, timeout=TURN_SECONDS, check=False, env=os.environ | {"COLUMNS": "200"})
        good = tests_pass(copy) and same_tests(copy)
        found = "pass" if good else "FAIL"
        print(f"\nThe turn ended with code {turn.returncode}. Looked at from outside, the tests {found}.")
        return 0 if good and turn.returncode == 0 else 1
    finally:
        if arguments.keep:
            print(f"The copy is in {copy}.")
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
