"""The sandbox provider over E2B: one micro virtual machine per Session, found again by its id."""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from milepost.domain.errors import (
    ImageNotAllowed,
    MilepostError,
    SandboxMissing,
    SandboxUnavailable,
    SandboxUnsupported,
)
from milepost.observability.logging import get_logger
from milepost.ports.sandbox import REMOTE, Holding, Sandbox, SandboxHealth, SandboxSpec
from milepost.sandboxes.choices import Locks, check
from milepost.sandboxes.e2b import bridge
from milepost.sandboxes.e2b.sandbox import E2BSandbox
from milepost.sandboxes.e2b.service import Found, Missing, Service
from milepost.sandboxes.e2b.settings import COMMANDS, GENERATION, HOME, INSTANCE, LEASE, SESSION, E2BSettings
from milepost.sandboxes.e2b.upload import pack

if TYPE_CHECKING:
    from e2b import AsyncSandbox

LOOK_SECONDS = 60
UPLOAD_SECONDS = 900.0

_NO_IMAGES = "The image {} cannot be used: sandboxes of E2B are made of its template."
_WITHOUT = "Leave the image out (milepost env change SESSION --image ''), or use sandbox.backend: podman"
_log = get_logger(__name__)


class E2BProvider:
    """Implements `milepost.ports.sandbox.SandboxProvider`.

    The Workspace is inside the sandbox: a new one gets a copy of the Session's folder, and the folder on this host
    stays as it is. `remove` pauses: files, memory and processes are kept, and the next `open` goes on with them.
    """

    def __init__(self, settings: E2BSettings, instance_id: str, *, lease: str = "") -> None:
        self.instance_id = instance_id
        self._settings = settings
        self._service = Service(settings)
        self._lease = lease
        self._sandboxes: dict[str, E2BSandbox] = {}
        self._locks = Locks(self._sandboxes)

    async def check(self) -> SandboxHealth:
        """Whether the service takes the key. Never raises for what is missing."""
        try:
            found = await self._service.list({INSTANCE: self.instance_id}, running=True)
        except MilepostError as error:
            return SandboxHealth(ok=False, detail=error.message, fix=error.fix)
        chosen = self._settings
        detail = f"E2B at {chosen.api_url or chosen.domain}, template '{chosen.template}', {len(found)} running."
        return SandboxHealth(ok=True, detail=detail, unenforced=("memory", "cpus", "pids"))

    async def open(self, spec: SandboxSpec) -> Sandbox:
        """See the port.

        Raises:
            SandboxUnsupported: the specification names an image; E2B's sandboxes are made of its template.
            SandboxMissing: the sandbox that this environment was prepared in does not exist any more.
            SandboxUnavailable: no sandbox can be had; the fix says what to do.
        """
        self._validate(spec)
        async with self._locks.of(spec.session_id):
            known = self._sandboxes.get(spec.session_id)
            if known is not None and known.serves(spec):
                return known
            if known is not None:
                del self._sandboxes[spec.session_id]
                await known.close()
            sandbox = E2BSandbox(self._service, await self._machine(spec), spec)
            try:
                facts = (await sandbox.hello())["facts"]
                if not facts["workspace"]["writable"]:
                    raise SandboxUnavailable("The Workspace in the E2B sandbox cannot be written.")
                await sandbox.publish()
            except BaseException:
                await sandbox.close()
                raise
            self._sandboxes[spec.session_id] = sandbox
            return sandbox

    async def sessions(self) -> frozenset[str]:
        """The Sessions that have a running sandbox; a paused one needs nobody's care."""
        found = await self._service.list({INSTANCE: self.instance_id}, running=True)
        return frozenset(each.metadata.get(SESSION, "") for each in found)

    async def remove(self, session_id: str) -> None:
        """Pause the Session's sandbox; idempotent."""
        async with self._locks.of(session_id):
            await self._release(session_id)
            for found in await self._of(session_id, running=True):
                await self._service.pause(found.sandbox_id)

    async def destroy(self, session_id: str) -> None:
        """Kill the Session's sandboxes, running or paused, of all generations; idempotent."""
        async with self._locks.of(session_id):
            await self._release(session_id)
            for found in await self._of(session_id):
                await self._service.kill(found.sandbox_id)

    async def holdings(self) -> tuple[Holding, ...]:
        """See the port."""
        return tuple(_holding(each) for each in await self._service.list({INSTANCE: self.instance_id}))

    async def discard(self, holding: Holding) -> None:
        """See the port."""
        await self._service.kill(holding.name)

    async def close(self) -> None:
        """Release connections; sandboxes stay, and the service pauses those that nobody uses."""
        for session_id in list(self._sandboxes):
            await self._release(session_id)

    # --- steps ---------------------------------------------------------------------------------------------------

    async def _release(self, session_id: str) -> None:
        known = self._sandboxes.pop(session_id, None)
        if known is not None:
            await known.close()

    async def _of(self, session_id: str, *, running: bool = False) -> list[Found]:
        return await self._service.list({INSTANCE: self.instance_id, SESSION: session_id}, running=running)

    async def _machine(self, spec: SandboxSpec) -> AsyncSandbox:
        """The sandbox of this generation with the Workspace's files in it."""
        if spec.placement is not None:
            return await self._prepared(spec, spec.placement.sandbox_id)
        of_generation = [
            each for each in await self._of(spec.session_id) if each.metadata.get(GENERATION) == str(spec.generation)
        ]
        if not of_generation and not spec.fresh:
            raise _missing(spec, "no sandbox of this environment")
        for each in of_generation[1:]:
            await self._service.kill(each.sandbox_id)
        if of_generation:
            # An earlier attempt made it, and may have been killed before it was whole.
            sandbox = await self._prepared(spec, of_generation[0].sandbox_id)
        else:
            sandbox = await self._service.create(
                self._metadata(spec), f"milepost-{uuid.uuid4()}", internet=spec.network != "none"
            )
        await self._fill(sandbox, spec)
        return sandbox

    async def _prepared(self, spec: SandboxSpec, sandbox_id: str) -> AsyncSandbox:
        try:
            return await self._service.connect(sandbox_id)
        except Missing:
            raise _missing(spec, f"no sandbox {sandbox_id}") from None

    async def _fill(self, sandbox: AsyncSandbox, spec: SandboxSpec) -> None:
        """Verify the template and copy the Workspace, unless that was done. What is unfit is killed."""
        try:
            looked = await self._run(sandbox, bridge.LOOK, LOOK_SECONDS)
            missing = list(dict.fromkeys(line[8:] for line in looked.splitlines() if line.startswith("missing ")))
            if missing:
                raise SandboxUnavailable(
                    f"The E2B template '{self._settings.template}' has no {', '.join(missing)}; nothing is installed.",
                    fix=f"Name a template that has {', '.join(COMMANDS)}: sandbox.e2b.template",
                )
            if "filled" not in looked.split():
                await self._upload(sandbox, spec)
        except BaseException:
            await asyncio.shield(self._service.kill(str(sandbox.sandbox_id)))
            raise

    async def _upload(self, sandbox: AsyncSandbox, spec: SandboxSpec) -> None:
        with tempfile.TemporaryFile() as file:
            left_out = await asyncio.to_thread(pack, Path(spec.workspace_path), file, self._settings.upload_bytes)
            if left_out:
                _log.warning("sandbox.left_out", session_id=spec.session_id, entries=left_out)
            file.seek(0)
            archive = f"{HOME}/.milepost/workspace.tar.gz"
            async with self._service.translated(UPLOAD_SECONDS):
                await sandbox.files.write(archive, file, use_octet_stream=True, request_timeout=UPLOAD_SECONDS)
            await self._run(sandbox, bridge.unpack_command(archive), UPLOAD_SECONDS)

    async def _run(self, sandbox: AsyncSandbox, command: str, seconds: float) -> str:
        from e2b import CommandExitException

        try:
            async with self._service.translated(seconds + self._settings.request_seconds):
                return (await sandbox.commands.run(command, timeout=seconds)).stdout
        except Missing as error:
            text = f"The E2B sandbox ended while it was prepared: {error}"
            raise SandboxUnavailable(text, fix="Try again.") from None
        except CommandExitException as error:
            words = " ".join(error.stderr.split())[-500:]
            text = f"Preparing the E2B sandbox failed (exit code {error.exit_code}): {words}"
            raise SandboxUnavailable(text) from None

    def _metadata(self, spec: SandboxSpec) -> dict[str, str]:
        return {
            INSTANCE: spec.instance_id,
            SESSION: spec.session_id,
            GENERATION: str(spec.generation),
            LEASE: self._lease,
        }

    def _validate(self, spec: SandboxSpec) -> None:
        check(spec, self.instance_id)
        if spec.image is not None:
            raise SandboxUnsupported(_NO_IMAGES.format(spec.image), field="image", fix=_WITHOUT)


def refuse_image(image: str) -> NoReturn:
    """An image is never replaced by the template. Raises ImageNotAllowed."""
    raise ImageNotAllowed(_NO_IMAGES.format(image), field="image", fix=_WITHOUT)


def _missing(spec: SandboxSpec, what: str) -> SandboxMissing:
    return SandboxMissing(
        f"E2B has {what} of Session {spec.session_id} any more; the files that were only there are lost.",
        fix=f"Make a new one from the folder: milepost env rebuild {spec.session_id}",
    )


def _holding(found: Found) -> Holding:
    generation = found.metadata.get(GENERATION, "")
    return Holding(
        REMOTE,
        found.sandbox_id,
        found.metadata.get(SESSION, ""),
        int(generation) if generation.isdigit() else 0,
        found.metadata.get(LEASE, ""),
        found.running,
    )
