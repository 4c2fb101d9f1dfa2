"""Milepost as a person has it: the installed command on a data root of its own. Nothing is mocked."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from milepost.sandboxes.podman.spec import INSTANCE

Json = dict[str, Any]

COMMAND_SECONDS = 150.0

_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "XDG_RUNTIME_DIR", "CONTAINERS_STORAGE_CONF")
"""What a command gets of this process's environment: no configuration of a Milepost can be among it."""


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Json:
        """Standard output, which must be exactly one JSON object."""
        parsed = json.loads(self.stdout)
        assert isinstance(parsed, dict), self.stdout
        return parsed


@dataclass
class Home:
    """A data root and a working directory without configuration. Its path is short: Unix sockets lie below it."""

    root: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="mp-e2e-")))

    def __post_init__(self) -> None:
        self.data = self.root / "home"
        self.work = self.root / "work"
        self._stderr = self.root / "stderr"
        self.work.mkdir()

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Start `milepost` in a process group of its own, as a terminal does."""
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        with self._stderr.open("wb") as stderr:
            return subprocess.Popen(
                [str(Path(sysconfig.get_path("scripts")) / "milepost"), *map(str, arguments)],
                cwd=self.work,
                env={**environment, "MILEPOST_HOME": str(self.data)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )

    def progress(self) -> str:
        """What the command at hand has written to standard error."""
        return self._stderr.read_text("utf-8", "replace")

    def run(self, *arguments: str | Path, seconds: float = COMMAND_SECONDS) -> Finished:
        """Run `milepost` to its end."""
        return self._end(self.start(*arguments), seconds)

    def interrupt(self, *arguments: str | Path, when: Callable[[], bool]) -> Finished:
        """Run `milepost` and press Ctrl-C once `when` holds: every process of the group gets the signal."""
        process = self.start(*arguments)
        deadline = time.monotonic() + COMMAND_SECONDS
        while not when() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        return self._end(process, COMMAND_SECONDS)

    def _end(self, process: subprocess.Popen[str], seconds: float) -> Finished:
        try:
            stdout, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, _ = process.communicate()
            raise AssertionError(f"no end within {seconds} s\n{stdout[-2000:]}\n{self.progress()[-4000:]}") from None
        return Finished(process.returncode, stdout, self.progress())

    def turn(self, request: str, workspace: Path, *more: str | Path, code: int = 0) -> Json:
        """`milepost run --json`: the document of the turn. It must end with `code`."""
        finished = self.run("run", request, "--workspace", workspace, *more, "--json")
        assert finished.code == code, finished.stderr[-4000:] + finished.stdout[-4000:]
        return finished.document

    def script(self, *responses: Json) -> Path:
        """A script file with these responses; JSON is YAML."""
        path = self.root / "script.yaml"
        path.write_text(json.dumps({"responses": responses}), "utf-8")
        return path

    def leftovers(self) -> list[str]:
        """Processes that still have to do with this data root."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            if str(self.data) in command:
                found.append(command)
        return found

    def remove(self) -> None:
        """Remove the containers of this instance and its files."""
        ledger = self.data / "milepost.db"
        if ledger.exists():
            with contextlib.closing(sqlite3.connect(ledger)) as connection:
                for (instance,) in connection.execute("SELECT instance_id FROM ledger_meta"):
                    ids = _podman("ps", "--all", "--quiet", "--filter", f"label={INSTANCE}={instance}").split()
                    if ids:
                        _podman("rm", "--force", "--time", "0", *ids)
                    volumes = _podman("volume", "ls", "--quiet", "--filter", f"label={INSTANCE}={instance}").split()
                    if volumes:
                        _podman("volume", "rm", "--force", *volumes)
        shutil.rmtree(self.root, ignore_errors=True)


def _podman(*arguments: str) -> str:
    if shutil.which("podman") is None:
        return ""
    done = subprocess.run(["podman", *arguments], capture_output=True, text=True, timeout=120, check=False)
    return done.stdout


def call(tool: str, **arguments: object) -> Json:
    """A tool call of a script."""
    return {"tool": tool, "args": arguments}


def cards(turn: Json) -> Sequence[tuple[str, str]]:
    """Tool and state of each call of a History entry."""
    return [(card["tool"], card["state"]) for card in turn["tools"]]
