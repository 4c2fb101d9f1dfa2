"""Checks that a wheel holds every file of the packages, and that Milepost runs from it alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGES = ("milepost", "workflows", "activities", "workers", "api", "cli")
ROOT = Path(__file__).parents[1]


def main(wheel: Path) -> int:
    tracked = subprocess.run(
        ["git", "ls-files", "-z", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        missing = sorted(name for name in tracked if name and name not in held)
        if missing:
            sys.stdout.write(f"Not in the wheel: {', '.join(missing)}\n")
            return 1
        with tempfile.TemporaryDirectory() as folder:
            site, work = Path(folder, "site"), Path(folder, "work")
            archive.extractall(site)
            work.mkdir()
            code = "import cli.main; assert cli.main.__file__.startswith({!r}); cli.main.app()"
            environment = {**os.environ, "PYTHONPATH": str(site), "MILEPOST_HOME": str(Path(folder, "home"))}
            environment |= {"MILEPOST_SANDBOX__BACKEND": "none", "MILEPOST_TEMPORAL__PORT": "0"}
            command = [sys.executable, "-c", code.format(str(site)), "run", "Look around", "--json"]
            done = subprocess.run(command, cwd=work, env=environment, stdout=subprocess.DEVNULL, timeout=300)
            if done.returncode:
                sys.stdout.write(f"A turn from the wheel ended with {done.returncode}.\n")
                return 1
    sys.stdout.write(f"{wheel.name}: {len(held)} files, and a turn runs from it.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
