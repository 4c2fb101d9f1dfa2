"""One Session's E2B sandbox as the port's `Sandbox`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from milepost.domain.environments import RemoteSandbox
from milepost.domain.errors import SandboxUnavailable
from milepost.observability.logging import get_logger
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
from milepost.sandboxes.client import Link, LinkDown, SandboxGone, SupervisorClient
from milepost.sandboxes.e2b import bridge
from milepost.sandboxes.e2b.link import ProcessLink
from milepost.sandboxes.e2b.service import Missing, Service
from milepost.sandboxes.e2b.settings import ROOT
from milepost.sandboxes.forwarding import Forwarder

if TYPE_CHECKING:
    from e2b import AsyncSandbox

START_SECONDS = 20.0
START_PAUSE = 0.05

_log = get_logger(__name__)


class E2BSandbox:
    """The same supervisor as in containers, reached over processes that the service starts.

    While an operation is under way the sandbox's time is extended, so that the service does not pause it.
    """

    def __init__(self, service: Service, sandbox: AsyncSandbox, spec: SandboxSpec) -> None:
        self.spec = spec
        self._service = service
        self._sandbox = sandbox
        self._client = SupervisorClient(self._connect, spec.environment)
        self._forwarder = Forwarder(spec.session_id, self._reach)
        self._extended = time.monotonic()

    @property
    def sandbox_id(self) -> str:
        return str(self._sandbox.sandbox_id)

    @property
    def placement(self) -> RemoteSandbox:
        domain = str(self._sandbox.sandbox_domain or self._service.settings.domain)
        return RemoteSandbox("e2b", self.sandbox_id, domain, ROOT)

    @property
    def boot(self) -> str:
        return self._client.boot

    @property
    def ports(self) -> Mapping[int, str]:
        return dict(self._forwarder.places)

    def serves(self, spec: SandboxSpec) -> bool:
        """Whether it is what opening this specification would give, without asking anybody."""
        return replace(self.spec, fresh=spec.fresh, placement=spec.placement) == spec and self._client.connected

    async def hello(self) -> dict[str, Any]:
        """What the supervisor reports; it is started if none runs. Raises SandboxUnavailable."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return await self._client.hello()
            except SandboxGone as error:
                raise SandboxUnavailable(str(error), fix="Try again.") from None
            except LinkDown as error:
                if time.monotonic() > deadline:
                    raise SandboxUnavailable(f"The sandbox's supervisor does not answer: {error}.") from None
            await asyncio.sleep(START_PAUSE)

    async def publish(self) -> None:
        """Listen for the specification's ports on this host's loopback."""
        await self._forwarder.open(self.spec.ports)

    async def close(self) -> None:
        """Release the connection; the sandbox and what runs in it go on."""
        await self._forwarder.close()
        await self._client.close()

    # --- the port ------------------------------------------------------------------------------------------------

    async def perform(
        self, effect_id: str, operation: Operation, on_output: OnOutput | None = None, *, boot: str | None = None
    ) -> Outcome:
        async with self._in_use():
            return await self._client.perform(effect_id, operation, on_output, boot=boot)

    async def attach(
        self,
        effect_id: str,
        on_output: OnOutput | None = None,
        *,
        operation: Operation | None = None,
        boot: str | None = None,
    ) -> Outcome:
        async with self._in_use():
            return await self._client.attach(effect_id, on_output, operation=operation, boot=boot)

    async def kill(self, effect_id: str) -> None:
        await self._client.kill(effect_id)

    async def spawn(self, process_id: str, spec: Spawn) -> ProcessInfo:
        async with self._in_use():
            return await self._client.spawn(process_id, spec)

    async def processes(self) -> tuple[ProcessInfo, ...]:
        return await self._client.processes()

    async def read(
        self, process_id: str, offset: int = 0, limit: int = TERMINAL_BYTES, wait: float = 0.0
    ) -> ProcessOutput:
        async with self._in_use():
            return await self._client.read(process_id, offset, limit, wait)

    async def write(self, process_id: str, data: bytes) -> None:
        async with self._in_use():
            await self._client.write(process_id, data)

    async def resize(self, process_id: str, size: TerminalSize) -> None:
        await self._client.resize(process_id, size)

    async def end(self, process_id: str) -> None:
        await self._client.end(process_id)

    # --- the service's processes ---------------------------------------------------------------------------------

    async def _connect(self) -> Link:
        pid = await self._supervisor()
        link = ProcessLink(self._service, self._sandbox)
        await link.open(bridge.bridge_command(pid))
        return link

    async def _reach(self, port: int) -> ProcessLink:
        link = ProcessLink(self._service, self._sandbox)
        try:
            await link.open(bridge.port_command(port))
        except SandboxGone as error:
            raise LinkDown(str(error)) from None
        return link

    async def _supervisor(self) -> int:
        """Process id of the running supervisor, started if there is none. Raises LinkDown, SandboxGone."""
        try:
            async with self._service.translated():
                running = await self._sandbox.commands.list()
            found = [each.pid for each in running if any(bridge.MARK in part for part in each.args)]
            if found:
                # Of two that were started in the same moment the later one ends: the address is taken.
                return min(found)
            async with self._service.translated():
                handle = await self._sandbox.commands.run(
                    bridge.supervisor_command(),
                    background=True,
                    envs=bridge.supervisor_environment(self.spec.limits),
                    timeout=0,
                    request_timeout=self._service.settings.request_seconds,
                    retain_output=False,
                )
                await handle.disconnect()
                return int(handle.pid)
        except Missing as error:
            raise SandboxGone(f"The E2B sandbox {self.sandbox_id} is gone or paused: {error}") from None
        except SandboxUnavailable as error:
            raise LinkDown(error.message) from None

    @contextlib.asynccontextmanager
    async def _in_use(self) -> AsyncIterator[None]:
        """Extend the sandbox's time now, and again and again until the block ends."""
        keeping = asyncio.create_task(self._keep(), name="e2b-keep")
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _keep(self) -> None:
        pause = self._service.settings.timeout_seconds / 4
        while True:
            left = self._extended + pause - time.monotonic()
            if left > 0:
                await asyncio.sleep(left)
                continue
            self._extended = time.monotonic()
            try:
                async with self._service.translated():
                    await self._sandbox.set_timeout(self._service.settings.timeout_seconds)
            except (Missing, SandboxUnavailable) as error:
                _log.warning("sandbox.not_extended", session_id=self.spec.session_id, detail=str(error))
