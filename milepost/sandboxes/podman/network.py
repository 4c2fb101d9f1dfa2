"""Closing the ways from a bridged sandbox to this host, its metadata service and its loopback.

The container gets its network from Podman; then routes that refuse are put into its network namespace, from outside
and before its first command. The sandbox itself has no privilege to change them. The rest of the local network is not
filtered: a person who chooses `bridge` is told so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from milepost.domain.errors import SandboxUnavailable

LINK_LOCAL = "169.254.0.0/16"
"""Where clouds serve machine metadata, and where pasta maps the host."""

ALWAYS = (LINK_LOCAL, "10.0.2.2/32", "fd00:ec2::254/128")
"""Link-local, slirp4netns' name for the host, the metadata service over IPv6."""

SECONDS = 15.0
_REJECT = 0x0200
_SEARCH = "/usr/sbin:/sbin:/usr/bin:/bin"


def is_closed(routes: Iterable[list[str]]) -> bool:
    """Whether /proc/net/route (interface, destination, flags, mask) refuses the link-local network."""
    wanted = ("0000FEA9", "0000FFFF")
    return any((to, mask) == wanted and int(flags, 16) & _REJECT for _, to, flags, mask in routes)


async def close_routes(pid: int, *, rootless: bool, podman: str | None, environment: Mapping[str, str]) -> None:
    """Refuse traffic from the network namespace of `pid` to this host. Raises SandboxUnavailable."""
    ip, nsenter = (shutil.which(name, path=_SEARCH) for name in ("ip", "nsenter"))
    if ip is None or nsenter is None:
        raise SandboxUnavailable(
            "A sandbox with network 'bridge' cannot be kept from this host's own services without the ip command.",
            fix="Install it: sudo apt-get install -y iproute2 util-linux. Or use network 'none'.",
        )
    addresses = await _addresses(ip, environment)
    lines = [f"route replace unreachable {target}" for target in (*ALWAYS, *addresses)]
    enter = [nsenter, "--target", str(pid), "--net", "--", ip, "-force", "-batch", "-"]
    # Root may enter any user's namespaces; a user only from inside of the one that Podman keeps.
    command = [podman, "unshare", *enter] if rootless and podman and os.getuid() != 0 else enter
    await _run(command, "\n".join(lines) + "\n", environment, tolerate=True)


async def _addresses(ip: str, environment: Mapping[str, str]) -> list[str]:
    """This host's own addresses as single-address networks."""
    found: list[dict[str, Any]] = json.loads(await _run([ip, "-json", "address"], "", environment) or "[]")
    result: list[str] = []
    for link in found[:256]:
        for item in link.get("addr_info", []):
            if not str(item["local"]).startswith(("127.", "::1", "fe80:")):
                result.append(f"{item['local']}/{'32' if item['family'] == 'inet' else '128'}")
    return result


async def _run(command: list[str], text: str, environment: Mapping[str, str], *, tolerate: bool = False) -> str:
    """Output of a short command. `tolerate`: single routes may fail (no IPv6); what matters is checked afterwards."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(environment),
    )
    try:
        async with asyncio.timeout(SECONDS):
            out, err = await process.communicate(text.encode())
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise SandboxUnavailable(f"{command[0]} did not end within {SECONDS:.0f} s.") from None
    if process.returncode and not tolerate:
        raise SandboxUnavailable(f"{' '.join(command[:3])} failed: {err.decode(errors='replace')[:500].strip()}")
    return out.decode(errors="replace")
