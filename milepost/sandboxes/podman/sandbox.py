"""One Session's container as the port's `Sandbox`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Any

from milepost.domain.errors import MilepostError, SandboxUnavailable
from milepost.ports.sandbox import (
    TERMINAL_BYTES,
    OnOutput,
    Operation,
    Outcome,
    ProcessInfo,
    ProcessOutput,
    SandboxSpec,
    Spawn,
    TerminalSize,
)
from milepost.sandboxes import bundle
from milepost.sandboxes.client import Link, LinkDown, SandboxGone, SupervisorClient
from milepost.sandboxes.forwarding import COMMAND, Forwarder
from milepost.sandboxes.podman.api import ExecLink, PodmanApi, PodmanDown, PodmanError
from milepost.sandboxes.podman.folder import Identity
from milepost.sandboxes.podman.mapping import AGENT, BRIDGE
from milepost.sandboxes.podman.service import PodmanService
from milepost.sandboxes.podman.spec import ADDRESS

DEATH_SECONDS = 10.0


class PodmanSandbox:
    """Operations go over one exec session per process that copies bytes to and from the supervisor."""

    def __init__(self, service: PodmanService, container: dict[str, Any], spec: SandboxSpec, folder: Identity) -> None:
        """`container` is what Podman tells of it; `folder` is what is to be mounted."""
        self.spec = spec
        self.folder = folder
        self.started = str(container["State"]["StartedAt"])
        self.container_id = str(container["Id"])
        self._forwarder = Forwarder(spec.session_id, self._reach)
        self._service = service
        self._client = SupervisorClient(self._connect, spec.environment)

    @property
    def connected(self) -> bool:
        return self._client.connected

    def serves(self, spec: SandboxSpec, folder: Identity) -> bool:
        """Whether it is what opening this specification would give, without asking anybody."""
        return replace(self.spec, fresh=spec.fresh) == spec and self.folder == folder and self.connected

    async def hello(self) -> dict[str, Any]:
        return await self._client.hello()

    @property
    def placement(self) -> None:
        return None

    @property
    def boot(self) -> str:
        return self._client.boot

    async def perform(
        self, effect_id: str, operation: Operation, on_output: OnOutput | None = None, *, boot: str | None = None
    ) -> Outcome:
        return await self._client.perform(effect_id, operation, on_output, boot=boot)

    async def attach(
        self,
        effect_id: str,
        on_output: OnOutput | None = None,
        *,
        operation: Operation | None = None,
        boot: str | None = None,
    ) -> Outcome:
        return await self._client.attach(effect_id, on_output, operation=operation, boot=boot)

    async def kill(self, effect_id: str) -> None:
        """Kill the operation; if the supervisor does not confirm, all that runs in the container.

        Returns when nothing of the operation runs any more.

        Raises:
            SandboxUnavailable: neither could be confirmed, so the operation may still run.
        """
        await self._surely(self._client.kill(effect_id))

    async def _surely(self, ending: Awaitable[None]) -> None:
        try:
            await ending
        except SandboxUnavailable as silent:
            # A container whose processes are used up takes no new bridge; its kill from outside always works.
            try:
                if not self._client.replaced or await self.taken():
                    await self._kill_container()
            except (PodmanDown, PodmanError, MilepostError) as error:
                raise SandboxUnavailable(
                    f"It may still run: {silent.message} And its container could not be killed: {error}",
                    fix=f"Try again, or end it by hand: podman kill --signal KILL {self.container_id[:12]}",
                ) from None

    # --- processes, see the port ---------------------------------------------------------------------------------

    async def spawn(self, process_id: str, spec: Spawn) -> ProcessInfo:
        return await self._client.spawn(process_id, spec)

    async def processes(self) -> tuple[ProcessInfo, ...]:
        return await self._client.processes()

    async def read(
        self, process_id: str, offset: int = 0, limit: int = TERMINAL_BYTES, wait: float = 0.0
    ) -> ProcessOutput:
        return await self._client.read(process_id, offset, limit, wait)

    async def write(self, process_id: str, data: bytes) -> None:
        await self._client.write(process_id, data)

    async def resize(self, process_id: str, size: TerminalSize) -> None:
        await self._client.resize(process_id, size)

    async def end(self, process_id: str) -> None:
        """End the process; if the supervisor does not confirm, all that runs in the container."""
        await self._surely(self._client.end(process_id))

    # --- the container -------------------------------------------------------------------------------------------

    async def _kill_container(self) -> None:
        """Raises PodmanDown, PodmanError, SandboxUnavailable."""
        api = await self._service.api()
        if not await self._runs(api):
            return
        await api.kill(self.container_id)
        try:
            async with asyncio.timeout(DEATH_SECONDS):
                while True:
                    if not await self._runs(api):
                        return
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise SandboxUnavailable(f"it still runs {DEATH_SECONDS:.0f} s after its kill.") from None

    async def _runs(self, api: PodmanApi) -> bool:
        found = await api.container(self.container_id)
        return found is not None and bool(found["State"].get("Running"))

    async def taken(self) -> bool:
        """Whether another supervisor answers although the container was not started again: a command poses as it.

        Raises PodmanDown, PodmanError, SandboxUnavailable.
        """
        if not self._client.replaced:
            return False
        found = await (await self._service.api()).container(self.container_id)
        return found is not None and str(found["State"]["StartedAt"]) == self.started

    @property
    def ports(self) -> Mapping[int, str]:
        """See the port."""
        return dict(self._forwarder.places)

    async def publish(self) -> None:
        """Listen on this host's loopback for the ports of the specification."""
        await self._forwarder.open(self.spec.ports)

    async def _reach(self, port: int) -> ExecLink:
        try:
            api = await self._service.api()
            return await api.exec(self.container_id, [*COMMAND, str(port)], {}, user=f"{AGENT}:{AGENT}")
        except (PodmanError, PodmanDown) as error:
            raise LinkDown(str(error)) from None

    async def close(self) -> None:
        """Release the connection; the container and what runs in it go on."""
        await self._forwarder.close()
        await self._client.close()

    async def _connect(self) -> Link:
        try:
            api = await self._service.api()
            command, environment = list(bundle.bridge_command(ADDRESS)), bundle.bridge_environment()
            return await api.exec(self.container_id, command, environment, user=f"{BRIDGE}:{BRIDGE}")
        except (PodmanDown, MilepostError) as error:
            raise LinkDown(str(error)) from None
        except PodmanError as error:
            await self._raise_if_gone()
            raise LinkDown(str(error)) from None

    async def _raise_if_gone(self) -> None:
        try:
            found = await (await self._service.api()).container(self.container_id)
        except (PodmanDown, PodmanError, MilepostError) as error:
            raise LinkDown(str(error)) from None
        if found is None:
            raise SandboxGone("The sandbox's container was removed.")
        if not found["State"].get("Running"):
            raise SandboxGone("The sandbox's container has stopped.")
