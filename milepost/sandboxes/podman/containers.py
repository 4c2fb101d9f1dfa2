"""Finding, making and starting the one container of a Session."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from milepost.domain.errors import SandboxUnavailable
from milepost.ports.sandbox import Holding, SandboxSpec
from milepost.sandboxes.podman import spec as specs
from milepost.sandboxes.podman.api import PodmanApi, PodmanError
from milepost.sandboxes.podman.mapping import Mapping

MAX_TRIES = 4
TRIAL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class OwnedContainer:
    """A container of this instance, as its labels tell."""

    container_id: str
    session_id: str
    generation: int
    lease: str
    running: bool
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class Wanted:
    """All that a new container is made from, but the user mapping."""

    spec: SandboxSpec
    image: str
    image_id: str
    limits: specs.HostLimits
    seccomp: str
    lease: str


async def owned(api: PodmanApi, instance_id: str, session_id: str | None = None) -> tuple[OwnedContainer, ...]:
    """The instance's containers, of one Session or of all."""
    labels = {specs.INSTANCE: instance_id}
    if session_id is not None:
        labels[specs.SESSION] = session_id
    found = []
    for item in await api.containers(labels):
        label = dict(item.get("Labels") or {})
        generation = label.get(specs.GENERATION, "0")
        found.append(
            OwnedContainer(
                str(item["Id"]),
                label.get(specs.SESSION, ""),
                int(generation) if generation.isdigit() else 0,
                label.get(specs.LEASE, ""),
                item.get("State") == "running",
                label,
            )
        )
    return tuple(found)


def holding_of(found: OwnedContainer) -> Holding:
    """The container in the port's terms."""
    return Holding("container", found.container_id, found.session_id, found.generation, found.lease, found.running)


async def ensure(api: PodmanApi, wanted: Wanted, ways: list[Mapping]) -> str:
    """Id of the Session's running container: the one that is there, started if need be, or a new one.

    A running container is kept although its image or this release has changed since: commands may run in it.
    """
    digest = specs.spec_digest(wanted.spec, wanted.image)
    builds = [specs.build_digest(wanted.image_id, way, wanted.seccomp) for way in ways]
    for _ in range(MAX_TRIES):
        for found in await owned(api, wanted.spec.instance_id, wanted.spec.session_id):
            if found.labels.get(specs.SPEC) == digest:
                if found.running:
                    return found.container_id
                if found.labels.get(specs.BUILD) in builds:
                    with contextlib.suppress(PodmanError):
                        await api.start(found.container_id)
                        return found.container_id
            await api.remove(found.container_id)
        created = await _create(api, wanted, ways, builds, digest)
        if created is not None:
            return created
    raise SandboxUnavailable("Another process makes and removes the same sandbox all the time.")


async def last_words(api: PodmanApi, wanted: Wanted, ways: list[Mapping]) -> str:
    """What the first process of such a container says when it ends at once; "" if it does not."""
    for way in ways:
        label = {**specs.labels(wanted.spec, wanted.lease, "", ""), specs.SPEC: "trial"}
        made = specs.container(wanted.spec, wanted.image_id, label, way, wanted.limits, wanted.seccomp, remove=False)
        with contextlib.suppress(PodmanError):
            container_id = await api.create({**made, "name": f"{made['name']}-trial"})
            try:
                await api.start(container_id)
                await asyncio.sleep(TRIAL_SECONDS)
                return await api.last_words(container_id)
            finally:
                await api.remove(container_id)
    return ""


async def _create(api: PodmanApi, wanted: Wanted, ways: list[Mapping], builds: list[str], digest: str) -> str | None:
    """Make and start a container, trying one user mapping after the other. None if another process was faster."""
    refused: PodmanError | None = None
    for way, build in zip(ways, builds, strict=True):
        label = specs.labels(wanted.spec, wanted.lease, digest, build)
        spec = specs.container(wanted.spec, wanted.image_id, label, way, wanted.limits, wanted.seccomp)
        try:
            container_id = await api.create(spec)
        except PodmanError as error:
            if await api.container(spec["name"]) is not None:
                return None
            refused = refused or error
            continue
        try:
            await api.start(container_id)
        except PodmanError as error:
            await api.remove(container_id)
            refused = refused or error
            continue
        return container_id
    raise SandboxUnavailable(f"Podman could not start the sandbox: {refused}.", fix=_fix(ways, wanted.spec.network))


def _fix(ways: list[Mapping], network: str) -> str:
    if network != "none":
        return (
            "Network 'bridge' needs netavark and iptables as root, slirp4netns and a writable /dev/net/tun as an "
            "ordinary user. Or use network 'none'."
        )
    if ways[0].mount_options:
        return (
            "As root this needs crun (sudo apt-get install crun) and a workspace on a file system with id-mapped "
            "mounts (ext4, xfs, btrfs; kernel 5.12 or later). Running Milepost as an ordinary user needs neither."
        )
    return "Run `milepost doctor` and see docs/sandbox.md, section 'Rootless'."
