"""What the standard library lacks: prctl, process trees from /proc, the facts the start-up check reports."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any

_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: Any) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def become_subreaper() -> None:
    """Descendants whose parent dies become children of this process, also after setsid and a double fork."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_dumpable(on: bool) -> None:
    """Off: processes of the same user can neither trace this one nor read its memory and environment."""
    _prctl(_PR_SET_DUMPABLE, 1 if on else 0)


def set_title(title: str) -> None:
    """Rename the process in `ps`, so that `pkill -f python` inside the sandbox does not mean the supervisor."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(title.encode()[:15]))
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        # proc(5): fields 48 and 49, arg_start and arg_end; the text after ")" begins with field 3.
        start, end = int(fields[45]), int(fields[46])
    except (OSError, ValueError, IndexError):
        return
    if 0 < start < end:
        text = title.encode()[: end - start - 1]
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, text, len(text))


def raise_oom_score() -> None:
    """Let the kernel end commands before the supervisor when the sandbox runs out of memory."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        pass


def parents() -> dict[int, int]:
    """Parent of every visible process.

    Zombies are among them: a process whose first thread has ended looks like one while its other threads run.
    """
    result: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                result[int(name)] = int(fields[1])
            except (OSError, IndexError, ValueError):
                continue
    return result


def descendants(roots: set[int]) -> list[int]:
    """All live descendants of `roots`, without the roots."""
    tree: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        tree.setdefault(parent, []).append(pid)
    found: list[int] = []
    todo = list(roots)
    while todo:
        for child in tree.get(todo.pop(), ()):
            found.append(child)
            todo.append(child)
    return found


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass


def kill_now(pids: list[int]) -> None:
    """Freeze all first, so that none forks while the others die."""
    send(pids, signal.SIGSTOP)
    send(pids, signal.SIGKILL)


def is_descendant(pid: int, ancestor: int) -> bool:
    """Whether `pid` is below `ancestor`; a process that is gone counts as one (it cannot be cleared)."""
    for _ in range(1024):
        if pid == ancestor:
            return True
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            return True
        if pid == 0:
            return False
    return True


def facts(root: str) -> dict[str, Any]:
    """Privileges, mounts, interfaces and the workspace, for the worker's check before first use."""
    status: dict[str, str] = {}
    with open("/proc/self/status") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb", "NoNewPrivs", "Seccomp"):
                status[key] = value.strip()
    mounts: list[list[str]] = []
    with open("/proc/self/mountinfo") as file:
        for line in file:
            fields = line.split()
            mounts.append([fields[4], fields[5], fields[fields.index("-") + 1]])
    with open("/proc/net/dev") as file:
        interfaces = [line.partition(":")[0].strip() for line in file if ":" in line]
    with open("/proc/net/route") as file:
        lines = [line.split() for line in file][1:257]
    found = os.stat(root)
    workspace = {"uid": found.st_uid, "gid": found.st_gid, "writable": os.access(root, os.R_OK | os.W_OK | os.X_OK)}
    workspace.update(dev=found.st_dev, ino=found.st_ino)
    result: dict[str, Any] = {"status": status, "mounts": mounts[:64], "interfaces": interfaces[:64]}
    # Interface, destination, flags, mask; hexadecimal.
    result["routes"] = [[line[0], line[1], line[3], line[7]] for line in lines]
    return {**result, "uid": os.getuid(), "workspace": workspace}
