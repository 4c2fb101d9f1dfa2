"""Running a script in a throwaway container of an image, and keeping what it changed as another image."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milepost.sandboxes.podman import spec as specs
from milepost.sandboxes.podman.api import PodmanApi, PodmanError
from milepost.sandboxes.podman.mapping import Mapping

WAIT_SECONDS = 0.2
WAITS = "milepost-waits"
"""What the container says when it waits for its script to be let go."""
GATE_TRIES = 100
_INSTALLING = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID")
"""What package managers need to write files of others and to drop privileges while they download."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script for a container without the Workspace. `network`: none, or the mode of one; `writes`: as its root."""

    text: str
    seconds: float
    network: str = "none"
    writes: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """How the script ended: None if it did not within its time. `words` is the end of what it wrote."""

    exit_code: int | None
    words: str


@dataclass(frozen=True, slots=True)
class Keep:
    """How the image is named, where a large file may lie for a while, and which id of the host is the container's 0."""

    tag: str
    work: Path
    first_id: int


Prepare = Callable[[str], Awaitable[None]]
"""Called with the container's id when it runs and before the script does."""


async def run(
    api: PodmanApi,
    image_id: str,
    script: Script,
    labels: dict[str, str],
    mapping: Mapping,
    *,
    prepare: Prepare | None = None,
    keep: Keep | None = None,
) -> Ended:
    """Run the script and remove the container; with `keep` make an image of it if it ended well.

    Raises PodmanError, PodmanDown.
    """
    container_id = await api.create(_spec(image_id, script, labels, mapping, gated=prepare is not None))
    try:
        await api.start(container_id)
        if prepare is not None:
            await prepare(container_id)
            await _waiting(api, container_id)
            await api.signal(container_id, "USR1")
        ended = await _ended(api, container_id, script.seconds)
        if keep is not None and ended.exit_code == 0:
            await _keep(api, image_id, container_id, keep)
        return ended
    finally:
        with contextlib.suppress(PodmanError):
            await api.remove(container_id)


async def _waiting(api: PodmanApi, container_id: str) -> None:
    """Return when the shell is ready for its signal, or something else is wrong, which its end will tell."""
    for _ in range(GATE_TRIES):
        if WAITS in await api.last_words(container_id):
            return
        await asyncio.sleep(WAIT_SECONDS)


async def _keep(api: PodmanApi, image_id: str, container_id: str, keep: Keep) -> None:
    """The image has one layer, and the settings of the one that it was made from."""
    base = ((await api.image(image_id)) or {}).get("Config") or {}
    settings = [
        f"ENV {name}={_quoted(value)}" for name, _, value in (each.partition("=") for each in base.get("Env") or [])
    ]
    with tempfile.TemporaryDirectory(dir=keep.work, prefix="image-") as folder:
        archive = Path(folder) / "root.tar"
        await api.export(container_id, archive, keep.first_id)
        await api.import_image(keep.tag, archive, settings)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'


async def _ended(api: PodmanApi, container_id: str, seconds: float) -> Ended:
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        found = await api.container(container_id)
        state = {} if found is None else found["State"]
        if not state.get("Running"):
            return Ended(int(state.get("ExitCode", 255)), await api.last_words(container_id))
        if asyncio.get_running_loop().time() > deadline:
            return Ended(None, await api.last_words(container_id))
        await asyncio.sleep(WAIT_SECONDS)


def _limits() -> list[tuple[str, int]]:
    return [("nofile", min(16384, resource.getrlimit(resource.RLIMIT_NOFILE)[1])), ("nproc", 4096), ("core", 0)]


def _spec(image_id: str, script: Script, labels: dict[str, str], mapping: Mapping, *, gated: bool) -> dict[str, Any]:
    wait = f'trap go=1 USR1; echo {WAITS}; until [ -n "$go" ]; do sleep 0.1; done; ' if gated else ""
    return {
        "image": image_id,
        "command": ["/bin/sh", "-c", wait + script.text],
        "entrypoint": [],
        "env": {"LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"},
        "labels": labels,
        "user": "0:0" if script.writes else "1000:1000",
        "work_dir": "/",
        "stop_signal": specs.SIGKILL,
        "stop_timeout": 0,
        "read_only_filesystem": not script.writes,
        "read_write_tmpfs": False,
        "netns": {"nsmode": script.network},
        "cap_drop": ["all"],
        "cap_add": list(_INSTALLING) if script.writes else [],
        "no_new_privileges": True,
        "privileged": False,
        "log_configuration": {"driver": "k8s-file", "size": 256 * 1024},
        "image_volume_mode": "ignore",
        "httpproxy": False,
        "env_host": False,
        "systemd": "false",
        "restart_policy": "no",
        # Stated, since a default of the service may be more than this host allows.
        "r_limits": [{"type": name, "soft": value, "hard": value} for name, value in _limits()],
        **mapping.spec,
    }
