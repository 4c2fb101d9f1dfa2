"""Whether a started container is as closed as it was asked to be, from what its supervisor sees. Pure."""

from __future__ import annotations

from typing import Any

from milepost.sandboxes.podman.mapping import AGENT
from milepost.sandboxes.podman.network import is_closed
from milepost.sandboxes.podman.spec import HOME, ROOT

_CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")

_FILTERING = "2"
_KERNEL = frozenset({"proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup", "cgroup2", "devtmpfs"})
_PODMAN_FILES = frozenset({"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/run/.containerenv", "/run/secrets"})


def problems(facts: dict[str, Any], network: str) -> list[str]:
    """What is wrong, in words; empty if the sandbox may be used."""
    found: list[str] = []
    status = facts["status"]
    found += [f"{name} is {status.get(name)}" for name in _CAPABILITY_SETS if int(status.get(name, "1"), 16) != 0]
    if status.get("NoNewPrivs") != "1":
        found.append("new privileges are not ruled out")
    if status.get("Seccomp") != _FILTERING:
        found.append("system calls are not filtered")
    if facts["uid"] != AGENT:
        found.append(f"it runs as user {facts['uid']}")
    found += _mount_problems(facts["mounts"])
    if network == "none" and set(facts["interfaces"]) - {"lo"}:
        found.append(f"it has network interfaces {', '.join(facts['interfaces'])}")
    if network != "none" and not is_closed(facts["routes"]):
        found.append("its way to this host and its metadata service is open")
    return found


def _mount_problems(mounts: list[list[str]]) -> list[str]:
    found: list[str] = []
    # The last mount on a point is the one that counts.
    seen = {point: (options.split(","), kind) for point, options, kind in mounts}
    if "ro" not in seen.get("/", ([], ""))[0]:
        found.append("its root file system is writable")
    workspace = seen.get(ROOT)
    if workspace is None or "rw" not in workspace[0]:
        found.append("the workspace is not mounted")
    elif not {"nosuid", "nodev"} <= set(workspace[0]) and "idmapped" not in workspace[0]:
        # crun before 1.9 drops the two options of an id-mapped mount. Without privileges, without the right to make
        # devices and with set-id modes filtered they only repeat what holds anyway.
        found.append("the workspace is mounted without nosuid or nodev")
    allowed = {"/", ROOT, HOME, *_PODMAN_FILES}
    for point, (_, kind) in seen.items():
        if point not in allowed and kind not in _KERNEL and not point.startswith(ROOT + "/"):
            found.append(f"there is an unexpected mount at {point}")
    return found
