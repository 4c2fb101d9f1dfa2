"""Opening one sandbox: host, image, volumes, container, and the check that it is closed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import resource
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from milepost.domain.errors import MilepostError, SandboxUnavailable
from milepost.engine.images import local_reference
from milepost.ports.sandbox import SandboxSpec
from milepost.sandboxes.client import LinkDown, SandboxGone
from milepost.sandboxes.podman import containers, network, selfcheck, volumes
from milepost.sandboxes.podman import mapping as mappings
from milepost.sandboxes.podman import spec as specs
from milepost.sandboxes.podman.api import PodmanApi, PodmanDown, PodmanError
from milepost.sandboxes.podman.commands import Provisioner
from milepost.sandboxes.podman.folder import Identity, not_writable
from milepost.sandboxes.podman.health import HostReport, report
from milepost.sandboxes.podman.sandbox import PodmanSandbox
from milepost.sandboxes.podman.service import PodmanService

DEFAULT_IMAGE = "localhost/milepost-sandbox:latest"
BUILD_COMMAND = "milepost sandbox build-image"
READY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Settings:
    """See `PodmanProvider`."""

    data_root: Path
    instance_id: str
    image: str = DEFAULT_IMAGE
    images: dict[str, str] = field(default_factory=dict)
    allow_unenforced: bool = False
    lease: str = ""


class Opener:
    """All methods raise PodmanDown and PodmanError, and SandboxUnavailable with what to do."""

    def __init__(self, service: PodmanService, settings: Settings) -> None:
        self.settings = settings
        self._service = service
        self._provisioner = Provisioner(settings.instance_id, settings.lease, settings.data_root)
        self._provisioning = asyncio.Lock()
        self._reported: tuple[PodmanApi, HostReport] | None = None

    def forget_host(self) -> None:
        """Ask the service anew the next time."""
        self._reported = None

    async def host(self, api: PodmanApi) -> HostReport:
        """What the service tells of its host. Asked once for each service that is found or started: it takes 0.2 s."""
        if self._reported is None or self._reported[0] is not api:
            self._reported = (api, report(await api.info()))
        return self._reported[1]

    def require_limits(self, host: HostReport) -> None:
        """Raises SandboxUnavailable for limits that would be silently without effect."""
        if host.unenforced and not self.settings.allow_unenforced:
            raise SandboxUnavailable(
                f"This host cannot enforce a sandbox's limit of {' and '.join(host.unenforced)} ({host.summary}).",
                fix="See what to do: milepost doctor sandbox. Or agree to it: sandbox.allow_unenforced_limits: true",
            )

    async def image_id(self, api: PodmanApi, name: str) -> str:
        found = await api.image(name)
        if found is None:
            fix = f"Build it: {BUILD_COMMAND}" if name == self.settings.image else f"Get it: podman pull {name}"
            raise SandboxUnavailable(f"The sandbox image {name} does not exist here; images are never pulled.", fix=fix)
        return str(found["Id"])

    async def open(self, spec: SandboxSpec, folder: Identity) -> PodmanSandbox:
        """One more try, because the container that is there may be on a folder that was there before."""
        for _ in range(2):
            sandbox = await self._container(spec, folder)
            try:
                if await self._admit(sandbox, spec):
                    return sandbox
            except BaseException:
                await sandbox.close()
                raise
            await sandbox.close()
        raise SandboxUnavailable(
            f"The workspace {spec.workspace_path} was exchanged for another folder while its sandbox was made.",
            fix="Look at who changes the folders above it, then try again.",
        )

    async def _container(self, spec: SandboxSpec, folder: Identity) -> PodmanSandbox:
        api = await self._service.api()
        host = await self.host(api)
        self.require_limits(host)
        wanted = await self._wanted(api, host, spec)
        await volumes.ensure(api, spec, self.settings.lease)
        container_id = await containers.ensure(api, wanted, _mappings(host, spec.workspace_path))
        found = await api.container(container_id)
        if found is None:
            raise SandboxUnavailable("The sandbox's container was removed while it was opened.", fix="Try again.")
        return PodmanSandbox(self._service, found, spec, folder)

    async def _wanted(self, api: PodmanApi, host: HostReport, spec: SandboxSpec) -> containers.Wanted:
        name = local_reference(spec.image, self.settings.images) if spec.image else self.settings.image
        image_id = await self._equipped(api, host, name, await self.image_id(api, name), spec.network)
        nofile = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        limits = specs.HostLimits(host.controllers, nofile, host.network_mode, host.rootless)
        return containers.Wanted(spec, name, image_id, limits, await self._seccomp(), self.settings.lease)

    async def _equipped(self, api: PodmanApi, host: HostReport, name: str, image_id: str, network_name: str) -> str:
        """The image, or its copy with the commands that it lacked. Ours has them all."""
        if name == DEFAULT_IMAGE:
            return image_id
        mapping = mappings.plain(None if host.rootless else mappings.container_base())
        mode = "none" if network_name == "none" else host.network_mode
        async with self._provisioning:
            return await self._provisioner.equipped(
                api, name, image_id, mapping, network=mode, close=self._keep_from_host
            )

    async def _keep_from_host(self, container_id: str) -> None:
        """Refuse the ways from a container to this host. Raises SandboxUnavailable."""
        api = await self._service.api()
        found = await api.container(container_id)
        if found is None:
            raise SandboxUnavailable("The container was removed while it was prepared.")
        await network.close_routes(
            int(found["State"]["Pid"]),
            rootless=(await self.host(api)).rootless,
            podman=self._service.host.podman,
            environment=self._service.environment(),
        )

    async def _last_words(self, spec: SandboxSpec) -> str:
        """A container that has ended is gone with its words, so another one is asked."""
        try:
            api = await self._service.api()
            host = await self.host(api)
            wanted = await self._wanted(api, host, spec)
            return await containers.last_words(api, wanted, _mappings(host, spec.workspace_path))
        except (PodmanError, PodmanDown, MilepostError):
            return ""

    async def _admit(self, sandbox: PodmanSandbox, spec: SandboxSpec) -> bool:
        """Wait for the supervisor and look whether the container is closed; an unfit one is removed.

        False if what is mounted is not the folder that the path led to.
        """
        error: SandboxUnavailable | None = None
        try:
            facts = (await _first_hello(sandbox))["facts"]
            if spec.network != "none" and not network.is_closed(facts["routes"]):
                await self._close_routes(sandbox)
                facts = (await _first_hello(sandbox))["facts"]
            right = (facts["workspace"].get("dev"), facts["workspace"].get("ino")) == sandbox.folder
            found = selfcheck.problems(facts, spec.network)
            if right and not found and facts["workspace"]["writable"]:
                return True
            if right and not found:
                rootless = (await self.host(await self._service.api())).rootless
                error = not_writable(Path(spec.workspace_path), rootless=rootless)
            elif right:
                error = SandboxUnavailable(
                    f"The sandbox did not pass its check and was removed: {'; '.join(found)}.",
                    fix=f"See docs/sandbox.md, section 'Self-check'; the workspace is {spec.workspace_path}.",
                )
        except SandboxGone as gone:
            words = await self._last_words(spec)
            error = SandboxUnavailable(
                f"The sandbox ended at once: {gone} {words or 'Its image may have no python3.'}",
                fix="The image needs sh and python3 (3.9 or later); see docs/sandbox.md.",
            )
        except SandboxUnavailable as silent:
            error = silent
        with contextlib.suppress(PodmanError, PodmanDown):
            await (await self._service.api()).remove(sandbox.container_id)
        if error is not None:
            raise error
        return False

    async def _close_routes(self, sandbox: PodmanSandbox) -> None:
        """Before the first command; the supervisor looks again on the next connection."""
        await self._keep_from_host(sandbox.container_id)
        await sandbox.close()

    async def _seccomp(self) -> str:
        """The filter as a file, where the service can read it."""
        data = (resources.files("milepost.sandboxes.podman") / "seccomp.json").read_bytes()
        path = self.settings.data_root / f"seccomp-{hashlib.sha256(data).hexdigest()[:12]}.json"
        if not path.exists():
            await asyncio.to_thread(_write_atomically, path, data)
        return str(path)


def _write_atomically(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_bytes(data)
    temporary.rename(path)


def _mappings(host: HostReport, workspace: str) -> list[mappings.Mapping]:
    """Ways to map the workspace's owner, best first; the next one is tried if the host refuses one."""
    if host.rootless:
        return [mappings.rootless()]
    found = Path(workspace).stat()
    owner = (found.st_uid, found.st_gid)
    base = mappings.container_base()
    ways = [mappings.root_idmapped(owner, base)]
    if 0 not in owner:
        ways.append(mappings.root_direct(owner, base))
    return ways


async def _first_hello(sandbox: PodmanSandbox) -> dict[str, Any]:
    """Raises SandboxGone, SandboxUnavailable."""
    deadline = asyncio.get_running_loop().time() + READY_SECONDS
    while True:
        try:
            return await sandbox.hello()
        except LinkDown as error:
            if asyncio.get_running_loop().time() > deadline:
                raise SandboxUnavailable(f"The sandbox's supervisor does not answer: {error}.") from None
        await asyncio.sleep(0.05)
