"""What the machine must have before Podman can do anything. Reads files, runs nothing."""

from __future__ import annotations

import os
import platform
import pwd
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from milepost.sandboxes.podman.examine.finding import Finding
from milepost.sandboxes.podman.mapping import RANGE
from milepost.sandboxes.podman.service import INSTALL

KERNEL = (5, 12)
FIRST_ID = 100_000
SEARCH = f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin:{os.defpath}"
_INSTALL = "sudo apt-get install -y --no-install-recommends"


@dataclass(frozen=True, slots=True)
class Machine:
    """The user that runs containers, and where the machine's files are."""

    uid: int
    user: str
    root: Path = Path("/")
    search: str = SEARCH
    kernel: str = ""

    @classmethod
    def detect(cls) -> Machine:
        uid = os.getuid()
        try:
            user = pwd.getpwuid(uid).pw_name
        except KeyError:
            user = str(uid)
        return cls(uid, user, kernel=platform.release())

    def read(self, path: str) -> str | None:
        try:
            return (self.root / path.lstrip("/")).read_text(errors="replace")
        except OSError:
            return None


def findings(machine: Machine) -> list[Finding]:
    """In the order in which they would have to be repaired."""
    found = [_kernel(machine), _podman(machine)]
    if machine.uid == 0:
        return [*found, _crun(machine)]
    return [*found, *(_ids(machine, kind) for kind in ("uid", "gid")), _helpers(machine), _namespaces(machine)]


def _kernel(machine: Machine) -> Finding:
    match = re.match(r"(\d+)\.(\d+)", machine.kernel)
    ok = match is not None and (int(match[1]), int(match[2])) >= KERNEL
    wanted = ".".join(map(str, KERNEL))
    return Finding(
        "kernel", ok, f"Linux {machine.kernel or 'unknown'}.", None if ok else f"Use Linux {wanted} or later."
    )


def _podman(machine: Machine) -> Finding:
    path = shutil.which("podman", path=machine.search)
    if path is None:
        return Finding("podman", False, "Podman is not installed.", INSTALL)
    return Finding("podman", True, f"{path}.")


def _crun(machine: Machine) -> Finding:
    path = shutil.which("crun", path=machine.search)
    if path is None:
        return Finding("crun", False, "root's containers need crun, which is not installed.", f"{_INSTALL} crun")
    return Finding("crun", True, f"{path}.")


def _ids(machine: Machine, kind: str) -> Finding:
    """Subordinate ids of the user; the fix names a range that nobody has."""
    name = f"sub{kind}"
    text = machine.read(f"/etc/{name}") or ""
    entries = [line.split(":") for line in text.splitlines() if line.count(":") == 2]
    ranges = [(owner, int(start), int(size)) for owner, start, size in entries if start.isdigit() and size.isdigit()]
    mine = sum(size for owner, _, size in ranges if owner in (machine.user, str(machine.uid)))
    if mine >= RANGE:
        return Finding(name, True, f"{mine} subordinate {kind}s of {machine.user} in /etc/{name}.")
    first = max([FIRST_ID, *(start + size for _, start, size in ranges)])
    last = first + RANGE - 1
    what = f"{machine.user} has {mine or 'no'} subordinate {kind}s in /etc/{name}; {RANGE} are needed."
    fix = f"sudo usermod --add-sub{kind}s {first}-{last} {machine.user} && podman system migrate"
    return Finding(name, False, what, fix)


def _helpers(machine: Machine) -> Finding:
    """newuidmap and newgidmap, which hand out the subordinate ids, need a privilege of their own."""
    for tool in ("newuidmap", "newgidmap"):
        path = shutil.which(tool, path=machine.search)
        if path is None:
            return Finding("id helpers", False, f"{tool} is not installed.", f"{_INSTALL} uidmap")
        if not (Path(path).stat().st_mode & stat.S_ISUID or _has_capability(path)):
            fix = f"{_INSTALL} --reinstall uidmap"
            return Finding("id helpers", False, f"{path} has neither its set-user-id bit nor a capability.", fix)
    return Finding("id helpers", True, "newuidmap and newgidmap can do their work.")


def _has_capability(path: str) -> bool:
    try:
        return bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False


def _namespaces(machine: Machine) -> Finding:
    name = "user namespaces"
    most = (machine.read("/proc/sys/user/max_user_namespaces") or "1").strip()
    if most == "0":
        fix = "sudo sysctl -w user.max_user_namespaces=28633"
        return Finding(name, False, "The kernel allows none (user.max_user_namespaces is 0).", fix)
    if (machine.read("/proc/sys/kernel/unprivileged_userns_clone") or "1").strip() == "0":
        fix = "sudo sysctl -w kernel.unprivileged_userns_clone=1"
        return Finding(name, False, "Ordinary users may make none (kernel.unprivileged_userns_clone is 0).", fix)
    return Finding(name, True, "Ordinary users may make them.")
