"""The container's specification in the form of Podman's REST API. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from milepost.ports.sandbox import SandboxSpec, Volume
from milepost.sandboxes import bundle
from milepost.sandboxes.podman.mapping import AGENT, Mapping
from milepost.sandboxes.supervisor import wire

ROOT = "/workspace"
ADDRESS = "milepost-supervisor"
"""Of the supervisor's abstract socket, in the container's network namespace."""
HOME = "/home/agent"
NODE_MODULES = "node_modules"

PLACES = {Volume.HOME: HOME, Volume.NODE_MODULES: f"{ROOT}/{NODE_MODULES}"}
"""Where volumes are mounted."""

LABEL = "org.milepost"
INSTANCE, SESSION, GENERATION, LEASE, SPEC, BUILD = (
    f"{LABEL}.{name}" for name in ("instance", "session", "generation", "lease", "spec", "build")
)

_MIB = 1024 * 1024
SIGKILL = 9


@dataclass(frozen=True, slots=True)
class HostLimits:
    """What this host can enforce: controllers by name (`memory`, `cpu`, `pids`); `nofile` is its hard limit.

    `network_mode` see `HostReport`.
    """

    controllers: frozenset[str]
    nofile: int
    network_mode: str = "private"
    rootless: bool = False


def container_name(instance_id: str, session_id: str) -> str:
    """Stable and legal for any ids; a collision of the readable part is told apart by the digest."""
    digest = hashlib.sha256(f"{instance_id}\0{session_id}".encode()).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9_.-]", "-", session_id)[:40]
    return f"milepost-{readable}-{digest}"


def spec_digest(spec: SandboxSpec, image: str) -> str:
    """What a running container must match: all that the person chose, but the environment, which each command gets.

    And the protocol: with a supervisor that speaks another one, a container that runs is of no use.
    """
    chosen = {
        **asdict(spec),
        "environment": None,
        "fresh": None,
        "ports": None,
        "placement": None,
        "volumes": sorted(spec.volumes),
        "image": image,
        "protocol": wire.PROTOCOL,
    }
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()


def build_digest(image_id: str, mapping: Mapping, seccomp: str) -> str:
    """What a stopped container must match as well: the image's content, this release, the host's settings."""
    parts = (image_id, bundle.supervisor_digest(), json.dumps(asdict(mapping), sort_keys=True), seccomp)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def labels(spec: SandboxSpec, lease: str, digest: str, build: str) -> dict[str, str]:
    """Of a container."""
    return {**volume_labels(spec, lease), SPEC: digest, BUILD: build}


def volume_labels(spec: SandboxSpec, lease: str) -> dict[str, str]:
    """What every container and volume carries."""
    return {
        INSTANCE: spec.instance_id,
        SESSION: spec.session_id,
        GENERATION: str(spec.generation),
        LEASE: lease,
    }


def volume_name(spec: SandboxSpec, volume: Volume) -> str:
    """One for each environment: what another generation installed is of no use."""
    return f"{container_name(spec.instance_id, spec.session_id)}-{volume.value}-{spec.generation}"


def container(
    spec: SandboxSpec,
    image_id: str,
    label: dict[str, str],
    mapping: Mapping,
    limits: HostLimits,
    seccomp_path: str,
    *,
    remove: bool = True,
) -> dict[str, Any]:
    """Everything is stated; nothing relies on a default of the service's configuration.

    Without `remove` a container that has ended stays, with its last words.
    """
    return {
        "name": container_name(spec.instance_id, spec.session_id),
        "image": image_id,
        "command": list(bundle.SUPERVISOR_COMMAND),
        "entrypoint": [],
        "env": {**bundle.supervisor_environment(ROOT, ADDRESS, HOME, disk=_disk(spec)), "LANG": "C.UTF-8"},
        "labels": label,
        "user": f"{AGENT}:{AGENT}",
        "work_dir": ROOT,
        "hostname": "sandbox",
        "stop_signal": SIGKILL,
        "stop_timeout": 0,
        "mounts": _mounts(spec, mapping),
        "volumes": [_named(spec, volume) for volume in sorted(spec.volumes)],
        "read_only_filesystem": True,
        "read_write_tmpfs": False,
        "netns": {"nsmode": "none" if spec.network == "none" else limits.network_mode},
        "cap_drop": ["all"],
        "no_new_privileges": True,
        "seccomp_profile_path": seccomp_path,
        "privileged": False,
        "shm_size": 64 * _MIB,
        # Holds nothing but a supervisor's last words: commands write to pipes.
        "log_configuration": {"driver": "k8s-file", "size": 64 * 1024},
        "image_volume_mode": "ignore",
        "httpproxy": False,
        "env_host": False,
        "systemd": "false",
        "umask": "0022",
        "use_image_hosts": True,
        "use_image_resolve_conf": spec.network == "none",
        "restart_policy": "no",
        # The supervisor ends when nobody needs it any more: nothing may stay behind then.
        "remove": remove,
        "resource_limits": _resources(spec, limits),
        "r_limits": _ulimits(spec, limits),
        **mapping.spec,
    }


def _mounts(spec: SandboxSpec, mapping: Mapping) -> list[dict[str, Any]]:
    bind = ["rbind", "rw", "nosuid", "nodev", "rprivate", *mapping.mount_options]
    home = [] if Volume.HOME in spec.volumes else [_tmpfs(HOME, "512m", "1777")]
    return [
        {"type": "bind", "source": spec.workspace_path, "destination": ROOT, "options": bind},
        _tmpfs("/tmp", "512m", "1777"),  # noqa: S108
        _tmpfs("/run", "16m", "1777", "noexec"),
        _tmpfs("/var/tmp", "256m", "1777"),  # noqa: S108
        *home,
    ]


def _disk(spec: SandboxSpec) -> dict[str, Any]:
    return bundle.disk_config(spec.limits, ROOT, {volume.value: PLACES[volume] for volume in sorted(spec.volumes)})


def _named(spec: SandboxSpec, volume: Volume) -> dict[str, Any]:
    return {"Name": volume_name(spec, volume), "Dest": PLACES[volume], "Options": ["rw", "nosuid", "nodev"]}


def _tmpfs(target: str, size: str, mode: str, *extra: str) -> dict[str, Any]:
    options = [f"size={size}", f"mode={mode}", "nosuid", "nodev", *extra]
    return {"type": "tmpfs", "source": "tmpfs", "destination": target, "options": options}


def _resources(spec: SandboxSpec, limits: HostLimits) -> dict[str, Any]:
    """Only what the host has a controller for: asking for more is an error with one runtime, nothing with another."""
    wanted = spec.limits
    result: dict[str, Any] = {}
    if "memory" in limits.controllers:
        result["memory"] = {"limit": wanted.memory_bytes, "swap": wanted.memory_bytes}
    if "cpu" in limits.controllers:
        result["cpu"] = {"period": 100_000, "quota": max(1000, int(wanted.cpus * 100_000))}
    if "pids" in limits.controllers:
        result["pids"] = {"limit": wanted.pids}
    return result


def _ulimits(spec: SandboxSpec, limits: HostLimits) -> list[dict[str, Any]]:
    """Soft equals hard: Podman 4.3 swaps the two when they differ. `nproc` holds where there is no pids controller.

    Of an ordinary user it counts all of the user's containers, from crun 1.21 on already when one is made. So where a
    controller counts each container on its own, it is left out.
    """
    wanted = [("nofile", min(16384, limits.nofile)), ("core", 0)]
    if not (limits.rootless and "pids" in limits.controllers):
        wanted.append(("nproc", spec.limits.pids))
    return [{"type": name, "soft": value, "hard": value} for name, value in wanted]
