"""What a Podman service tells of its host, requirement by requirement. Pure."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

from milepost.sandboxes.podman.examine.finding import Finding
from milepost.sandboxes.podman.health import HostReport

MIN_FREE = 2 * 1024**3
DELEGATE = (
    "sudo mkdir -p /etc/systemd/system/user@.service.d && printf '[Service]\\nDelegate=cpu cpuset io memory pids\\n' | "
    "sudo tee /etc/systemd/system/user@.service.d/delegate.conf && sudo systemctl daemon-reload   (then log in again)"
)
CONSENT = "or let sandboxes run without them: sandbox.allow_unenforced_limits: true"

FreeBytes = Callable[[str], int]


def findings(
    info: dict[str, Any], found: HostReport, *, network: str, allow_unenforced: bool, free: FreeBytes | None = None
) -> list[Finding]:
    """`free` gives the free bytes of a folder. `network` is the configured one."""
    host, store = info["host"], info["store"]
    runtime = host.get("ociRuntime") or {}
    return [
        Finding("service", True, f"{found.summary}."),
        Finding("runtime", True, f"{runtime.get('name', 'unknown')} at {runtime.get('path', 'unknown')}."),
        _cgroups(host, found, allow_unenforced),
        _storage(store),
        Finding("seccomp", True, "System calls can be filtered."),
        _disk(store, free or (lambda path: shutil.disk_usage(path).free)),
        _network(host, found, network),
    ]


def _cgroups(host: dict[str, Any], found: HostReport, allow_unenforced: bool) -> Finding:
    version = host["cgroupVersion"]
    if not found.unenforced:
        return Finding("cgroups", True, f"{version}: {', '.join(sorted(found.controllers))}.")
    limits = " and ".join(found.unenforced)
    what = f"{version}: {limits} of a container cannot be limited here."
    if allow_unenforced:
        return Finding("cgroups", True, f"{what} The configuration agrees to that.")
    repair = DELEGATE if version == "v2" else "Boot with systemd.unified_cgroup_hierarchy=1 (cgroups v2)"
    return Finding("cgroups", False, what, f"{repair}; {CONSENT}")


def _storage(store: dict[str, Any]) -> Finding:
    driver = str(store.get("graphDriverName"))
    if driver == "vfs":
        fix = (
            "printf '[storage]\\ndriver = \"overlay\"\\n' >> ~/.config/containers/storage.conf && "
            "podman system reset   (removes the user's images and containers)"
        )
        return Finding("storage", False, "vfs copies the whole image for every container.", fix)
    return Finding("storage", True, f"{driver} at {store.get('graphRoot')}.")


def _disk(store: dict[str, Any], free: FreeBytes) -> Finding:
    place = str(store.get("graphRoot"))
    try:
        there = free(place)
    except OSError as error:
        return Finding("disk", True, f"The free space of {place} is not known ({error.strerror}).")
    detail = f"{there / 1024**3:.1f} GiB free at {place}."
    if there < MIN_FREE:
        return Finding("disk", False, detail, "Free some space: podman system prune")
    return Finding("disk", True, detail)


def _network(host: dict[str, Any], found: HostReport, network: str) -> Finding:
    if network == "none":
        return Finding("network", True, "None is wanted (sandbox.network: none).")
    if not found.rootless:
        backend = str(host.get("networkBackend") or "cni")
        if backend == "netavark":
            return Finding("network", True, "netavark.")
        fix = "sudo apt-get install -y --no-install-recommends netavark iptables"
        return Finding("network", False, f"The network back end is {backend}; netavark is needed.", fix)
    helpers = {"slirp4netns": host.get("slirp4netns"), "pasta": host.get("pasta")}
    there = [name for name, value in helpers.items() if (value or {}).get("executable")]
    if there:
        return Finding("network", True, f"{' and '.join(there)}.")
    fix = "sudo apt-get install -y --no-install-recommends slirp4netns"
    return Finding("network", False, "Neither slirp4netns nor pasta is installed.", fix)
