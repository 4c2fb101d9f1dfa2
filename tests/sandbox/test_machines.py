"""Where Podman needs a virtual machine, an existing one is started, and none is ever made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from milepost.domain.errors import SandboxUnavailable
from milepost.sandboxes.podman import machines


def podman(folder: Path, listed: list[dict[str, Any]], *, starts: bool = True) -> str:
    """A program that answers as Podman does and writes down what it was asked."""
    inspected = [{"ConnectionInfo": {"PodmanSocket": {"Path": "/run/machine.sock"}}}]
    script = f"""#!/bin/sh
echo "$@" >> {folder}/asked
case "$2" in
list) echo '{json.dumps(listed)}' ;;
start) {"exit 0" if starts else "echo no disk >&2; exit 125"} ;;
inspect) echo '{json.dumps(inspected)}' ;;
esac
"""
    path = folder / "podman"
    path.write_text(script)
    path.chmod(0o755)
    return str(path)


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().splitlines()


async def test_a_stopped_machine_is_started_and_a_running_one_is_not(tmp_path: Path) -> None:
    two = [{"Name": "other", "Running": True}, {"Name": "main*", "Default": True, "Running": False}]
    assert await machines.ready(podman(tmp_path, two), {"PATH": "/usr/bin:/bin"}) == "/run/machine.sock"
    assert asked(tmp_path) == ["machine list --format json", "machine start main", "machine inspect main"]
    (tmp_path / "asked").unlink()
    await machines.ready(podman(tmp_path, [{"Name": "main", "Running": True}]), {"PATH": "/usr/bin:/bin"})
    assert asked(tmp_path) == ["machine list --format json", "machine inspect main"]


async def test_none_is_made(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="none is made") as refused:
        await machines.ready(podman(tmp_path, []), {"PATH": "/usr/bin:/bin"})
    assert "podman machine init" in str(refused.value.fix)
    assert asked(tmp_path) == ["machine list --format json"]
    stopped = [{"Name": "main", "Running": False}]
    with pytest.raises(SandboxUnavailable, match="no disk"):
        await machines.ready(podman(tmp_path, stopped, starts=False), {"PATH": "/usr/bin:/bin"})
