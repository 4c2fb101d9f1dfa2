"""The virtual machine that Podman needs where the kernel is not Linux: found, started if it is stopped, never made."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any

from milepost.domain.errors import SandboxUnavailable

LOOK_SECONDS = 30.0
START_SECONDS = 300.0
NONE = "podman machine init && podman machine start"


async def ready(podman: str, environment: Mapping[str, str]) -> str:
    """Path of the API socket of the default machine, which runs when this returns. Raises SandboxUnavailable."""
    found = _chosen(await _asked(podman, environment, LOOK_SECONDS, "machine", "list", "--format", "json"))
    if found is None:
        raise SandboxUnavailable("Podman has no virtual machine here, and none is made for you.", fix=NONE)
    name = str(found["Name"]).removesuffix("*")
    if not found.get("Running"):
        await _run(podman, environment, START_SECONDS, "machine", "start", name)
    told = await _asked(podman, environment, LOOK_SECONDS, "machine", "inspect", name)
    try:
        return str(told[0]["ConnectionInfo"]["PodmanSocket"]["Path"])
    except (IndexError, KeyError, TypeError):
        raise SandboxUnavailable(
            f"The Podman machine {name} does not say where its socket is.", fix="Set sandbox.socket."
        ) from None


def _chosen(machines: Any) -> dict[str, Any] | None:
    """The default one, else one that runs, else the first."""
    known = [each for each in machines if isinstance(each, dict) and each.get("Name")] if machines else []
    order = sorted(known, key=lambda each: (not each.get("Default"), not each.get("Running")))
    return order[0] if order else None


async def _asked(podman: str, environment: Mapping[str, str], seconds: float, *arguments: str) -> Any:
    text = await _run(podman, environment, seconds, *arguments)
    try:
        return json.loads(text or "[]")
    except ValueError:
        raise SandboxUnavailable(f"podman {' '.join(arguments[:2])} gives no JSON.", fix="Update Podman.") from None


async def _run(podman: str, environment: Mapping[str, str], seconds: float, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        podman,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(environment),
    )
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise SandboxUnavailable(f"podman {' '.join(arguments[:2])} did not end within {seconds:.0f} s.") from None
    if process.returncode:
        words = err.decode(errors="replace")[-500:].strip()
        raise SandboxUnavailable(f"podman {' '.join(arguments[:2])} failed: {words}", fix="Run it by hand.")
    return out.decode(errors="replace")
