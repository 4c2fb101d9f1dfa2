"""`milepost doctor sandbox`: each requirement by itself, and for real."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from milepost.sandboxes.podman.examine import machine, service
from milepost.sandboxes.podman.examine.finding import Finding
from milepost.sandboxes.podman.health import report
from milepost.sandboxes.podman.provider import PodmanProvider
from tests.support.needs import unavailable


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder of programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("podman", "crun", "newuidmap", "newgidmap"):
        (folder / name).touch()
        (folder / name).chmod(0o4755)
    return folder


def made(tmp_path: Path, tools: Path, *, uid: int = 1000, kernel: str = "6.1.0-18-amd64") -> machine.Machine:
    (tmp_path / "etc").mkdir(exist_ok=True)
    return machine.Machine(uid, "ann", tmp_path, str(tools), kernel)


def named(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_a_machine_that_has_everything(tmp_path: Path, tools: Path) -> None:
    found = made(tmp_path, tools)
    for name in ("subuid", "subgid"):
        (tmp_path / "etc" / name).write_text("bob:100000:65536\nann:200000:65536\n")
    assert [each for each in machine.findings(found) if not each.ok] == []
    assert [each.name for each in machine.findings(made(tmp_path, tools, uid=0))] == ["kernel", "podman", "crun"]


def test_what_is_missing_is_named_with_a_fix_that_fits(tmp_path: Path, tools: Path) -> None:
    (tools / "newgidmap").chmod(0o755)
    (tools / "podman").unlink()
    found = named(machine.findings(made(tmp_path, tools, kernel="5.4.0")))
    (tmp_path / "etc" / "subuid").write_text("bob:100000:65536\nann:165536:1000\n")
    found |= named(machine.findings(made(tmp_path, tools, kernel="5.4.0")))
    assert not found["kernel"].ok
    assert "apt-get install" in str(found["podman"].fix)
    assert "newgidmap" in found["id helpers"].detail
    assert "--add-subuids 166536-232071 ann" in str(found["subuid"].fix), "after the ranges of others and one's own"
    assert "--add-subgids 100000-165535 ann" in str(found["subgid"].fix)
    (tmp_path / "proc/sys/user").mkdir(parents=True)
    (tmp_path / "proc/sys/user/max_user_namespaces").write_text("0\n")
    spaces = named(machine.findings(made(tmp_path, tools)))["user namespaces"]
    assert "sysctl" in str(spaces.fix)


def info(**host: Any) -> dict[str, Any]:
    made_host = {
        "security": {"rootless": True, "seccompEnabled": True},
        "idMappings": {"uidmap": [{"size": 1}, {"size": 65536}]},
        "cgroupVersion": "v2",
        "cgroupControllers": ["memory", "pids", "cpu"],
        "ociRuntime": {"name": "crun", "path": "/usr/bin/crun"},
        "slirp4netns": {"executable": "/usr/bin/slirp4netns"},
        "networkBackend": "netavark",
    }
    store = {"graphDriverName": "overlay", "graphRoot": "/store"}
    return {"host": made_host | host, "store": store, "version": {"Version": "5.4.2"}}


def looked(told: dict[str, Any], *, network: str = "none", allow: bool = False) -> dict[str, Finding]:
    return named(
        service.findings(told, report(told), network=network, allow_unenforced=allow, free=lambda path: 10 * 1024**3)
    )


def test_what_a_service_tells_of_its_host() -> None:
    assert all(each.ok for each in looked(info(), network="bridge").values())
    undelegated = looked(info(cgroupControllers=["memory", "pids"]))["cgroups"]
    assert (undelegated.ok, "cpus" in undelegated.detail, "Delegate=" in str(undelegated.fix)) == (False, True, True)
    assert looked(info(cgroupVersion="v1"), allow=True)["cgroups"].ok
    assert not looked(info(slirp4netns={}), network="bridge")["network"].ok
    assert looked(info(slirp4netns={}, pasta={"executable": "/usr/bin/pasta"}), network="bridge")["network"].ok
    vfs = info()
    vfs["store"]["graphDriverName"] = "vfs"
    assert "overlay" in str(looked(vfs)["storage"].fix)
    low = service.findings(info(), report(info()), network="none", allow_unenforced=False, free=lambda path: 1)
    assert not named(low)["disk"].ok


@pytest.mark.podman
async def test_this_machine_passes_and_nothing_is_left(podman: PodmanProvider) -> None:
    found = named(await podman.examine(network="none", allow_unenforced=False))
    assert [each for each in found.values() if not each.ok] == []
    assert {"container", "command", "process limit", "memory limit", "cpu limit", "removal"} <= found.keys()
    if os.getuid() == 0:
        assert found["memory limit"].detail == "Enforced."
    assert await podman.holdings() == ()


@contextmanager
def user_without_ranges() -> Iterator[str]:
    """A real user of this machine that has no subordinate ids."""
    if os.getuid() != 0 or shutil.which("useradd") is None or shutil.which("setpriv") is None:
        unavailable("useradd and setpriv as root", "only root can make a user")
    name = f"mp-test-{os.getpid()}"
    subprocess.run(["useradd", "--no-create-home", "--system", "--no-log-init", name], check=True, capture_output=True)
    try:
        yield name
    finally:
        subprocess.run(["userdel", name], check=True, capture_output=True)


def test_a_user_without_ranges_is_told_what_is_missing() -> None:
    with user_without_ranges() as name, tempfile.TemporaryDirectory(prefix="mp-user-") as folder:
        home = Path(folder)
        shutil.chown(home, name, name)
        # The capability lets this user read our interpreter wherever it lies, and nothing else.
        capability = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
        command = ["setpriv", "--reuid", name, "--regid", name, "--clear-groups", *capability, sys.executable]
        program = "from cli.main import app; app()"
        done = subprocess.run(
            [*command, "-c", program, "doctor", "sandbox", "--json"],
            cwd=home,
            env={"PATH": os.defpath, "HOME": str(home), "MILEPOST_HOME": str(home / "data")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 1, done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    for kind in ("subuid", "subgid"):
        assert not checks[kind]["ok"]
        assert f"{name} has no subordinate" in checks[kind]["detail"]
        assert f"--add-{kind}s " in checks[kind]["fix"]
    assert "container" not in checks, "what cannot work is not tried"
