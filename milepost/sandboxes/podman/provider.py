"""The sandbox provider over Podman: one container per Session, found again by its labels."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from milepost.domain.errors import MilepostError, SandboxUnavailable
from milepost.ports.sandbox import Holding, Sandbox, SandboxHealth, SandboxSpec
from milepost.sandboxes import image as images
from milepost.sandboxes.choices import Locks, check
from milepost.sandboxes.podman import containers, volumes
from milepost.sandboxes.podman.api import PodmanDown, PodmanError
from milepost.sandboxes.podman.containers import OwnedContainer, holding_of
from milepost.sandboxes.podman.examine import machine, trial
from milepost.sandboxes.podman.examine import service as examined
from milepost.sandboxes.podman.examine.finding import Finding
from milepost.sandboxes.podman.folder import Identity, identity
from milepost.sandboxes.podman.health import report
from milepost.sandboxes.podman.opening import DEFAULT_IMAGE, Opener, Settings
from milepost.sandboxes.podman.sandbox import PodmanSandbox
from milepost.sandboxes.podman.service import PodmanService


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
        self._service = PodmanService(data_root, socket, runtime_dir, environment)
        settings = Settings(data_root, instance_id, image, dict(images or {}), allow_unenforced, lease)
        self._opener = Opener(self._service, settings)
        self._sandboxes: dict[str, PodmanSandbox] = {}
        self._locks = Locks(self._sandboxes)

    # --- the port -----------------------------------------------------------------------------------------------

    async def check(self) -> SandboxHealth:
        """Whether `open` can work: service, version, user mapping, image. Never raises for what is missing."""
        try:
            async with _translated():
                api = await self._service.api()
                self._opener.forget_host()
                found = await self._opener.host(api)
                self._opener.require_limits(found)
                await self._opener.image_id(api, self._image)
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
        async with self._locks.of(spec.session_id):
            known = self._sandboxes.get(spec.session_id)
            if known is not None and known.serves(spec, folder):
                return known
            if known is not None:
                del self._sandboxes[spec.session_id]
                await known.close()
            async with _translated():
                if known is not None and await known.taken():
                    await (await self._service.api()).remove(known.container_id)
                sandbox = await self._opener.open(spec, folder)
            await sandbox.publish()
            self._sandboxes[spec.session_id] = sandbox
            return sandbox

    async def sessions(self) -> frozenset[str]:
        """See the port."""
        return frozenset(found.session_id for found in await self.owned())

    async def remove(self, session_id: str) -> None:
        """Remove the Session's container, running or not; its volumes stay. Idempotent."""
        async with self._locks.of(session_id), _translated():
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
        sandboxes = list(self._sandboxes.values())
        self._sandboxes.clear()
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
                await self._opener.image_id(await self._service.api(), self._image)
        except MilepostError as error:
            return [*found, Finding("image", False, error.message, error.fix)]
        found.append(Finding("image", True, f"{self._image}."))
        with tempfile.TemporaryDirectory(dir=self._data_root, prefix="doctor-") as made:
            found += await trial.findings(self, self.instance_id, folder or Path(made), report_of.unenforced)
        return found

    # --- steps --------------------------------------------------------------------------------------------------

    def _validate(self, spec: SandboxSpec) -> Identity:
        check(spec, self.instance_id)
        return identity(Path(spec.workspace_path))


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
