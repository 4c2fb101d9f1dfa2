"""The sandbox provider over Podman: one container per Session, found again by its labels."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import resource
import tempfile
from collections.abc import AsyncIterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from milepost.domain.errors import InvalidInput, MilepostError, SandboxUnavailable
from milepost.engine.images import local_reference
from milepost.ports.sandbox import Holding, Sandbox, SandboxHealth, SandboxSpec
from milepost.sandboxes import image as images
from milepost.sandboxes.client import LinkDown, SandboxGone
from milepost.sandboxes.podman import containers, network, selfcheck, volumes
from milepost.sandboxes.podman import mapping as mappings
from milepost.sandboxes.podman import spec as specs
from milepost.sandboxes.podman.api import PodmanApi, PodmanDown, PodmanError
from milepost.sandboxes.podman.commands import Provisioner
from milepost.sandboxes.podman.containers import OwnedContainer, holding_of
from milepost.sandboxes.podman.examine import machine, trial
from milepost.sandboxes.podman.examine import service as examined
from milepost.sandboxes.podman.examine.finding import Finding
from milepost.sandboxes.podman.folder import Identity, identity, not_writable
from milepost.sandboxes.podman.health import HostReport, report
from milepost.sandboxes.podman.sandbox import PodmanSandbox
from milepost.sandboxes.podman.service import PodmanService

DEFAULT_IMAGE = "localhost/milepost-sandbox:latest"
BUILD_COMMAND = "milepost sandbox build-image"
NETWORKS = ("none", "bridge")
READY_SECONDS = 30.0


class PodmanProvider:
    """Implements `milepost.ports.sandbox.SandboxProvider`.

    Args:
        data_root: the instance's directory; an own service's socket and log and the system call filter lie there.
        instance_id: label of all containers; others are never touched.
        socket: URL or path of a Podman service; None looks for the user's one and else runs an own service.
        image: local image for Sessions that name none; images are never pulled.
        images: local images that stand for curated ones.
        allow_unenforced: whether to run although this host cannot enforce some limits.
        runtime_dir: the user's runtime directory, by default /run/user/UID.
        environment: variables for an own service (CONTAINERS_CONF and the like).
        lease: label of new containers that names the holder, for the reaper.
    """

    def __init__(
        self,
        data_root: Path,
        instance_id: str,
        *,
        socket: str | None = None,
        image: str = DEFAULT_IMAGE,
        images: Mapping[str, str] | None = None,
        allow_unenforced: bool = False,
        runtime_dir: Path | None = None,
        environment: Mapping[str, str] | None = None,
        lease: str = "",
    ) -> None:
        self._data_root = data_root
        self.instance_id = instance_id
        self._image = image
        self._images = dict(images or {})
        self._allow_unenforced = allow_unenforced
        self._lease = lease
        self._service = PodmanService(data_root, socket, runtime_dir, environment)
        self._provisioner = Provisioner(instance_id, lease, data_root)
        self._provisioning = asyncio.Lock()
        self._sandboxes: dict[str, PodmanSandbox] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._reported: tuple[PodmanApi, HostReport] | None = None

    # --- the port -----------------------------------------------------------------------------------------------

    async def check(self) -> SandboxHealth:
        """Whether `open` can work: service, version, user mapping, image. Never raises for what is missing."""
        try:
            async with _translated():
                api = await self._service.api()
                self._reported = None
                found = await self._host(api)
                self._require_limits(found)
                await self._image_id(api, self._image)
        except MilepostError as error:
            return SandboxHealth(ok=False, detail=error.message, fix=error.fix)
        return SandboxHealth(ok=True, detail=found.summary, unenforced=found.unenforced)

    async def open(self, spec: SandboxSpec) -> Sandbox:
        """See the port. A stopped container is started; one made for other choices is replaced.

        Raises:
            InvalidInput: the specification cannot be used (workspace, network, instance).
            SandboxUnavailable: no sandbox can be had; the fix says what to do.
        """
        folder = self._validate(spec)
        async with self._lock(spec.session_id):
            known = self._sandboxes.get(spec.session_id)
            if known is not None and known.serves(spec, folder):
                return known
            if known is not None:
                del self._sandboxes[spec.session_id]
                await known.close()
            async with _translated():
                if known is not None and await known.taken():
                    await (await self._service.api()).remove(known.container_id)
                sandbox = await self._open(spec, folder)
            await sandbox.publish()
            self._sandboxes[spec.session_id] = sandbox
            return sandbox

    async def sessions(self) -> frozenset[str]:
        """See the port."""
        return frozenset(found.session_id for found in await self.owned())

    async def remove(self, session_id: str) -> None:
        """Remove the Session's container, running or not; its volumes stay. Idempotent."""
        async with self._lock(session_id), _translated():
            known = self._sandboxes.pop(session_id, None)
            if known is not None:
                await known.close()
            api = await self._service.api()
            for found in await containers.owned(api, self.instance_id, session_id):
                await api.remove(found.container_id)

    async def destroy(self, session_id: str) -> None:
        """Remove the Session's container and volumes; idempotent."""
        await self.remove(session_id)
        async with _translated():
            await volumes.remove(await self._service.api(), self.instance_id, session_id)

    async def holdings(self) -> tuple[Holding, ...]:
        """See the port."""
        async with _translated():
            api = await self._service.api()
            found = await containers.owned(api, self.instance_id)
            return (*(holding_of(each) for each in found), *await volumes.owned(api, self.instance_id))

    async def discard(self, holding: Holding) -> None:
        """See the port."""
        async with _translated():
            api = await self._service.api()
            await (api.remove_volume(holding.name) if holding.kind == "volume" else api.remove(holding.name))

    async def close(self) -> None:
        """Release connections and an own service; containers stay."""
        sandboxes, self._sandboxes = list(self._sandboxes.values()), {}
        for sandbox in sandboxes:
            await sandbox.close()
        await self._service.close()

    # --- for the reaper and the image command -------------------------------------------------------------------

    async def owned(self) -> tuple[OwnedContainer, ...]:
        """All containers of this instance, running or not. Raises SandboxUnavailable."""
        async with _translated():
            return await containers.owned(await self._service.api(), self.instance_id)

    async def build_image(self, progress: images.Progress | None = None, *, force: bool = False) -> images.ImageInfo:
        """Build the default image into this service's storage, unless it is up to date. Raises SandboxUnavailable."""
        async with _translated():
            api = await self._service.api()
            return await images.build(self._image, api, progress, force=force, work=self._data_root)

    async def examine(self, *, network: str, allow_unenforced: bool, folder: Path | None = None) -> list[Finding]:
        """Every requirement of this host, tried for real; what depends on a missing one is left out.

        `folder` is an empty one of the user who runs the service, by default one in the data root.
        """
        found = [] if self._service.given else machine.findings(machine.Machine.detect())
        if not all(each.ok for each in found):
            return found
        try:
            async with _translated():
                info = await (await self._service.api()).info()
                report_of = report(info)
        except MilepostError as error:
            return [*found, Finding("service", False, error.message, error.fix)]
        found += examined.findings(info, report_of, network=network, allow_unenforced=allow_unenforced)
        try:
            async with _translated():
                await self._image_id(await self._service.api(), self._image)
        except MilepostError as error:
            return [*found, Finding("image", False, error.message, error.fix)]
        found.append(Finding("image", True, f"{self._image}."))
        with tempfile.TemporaryDirectory(dir=self._data_root, prefix="doctor-") as made:
            found += await trial.findings(self, self.instance_id, folder or Path(made), report_of.unenforced)
        return found

    # --- steps --------------------------------------------------------------------------------------------------

    def _lock(self, session_id: str) -> asyncio.Lock:
        if len(self._locks) > 10_000:
            self._locks = {key: lock for key, lock in self._locks.items() if lock.locked() or key in self._sandboxes}
        return self._locks.setdefault(session_id, asyncio.Lock())

    def _validate(self, spec: SandboxSpec) -> Identity:
        if spec.instance_id != self.instance_id:
            text = f"The Session belongs to instance {spec.instance_id}, this is {self.instance_id}."
            raise InvalidInput(text, field="instance_id")
        if spec.network not in NETWORKS:
            raise InvalidInput(
                f"Unknown sandbox network {spec.network!r}.", field="network", fix=f"Use {' or '.join(NETWORKS)}."
            )
        return identity(Path(spec.workspace_path))

    async def _host(self, api: PodmanApi) -> HostReport:
        """What the service tells of its host. Asked once for each service that is found or started: it takes 0.2 s."""
        if self._reported is None or self._reported[0] is not api:
            self._reported = (api, report(await api.info()))
        return self._reported[1]

    def _require_limits(self, host: HostReport) -> None:
        """Raises SandboxUnavailable for limits that would be silently without effect."""
        if host.unenforced and not self._allow_unenforced:
            raise SandboxUnavailable(
                f"This host cannot enforce a sandbox's limit of {' and '.join(host.unenforced)} ({host.summary}).",
                fix="See what to do: milepost doctor sandbox. Or agree to it: sandbox.allow_unenforced_limits: true",
            )

    async def _image_id(self, api: PodmanApi, name: str) -> str:
        found = await api.image(name)
        if found is None:
            fix = f"Build it: {BUILD_COMMAND}" if name == self._image else f"Get it: podman pull {name}"
            raise SandboxUnavailable(f"The sandbox image {name} does not exist here; images are never pulled.", fix=fix)
        return str(found["Id"])

    async def _open(self, spec: SandboxSpec, folder: Identity) -> PodmanSandbox:
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
        host = await self._host(api)
        self._require_limits(host)
        wanted = await self._wanted(api, host, spec)
        await volumes.ensure(api, spec, self._lease)
        container_id = await containers.ensure(api, wanted, _mappings(host, spec.workspace_path))
        found = await api.container(container_id)
        if found is None:
            raise SandboxUnavailable("The sandbox's container was removed while it was opened.", fix="Try again.")
        return PodmanSandbox(self._service, found, spec, folder)

    async def _wanted(self, api: PodmanApi, host: HostReport, spec: SandboxSpec) -> containers.Wanted:
        name = local_reference(spec.image, self._images) if spec.image else self._image
        image_id = await self._equipped(api, host, name, await self._image_id(api, name), spec.network)
        limits = specs.HostLimits(host.controllers, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        return containers.Wanted(spec, name, image_id, limits, await self._seccomp(), self._lease)

    async def _equipped(self, api: PodmanApi, host: HostReport, name: str, image_id: str, network_name: str) -> str:
        """The image, or its copy with the commands that it lacked. Ours has them all."""
        if name == DEFAULT_IMAGE:
            return image_id
        mapping = mappings.plain(None if host.rootless else mappings.container_base())
        async with self._provisioning:
            return await self._provisioner.equipped(
                api, name, image_id, mapping, networked=network_name != "none", close=self._keep_from_host
            )

    async def _keep_from_host(self, container_id: str) -> None:
        """Refuse the ways from a container to this host. Raises SandboxUnavailable."""
        api = await self._service.api()
        found = await api.container(container_id)
        if found is None:
            raise SandboxUnavailable("The container was removed while it was prepared.")
        await network.close_routes(
            int(found["State"]["Pid"]),
            rootless=(await self._host(api)).rootless,
            podman=self._service.host.podman,
            environment=self._service.environment(),
        )

    async def _last_words(self, spec: SandboxSpec) -> str:
        """A container that has ended is gone with its words, so another one is asked."""
        try:
            api = await self._service.api()
            host = await self._host(api)
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
                rootless = (await self._host(await self._service.api())).rootless
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
        path = self._data_root / f"seccomp-{hashlib.sha256(data).hexdigest()[:12]}.json"
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


@contextlib.asynccontextmanager
async def _translated() -> AsyncIterator[None]:
    """Podman's own failures in the port's terms."""
    try:
        yield
    except PodmanDown as error:
        raise SandboxUnavailable(f"The Podman service does not answer ({error}).") from None
    except PodmanError as error:
        raise SandboxUnavailable(f"Podman refused: {error}.") from None


__all__ = ["DEFAULT_IMAGE", "OwnedContainer", "PodmanProvider"]
