"""What services of several versions tell of their hosts, as recorded from them, and what follows from it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from milepost.ports.sandbox import SandboxSpec
from milepost.sandboxes.podman import derive, mapping, spec
from milepost.sandboxes.podman.examine import service as examined
from milepost.sandboxes.podman.health import HostReport, report
from milepost.sandboxes.podman.service import Host, PodmanService

RECORDED = Path(__file__).parent / "recorded"
NAMES = sorted(path.stem for path in RECORDED.glob("podman-*.json"))


def told(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return found


def made(found: HostReport, network: str = "bridge") -> dict[str, Any]:
    limits = spec.HostLimits(found.controllers, 20_000, found.network_mode, found.rootless)
    wanted = SandboxSpec("s", "i", "/w", network=network)
    return spec.container(wanted, "image", {}, mapping.rootless(), limits, "/seccomp.json")


def test_an_ordinary_users_service_and_roots_are_told_apart() -> None:
    assert NAMES == ["podman-4.3.1-root", "podman-5.4.2-root", "podman-5.4.2-user"]
    for name in NAMES:
        found = report(told(name))
        assert found.rootless == name.endswith("user")
        assert name.split("-")[1] in found.summary
        # All three were recorded beside cgroups v1, where a user has no controller at all.
        assert found.unenforced == (("memory", "cpus") if found.rootless else ())


def test_limits_of_a_user_are_those_that_version_2_delegates() -> None:
    v2 = told("podman-5.4.2-user")
    v2["host"].update(cgroupVersion="v2", cgroupControllers=["memory", "pids"])
    found = report(v2)
    assert (found.unenforced, found.controllers) == (("cpus",), {"memory", "pids"})
    assert set(made(found)["resource_limits"]) == {"memory", "pids"}
    v2["host"]["cgroupControllers"] = ["cpu", "memory", "pids"]
    assert report(v2).unenforced == ()


def test_the_number_of_processes_is_counted_for_each_container_where_that_can_be() -> None:
    """The resource limit of an ordinary user counts all of the user's containers together."""
    v1, v2 = told("podman-5.4.2-user"), told("podman-5.4.2-user")
    v2["host"].update(cgroupVersion="v2", cgroupControllers=["cpu", "memory", "pids"])
    limits = [{each["type"]: each["soft"] for each in made(report(host))["r_limits"]} for host in (v1, v2)]
    assert (limits[0]["nproc"], "nproc" in limits[1]) == (512, False)
    assert made(report(v2))["resource_limits"]["pids"] == {"limit": 512}
    assert "nproc" in {each["type"] for each in made(report(told("podman-5.4.2-root")))["r_limits"]}


def test_the_network_helper_of_a_user_is_named() -> None:
    """Podman's default one has changed with 5.0; of what it lets through nothing may depend on that."""
    both = told("podman-5.4.2-user")
    assert both["host"]["rootlessNetworkCmd"] == "pasta"
    assert made(report(both))["netns"] == {"nsmode": "slirp4netns"}
    only_new = told("podman-5.4.2-user")
    del only_new["host"]["slirp4netns"]
    assert made(report(only_new))["netns"] == {"nsmode": "pasta"}
    assert made(report(both), "none")["netns"] == {"nsmode": "none"}
    for name in ("podman-4.3.1-root", "podman-5.4.2-root"):
        assert made(report(told(name)))["netns"] == {"nsmode": "private"}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_relies_on_a_default_that_has_changed(name: str) -> None:
    container = made(report(told(name)))
    assert all(limit["soft"] == limit["hard"] for limit in container["r_limits"]), "4.3 swaps the two if they differ"
    assert container["read_write_tmpfs"] is False, "4.3 ignores it, 5.x honors it"
    assert {mount["destination"] for mount in container["mounts"]} >= {"/tmp", "/var/tmp", "/run"}
    assert container["systemd"] == "false" and container["httpproxy"] is False and container["restart_policy"] == "no"


@pytest.mark.parametrize("name", NAMES)
def test_the_examination_understands_every_version(name: str) -> None:
    found = report(told(name))
    looks = examined.findings(
        told(name), found, network="bridge", allow_unenforced=found.rootless, free=lambda _: 1 << 40
    )
    assert [each for each in looks if not each.ok] == []


@pytest.mark.parametrize("database", ["libpod/bolt_state.db", "db.sql"])
def test_the_driver_of_a_store_that_is_there_is_kept(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4.x keeps it in one database, 5.x in another; a driver that is forced on it is refused, or hides all images."""
    account = type("Account", (), {"pw_dir": str(tmp_path), "pw_name": "ann"})
    monkeypatch.setattr("milepost.sandboxes.podman.service.pwd.getpwuid", lambda _: account)
    service = PodmanService(tmp_path, None, None, None)
    service.host = Host(4242, False, "/usr/bin/podman")
    configured = Path("/etc/containers/storage.conf").exists()
    assert ("--storage-driver=overlay" in service.command("podman", tmp_path / "s")) != configured
    place = tmp_path / ".local/share/containers/storage" / database
    place.parent.mkdir(parents=True)
    place.touch()
    assert "--storage-driver=overlay" not in service.command("podman", tmp_path / "s")


def test_a_container_that_completes_an_image_gets_the_same_network() -> None:
    script = derive.Script("true", 1.0, network=report(told("podman-5.4.2-user")).network_mode)
    assert derive._spec("image", script, {}, mapping.plain(None), gated=False)["netns"] == {"nsmode": "slirp4netns"}


def test_the_documentation_names_tests_that_exist() -> None:
    """The table says what CI tries under which kind of service."""
    text = (Path(__file__).parents[2] / "docs/sandbox.md").read_text().split("## What is tried where")[1]
    rows = [line.split("|")[1:4] for line in text.split("### Versions")[0].splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 8
    folder = Path(__file__).parent
    for assertion, user, root in rows:
        for kind, cell in (("rootless", user), ("podman", root)):
            named = re.findall(r"`((?:conformance/)?test_\w+\.py)`", cell)
            assert named or "not in CI" in cell or "conformance" in cell, assertion
            for name in named:
                source = (folder / name).read_text()
                wanted = "rootless: Rootless" if kind == "rootless" else r"pytest\.mark\.(podman|needs)"
                assert re.search(wanted, source), f"{name} has no test under this service: {assertion}"
