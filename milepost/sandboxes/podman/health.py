"""What a Podman service tells of its host, and what follows from it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from milepost.domain.errors import SandboxUnavailable
from milepost.sandboxes.podman.mapping import BRIDGE
from milepost.sandboxes.podman.service import check_version

LIMITS = {"memory": "memory", "cpu": "cpus"}
"""Controller -> the limit it enforces. The number of processes is bounded by a resource limit as well, everywhere."""


@dataclass(frozen=True, slots=True)
class HostReport:
    """`controllers` are the cgroup controllers this service can use for a container.

    `network_mode` is the mode of the network namespace of a container that gets a network.
    """

    rootless: bool
    controllers: frozenset[str]
    summary: str
    unenforced: tuple[str, ...]
    network_mode: str = "private"


def report(info: dict[str, Any]) -> HostReport:
    """Read the answer of GET /info. Raises SandboxUnavailable for a host that cannot hold a sandbox."""
    host = info["host"]
    version = str(info["version"]["Version"])
    check_version(version)
    security = host["security"]
    rootless = bool(security["rootless"])
    if not security.get("seccompEnabled"):
        raise SandboxUnavailable(
            "This Podman cannot filter system calls (no seccomp), so no sandbox is safe here.",
            fix="Use a kernel and a Podman with seccomp.",
        )
    if rootless and _mapped_ids(host) <= BRIDGE:
        raise SandboxUnavailable(
            "This user has no range of subordinate user ids, which rootless Podman needs.",
            fix=(
                'Run: sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 "$USER" '
                "&& podman system migrate"
            ),
        )
    v1 = host["cgroupVersion"] == "v1"
    # A user cannot use the controllers of cgroup v1, and Podman drops such limits with a mere warning.
    controllers = frozenset() if rootless and v1 else frozenset(host.get("cgroupControllers") or ())
    unenforced = tuple(limit for controller, limit in LIMITS.items() if controller not in controllers)
    kind = "rootless" if rootless else "root, in user namespaces"
    summary = f"Podman {version} ({kind}, cgroups {host['cgroupVersion']})"
    return HostReport(rootless, controllers, summary, unenforced, _network_mode(host) if rootless else "private")


def _network_mode(host: dict[str, Any]) -> str:
    """Of an ordinary user's service: the helper is named, since the default one is slirp4netns up to 4.x, then pasta.

    slirp4netns where both are there: what it lets through is the same in all versions.
    """
    there = [name for name in ("slirp4netns", "pasta") if (host.get(name) or {}).get("executable")]
    return there[0] if there else "private"


def _mapped_ids(host: dict[str, Any]) -> int:
    entries = (host.get("idMappings") or {}).get("uidmap") or []
    return sum(int(entry["size"]) for entry in entries)
