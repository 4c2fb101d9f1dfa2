"""Running `milepost` as a person does: in processes of its own, on a data root of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SECONDS = 90
"""How long a command may take before a test gives up; generous, since machines differ."""

NO_TOOLS = "sandbox: {backend: none}\ntemporal: {port: 0, ui_port: 0}\napi: {port: 0}\n"
"""A configuration without containers, on ports of its own."""


@dataclass
class Milepost:
    """One data root and its commands."""

    home: Path
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, *arguments: str, stdin: str | None = None, log: Path | None = None) -> subprocess.Popen[str]:
        """Start a command and return at once. What it says goes to the file `log`, or can be had at its end."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MILEPOST_")}
        environment |= {"MILEPOST_HOME": str(self.home), "NO_COLOR": "1", "COLUMNS": "200"} | self.environment
        with contextlib.ExitStack() as stack:
            out = subprocess.PIPE if log is None else stack.enter_context(log.open("ab"))
            return subprocess.Popen(
                [sys.executable, "-c", "from cli.main import app; app()", *arguments],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                text=True,
            )

    def run(self, *arguments: str, stdin: str | None = None) -> Done:
        """Run a command to its end."""
        process = self.start(*arguments, stdin=stdin)
        return self.finish(process, stdin)

    def finish(self, process: subprocess.Popen[str], stdin: str | None = None) -> Done:
        """Wait for a started command."""
        try:
            out, err = process.communicate(stdin, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"{process.args} did not end.\n{out[-3000:]}\n{err[-3000:]}")
        return Done(process.returncode, out, err)

    @contextlib.contextmanager
    def working(self, *arguments: str) -> Iterator[Path]:
        """A `milepost worker` that takes work, ended in order at the end of the block; yields what it says."""
        log = self.home.with_name(f"worker-{len(list(self.home.parent.glob('worker-*')))}.log")
        worker = self.start("worker", *arguments, log=log)
        try:
            deadline = time.monotonic() + SECONDS
            while "Working on:" not in log.read_text():
                assert worker.poll() is None and time.monotonic() < deadline, f"It does not work: {log.read_text()}"
                time.sleep(0.05)
            yield log
            assert worker.poll() is None, f"It ended by itself: {log.read_text()}"
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(SECONDS) == 0, log.read_text()
        finally:
            worker.kill()
            worker.wait()

    def configure(self, text: str) -> None:
        """Write milepost.yaml beside the project."""
        (self.folder / "milepost.yaml").write_text(text, encoding="utf-8")

    def script(self, text: str) -> str:
        """A script file; returns its path."""
        path = self.folder / "script.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    def await_socket(self, process: subprocess.Popen[str]) -> None:
        """Wait until an instance serves."""
        deadline = time.monotonic() + SECONDS
        while not self._serves():
            if process.poll() is not None or time.monotonic() > deadline:
                out, err = process.communicate() if process.poll() is not None else ("", "not ready")
                pytest.fail(f"The instance did not start: {out}\n{err}")
            time.sleep(0.05)

    def _serves(self) -> bool:
        try:
            path = json.loads((self.home / "instance.json").read_text())["socket"]
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(path)
        except (OSError, ValueError):
            return False
        return True


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Standard output as exactly one JSON document."""
        return json.loads(self.out)

    def error(self) -> dict[str, Any]:
        """The JSON error object, the last line of standard error."""
        found = json.loads(self.err.strip().splitlines()[-1])["error"]
        assert isinstance(found, dict)
        return found


@pytest.fixture
def milepost(tmp_path: Path) -> Milepost:
    """A fresh data root, a folder to work in, and no containers."""
    folder = tmp_path / "project"
    folder.mkdir()
    made = Milepost(tmp_path / "home", folder)
    made.configure(NO_TOOLS)
    return made


@contextlib.contextmanager
def running(milepost: Milepost, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that stays, ended in order at the end of the block."""
    process = milepost.start(*arguments)
    try:
        milepost.await_socket(process)
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
