"""Cold start of `milepost dev` to ready, idle memory of the whole stack, and size of an installation.

Usage: python -m benchmarks.startup [--json]

Linux only: memory is the proportional set size (PSS) of the process tree from /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

READY_SECONDS = 60.0
IDLE_SECONDS = 5.0
STOP_SECONDS = 30.0


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found.extend(int(child) for child in task.read_text().split())
    return found


def pss_mib(pid: int) -> dict[str, float]:
    """Proportional memory by program of a process tree, in MiB."""
    by_program: dict[str, float] = {}
    for process in tree(pid):
        try:
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
            name = Path(f"/proc/{process}/comm").read_text().strip()
        except OSError:
            continue
        pss = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
        by_program[name] = round(by_program.get(name, 0) + pss / 1024, 1)
    return by_program


def environment(home: Path) -> dict[str, str]:
    """The caller's, with a data root of its own; byte code may be kept, as on a person's machine."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "MILEPOST_HOME": str(home)}


def measure() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        config = Path(folder) / "milepost.yaml"
        config.write_text("api:\n  port: 0\n")
        start = time.perf_counter()
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("milepost")), "dev", "--config", str(config), "--json"],
            env=environment(home),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            # The first document is printed when the API serves and the worker polls.
            document = process.stdout.readline()
            ready = time.perf_counter() - start
            if not document:
                raise SystemExit(f"milepost dev ended with code {process.wait(STOP_SECONDS)}")
            time.sleep(IDLE_SECONDS)
            memory = pss_mib(process.pid)
        finally:
            stopping = time.perf_counter()
            process.send_signal(signal.SIGINT)
            process.wait(STOP_SECONDS)
        return {
            "ready s": round(ready, 2),
            "stop s": round(time.perf_counter() - stopping, 2),
            "idle MiB": round(sum(memory.values())),
            "idle MiB by program": memory,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    measure()  # the first start compiles what it imports
    figures = measure()
    if parser.parse_args().json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:22} {value}")


if __name__ == "__main__":
    main()
