"""Writes milepost/sandboxes/podman/seccomp.json from the profile that the distribution ships for containers.

    python infra/image/seccomp.py [/usr/share/containers/seccomp.json]

The base (containers/common, Apache-2.0) still allows a container without privileges to make namespaces. This keeps
its list of ordinary system calls and takes out what no build, test or editor needs but kernel exploits do.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

BASE = Path("/usr/share/containers/seccomp.json")
TARGET = Path(__file__).parents[2] / "milepost" / "sandboxes" / "podman" / "seccomp.json"

EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
ALLOW, ERRNO = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"

# Namespaces and mounts, keys, tracing of other users' work, raw handles, the calls of other chapters below.
REMOVED = set(
    """
    setns unshare mount umount umount2 mount_setattr move_mount open_tree fsopen fsmount fsconfig fspick
    pivot_root keyctl add_key request_key bpf perf_event_open userfaultfd fanotify_init fanotify_mark
    lookup_dcookie quotactl name_to_handle_at open_by_handle_at reboot syslog chroot acct kcmp ioperm iopl
    modify_ldt personality clock_settime clock_settime64 settimeofday stime clock_adjtime clock_adjtime64 adjtimex
    vhangup setdomainname sethostname delete_module finit_module init_module query_module memfd_secret socketcall
    ipc syscall
    """.split()  # noqa: SIM905
)
# Called by well-behaved programs that expect a refusal, not a missing call.
REFUSED = set(
    """
    setns unshare mount umount2 chroot pivot_root sethostname clock_settime settimeofday keyctl
    """.split()  # noqa: SIM905
)
# The new namespaces' bits of clone(2): cgroup, uts, ipc, user, pid, net, mount, time.
NEW_NAMESPACES = 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000 | 0x00020000 | 0x00000080
SET_ID = 0o6000
# Where each call has its mode: no set-id file may appear in a workspace that lies on the host.
MODE_ARGUMENT = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "creat": 1, "open": 2, "openat": 3, "mknod": 1, "mknodat": 2}
# Families: unix, inet, inet6, netlink. Not vsock, which reaches the hypervisor from any network namespace.
FAMILIES = (1, 2, 10, 16)
# Their structures cannot be inspected; programs fall back to the older calls.
UNSUPPORTED = ("clone3", "openat2", "fchmodat2", "io_uring_setup", "io_uring_enter", "io_uring_register")


def argument(index: int, op: str, value: int, value_two: int = 0) -> dict[str, Any]:
    return {"index": index, "value": value, "valueTwo": value_two, "op": f"SCMP_CMP_{op}"}


def rule(names: list[str], action: str, errno: int | None = None, *args: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {"names": names, "action": action}
    if errno is not None:
        result["errnoRet"] = errno
    if args:
        result["args"] = list(args)
    return result


def derive(base: dict[str, Any]) -> dict[str, Any]:
    """Allowed: what the base allows to everybody on the two architectures, minus the lists above."""
    special = {*MODE_ARGUMENT, *UNSUPPORTED, "clone", "socket"}
    allowed: set[str] = {"arch_prctl"}
    for entry in base["syscalls"]:
        if entry["action"] == ALLOW and not entry.get("includes") and not entry.get("args"):
            allowed |= set(entry["names"])
    allowed -= REMOVED | special
    rules = [
        rule(sorted(allowed), ALLOW),
        rule(sorted(REFUSED), ERRNO, EPERM),
        rule(sorted(UNSUPPORTED), ERRNO, ENOSYS),
        rule(["clone"], ALLOW, None, argument(0, "MASKED_EQ", NEW_NAMESPACES, 0)),
        rule(["personality"], ALLOW, None, argument(0, "EQ", 0)),
        rule(["personality"], ALLOW, None, argument(0, "EQ", 0xFFFFFFFF)),
    ]
    rules += [rule([name], ALLOW, None, argument(at, "MASKED_EQ", SET_ID, 0)) for name, at in MODE_ARGUMENT.items()]
    for name, at in MODE_ARGUMENT.items():
        # value is the mask, valueTwo what must remain: one rule per bit, since either alone is refused.
        rules += [rule([name], ERRNO, EPERM, argument(at, "MASKED_EQ", bit, bit)) for bit in (0o4000, 0o2000)]
    rules += [rule(["socket"], ERRNO, EAFNOSUPPORT, argument(0, "GT", max(FAMILIES)))]
    rules += [rule(["socket"], ALLOW, None, argument(0, "EQ", family)) for family in FAMILIES]
    return {
        "defaultAction": ERRNO,
        "defaultErrnoRet": ENOSYS,
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
        ],
        "syscalls": rules,
    }


def main() -> None:
    base = Path(sys.argv[1]) if len(sys.argv) > 1 else BASE
    profile = derive(json.loads(base.read_text(encoding="utf-8")))
    TARGET.write_text(json.dumps(profile, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
