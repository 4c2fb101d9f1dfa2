"""Named volumes of a Session's environments: what a setup command installed, and a Node project's modules."""

from __future__ import annotations

from pathlib import Path

from milepost.domain.errors import SandboxUnavailable
from milepost.ports.sandbox import Holding, SandboxSpec, Volume
from milepost.sandboxes.podman import spec as specs
from milepost.sandboxes.podman.api import PodmanApi
from milepost.sandboxes.podman.folder import make_mountpoint


async def owned(api: PodmanApi, instance_id: str, session_id: str | None = None) -> tuple[Holding, ...]:
    """The instance's volumes, of one Session or of all."""
    labels = {specs.INSTANCE: instance_id}
    if session_id is not None:
        labels[specs.SESSION] = session_id
    found = []
    for item in await api.volumes(labels):
        label = dict(item.get("Labels") or {})
        generation = label.get(specs.GENERATION, "0")
        found.append(
            Holding(
                "volume",
                str(item["Name"]),
                label.get(specs.SESSION, ""),
                int(generation) if generation.isdigit() else 0,
                label.get(specs.LEASE, ""),
            )
        )
    return tuple(found)


async def ensure(api: PodmanApi, spec: SandboxSpec, lease: str) -> None:
    """Have the volumes that the specification names.

    Raises:
        SandboxUnavailable: one that a setup command wrote to is gone.
        InvalidInput: something stands where it would be mounted.
    """
    if not spec.volumes:
        return
    there = {holding.name for holding in await owned(api, spec.instance_id, spec.session_id)}
    for volume in sorted(spec.volumes):
        name = specs.volume_name(spec, volume)
        if volume is Volume.NODE_MODULES:
            make_mountpoint(Path(spec.workspace_path), specs.NODE_MODULES)
        if name in there:
            continue
        if not spec.fresh:
            raise SandboxUnavailable(
                f"The volume {name}, which holds what the setup command installed, is gone.",
                fix=f"Set the environment up again: milepost env rebuild {spec.session_id}",
            )
        await api.make_volume(name, specs.volume_labels(spec, lease))


async def remove(api: PodmanApi, instance_id: str, session_id: str) -> None:
    """Remove the Session's volumes; their container is gone already."""
    for holding in await owned(api, instance_id, session_id):
        await api.remove_volume(holding.name)
