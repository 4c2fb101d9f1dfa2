"""A real sandbox on a folder of its own: made, used, held to each limit, removed."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

from milepost.domain.errors import MilepostError
from milepost.ports.sandbox import Exec, Sandbox, SandboxLimits, SandboxProvider, SandboxSpec
from milepost.sandboxes.podman.examine.finding import Finding

MIB = 1024 * 1024
LIMITS = SandboxLimits(memory_bytes=96 * MIB, cpus=0.5, pids=96, workspace_bytes=32 * MIB)
SECONDS = 60.0
OVER_DISK = 153

_FORKS = (
    "import os,time\nn=0\ntry:\n while n<200:\n  if os.fork()==0: time.sleep(3); os._exit(0)\n  n+=1\n"
    "except OSError: pass\nprint(n)"
)
_MEMORY = "b=bytearray(256*1024*1024)\nfor i in range(0,len(b),4096): b[i]=1\nprint('kept')"
_FILE = "import resource; print(resource.getrlimit(resource.RLIMIT_FSIZE)[1])"
_FILES = "n=0; while [ $n -lt 300 ]; do head -c 1048576 /dev/zero > fill-$n; n=$((n+1)); sleep 0.02; done"
_QUOTA = "cat /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null || true"


async def findings(
    provider: SandboxProvider, instance_id: str, folder: Path, unenforced: tuple[str, ...]
) -> list[Finding]:
    """`folder` is an empty directory of the user's. What cannot even be made is one finding."""
    session = f"doctor-{uuid.uuid4().hex[:12]}"
    spec = SandboxSpec(session, instance_id, str(folder), limits=LIMITS)
    started = time.monotonic()
    try:
        box = await provider.open(spec)
    except MilepostError as error:
        return [Finding("container", False, error.message, error.fix)]
    found = [Finding("container", True, f"Made and checked within {time.monotonic() - started:.1f} s.")]
    try:
        for name, look in _LOOKS.items():
            found.append(await _looked(name, look, box, unenforced))
    finally:
        found.append(await _removed(provider, session))
    return found


Look = Callable[[Sandbox, tuple[str, ...]], Awaitable[Finding]]


async def _looked(name: str, look: Look, box: Sandbox, unenforced: tuple[str, ...]) -> Finding:
    try:
        async with asyncio.timeout(SECONDS):
            return await look(box, unenforced)
    except (MilepostError, TimeoutError) as error:
        return Finding(name, False, f"{type(error).__name__}: {error}", "Look at the log of the Podman service.")


async def _run(box: Sandbox, command: str) -> tuple[int | None, str]:
    outcome = await box.perform(uuid.uuid4().hex, Exec(command, timeout=SECONDS / 2))
    return outcome.exit_code, (outcome.stdout + outcome.stderr).decode(errors="replace").strip()


async def _command(box: Sandbox, _: tuple[str, ...]) -> Finding:
    started = time.monotonic()
    code, text = await _run(box, "echo from-inside > written && cat written")
    ok = (code, text) == (0, "from-inside")
    took = (time.monotonic() - started) * 1000
    return Finding("command", ok, f"A command wrote a file within {took:.0f} ms." if ok else text, None if ok else _LOG)


async def _memory(box: Sandbox, unenforced: tuple[str, ...]) -> Finding:
    if "memory" in unenforced:
        return Finding("memory limit", True, "Not enforced on this host.")
    code, text = await _run(box, f'python3 -c "{_MEMORY}"')
    ok = code != 0 and "kept" not in text
    return Finding("memory limit", ok, "Enforced." if ok else "A command got more than it may.", None if ok else _LIMIT)


async def _pids(box: Sandbox, unenforced: tuple[str, ...]) -> Finding:
    _code, text = await _run(box, f"python3 - <<'END'\n{_FORKS}\nEND")
    ok = text.isdigit() and int(text) < LIMITS.pids
    told = f"Enforced: {text} more processes were possible." if ok else f"Not enforced: {text[:100]}"
    return Finding("process limit", ok, told, None if ok else _LIMIT)


async def _cpus(box: Sandbox, unenforced: tuple[str, ...]) -> Finding:
    if "cpus" in unenforced:
        return Finding("cpu limit", True, "Not enforced on this host.")
    _code, text = await _run(box, _QUOTA)
    if not text:
        return Finding("cpu limit", True, "Set; the sandbox does not show it.")
    ok = text.split()[0] == "50000"
    return Finding("cpu limit", ok, f"Quota {text.split()[0]} µs of 100000.", None if ok else _LIMIT)


async def _disk(box: Sandbox, _: tuple[str, ...]) -> Finding:
    """The kernel bounds one file; the sum of all is measured, so a command is over its bound for a moment."""
    _code, one = await _run(box, f'python3 -c "{_FILE}"')
    code, many = await _run(box, _FILES)
    _code, left = await _run(box, "ls | grep -c fill-; rm -f fill-*")
    if one != str(LIMITS.workspace_bytes):
        return Finding("disk limit", False, f"A single file is not bounded: {one[-200:]}", _LOG)
    if code != OVER_DISK:
        return Finding("disk limit", False, f"A command was not ended: {many[-200:]}", _LOG)
    told = f"A file is held to it by the kernel. All files are measured: a command was ended at {left} of 32 MiB."
    return Finding("disk limit", True, told)


async def _filter(box: Sandbox, _: tuple[str, ...]) -> Finding:
    code, text = await _run(box, "command -v unshare >/dev/null && unshare -Ur true")
    ok = code != 0
    return Finding("system call filter", ok, "A command can make no namespace." if ok else text, None if ok else _LOG)


async def _closed(box: Sandbox, unenforced: tuple[str, ...]) -> Finding:
    _code, text = await _run(box, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")
    ok = text == "lo"
    return Finding("isolation", ok, "No network but its own loopback." if ok else f"Interfaces: {text}", None)


async def _removed(provider: SandboxProvider, session: str) -> Finding:
    try:
        await provider.destroy(session)
        left = [holding for holding in await provider.holdings() if holding.session_id == session]
    except MilepostError as error:
        return Finding("removal", False, error.message, error.fix)
    return Finding("removal", not left, "Nothing of it is left." if not left else f"{len(left)} left.", None)


_LOG = "Look at podman-service.log in the data root, and report it."
_LIMIT = "Look at `podman info` (cgroupControllers), or agree to it: sandbox.allow_unenforced_limits: true"
_LOOKS: dict[str, Look] = {
    "command": _command,
    "process limit": _pids,
    "memory limit": _memory,
    "cpu limit": _cpus,
    "system call filter": _filter,
    "disk limit": _disk,
    "isolation": _closed,
}
