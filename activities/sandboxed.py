"""Running a call of a built-in tool in the Session's sandbox, or attaching to it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace

from activities.conversation import Conversations
from activities.directories import noted, placed
from activities.guard import Stopped, guarded, heartbeats
from activities.process_tools import ProcessCalls
from activities.toolcalls import Result, ToolCall
from milepost.domain.effects import EffectClass, EffectSpec, EffectState
from milepost.domain.errors import MilepostError, SandboxLost, SandboxUnavailable, StorageUnavailable
from milepost.domain.sessions import Session
from milepost.ports.sandbox import Outcome, Sandbox
from milepost.security.redaction import Redactor
from milepost.services.finishing import CANCELLED_TEXT
from milepost.services.shells import Shells
from milepost.services.workbench import Workbench
from milepost.services.workspaces import WorkspaceGuard, can_write
from milepost.tools import PlannedTool, render

HIDE_INLINE_BYTES = 256 * 1024
"""More output than this is searched for secrets beside the event loop."""

CLOSE_SECONDS = 15.0
KILL_TRIES = 120
KILL_REPEAT_SECONDS = 0.25

LOST_TEXT = (
    "Outcome unknown: the sandbox was lost while the call was running. "
    "Check the state of the files before you repeat it."
)


@dataclass(frozen=True, slots=True)
class Opened:
    """The sandbox at the moment of dispatch, or why there is none. `boot` is what the dispatch records of it."""

    sandbox: Sandbox | None = None
    boot: str = ""
    error: MilepostError | None = None
    stopped: bool = False


class _SandboxWork:
    """Performing one operation in the sandbox, or attaching to it, with the way to end it.

    `attach_to` is None for the first dispatch. For a later one it is the supervisor that every earlier dispatch was
    meant for, or "" if there was not just one: then nothing may be started any more.
    """

    def __init__(
        self, workbench: Workbench, call: ToolCall, planned: PlannedTool, opened: Opened, attach_to: str | None
    ) -> None:
        self._workbench = workbench
        self._call = call
        self._planned = planned
        self._opened = opened
        self._attach_to = attach_to
        self._sandbox = opened.sandbox
        self._stopped = False
        self._done = asyncio.Event()

    async def run(self) -> Outcome:
        effect, operation = self._call.spec.effect_id, self._planned.operation
        try:
            if self._opened.error is not None:
                raise self._opened.error
            if self._sandbox is None:
                self._sandbox = await self._workbench.open(self._call.context.session)
            if self._attach_to:
                return await self._sandbox.attach(effect, operation=operation, boot=self._attach_to)
            if self._attach_to is not None:
                return await self._sandbox.attach(effect)
            if self._stopped:
                return Outcome(killed=True)
            once = self._call.spec.effect_class is EffectClass.ATTACHABLE
            return await self._sandbox.perform(effect, operation, boot=self._opened.boot if once else None)
        finally:
            self._done.set()

    async def kill(self) -> None:
        """Kill what runs; what has not begun will not begin.

        A kill may reach the sandbox before the operation does, so it is repeated until the operation has ended.
        """
        self._stopped = True
        for _ in range(KILL_TRIES):
            if self._sandbox is not None:
                try:
                    await self._sandbox.kill(self._call.spec.effect_id)
                except SandboxUnavailable as error:
                    raise SandboxLost(f"The kill could not be confirmed: {error}") from error
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KILL_REPEAT_SECONDS):
                    await self._done.wait()
                    return


class SandboxedCalls:
    """Opens the sandbox, performs calls in it, and ends those that nobody attends to."""

    def __init__(
        self,
        conversations: Conversations,
        workbench: Workbench,
        redactor: Redactor,
        guard: WorkspaceGuard,
        shells: Shells,
        processes: ProcessCalls,
    ) -> None:
        self._conversations = conversations
        self._guard = guard
        self._workbench = workbench
        self._redactor = redactor
        self._shells = shells
        self.processes = processes

    async def open(self, call: ToolCall) -> Opened:
        """Open the sandbox before the dispatch, which names it: that tells later whether a hand-over was possible."""
        try:
            sandbox = await guarded(self._ready(call), call.stop)
        except Stopped:
            call.stop.known()
            return Opened(stopped=True)
        except StorageUnavailable:
            raise
        except MilepostError as error:
            return Opened(error=error)
        return Opened(sandbox, sandbox.boot)

    async def _ready(self, call: ToolCall) -> Sandbox:
        session, spec = call.context.session, call.spec
        await self._guard.enter(session, spec.turn_id, spec.effect_id, writes=can_write(call.part.tool))
        return await self._workbench.open(session)

    async def left(self, session: Session, spec: EffectSpec, tool: str, attempt: int, result: Result) -> None:
        """Note what the call has done to the Workspace's files, before its end is recorded."""
        # Where the end is not known, it may be at work still: the next snapshot does not belong to it.
        if can_write(tool) and result.state is not EffectState.UNCERTAIN:
            async with heartbeats():
                await self._guard.leave(session, spec.turn_id, spec.effect_id, attempt)

    async def attach_to(self, spec: EffectSpec, attempt: int, boot: str) -> str:
        """`boot` if all attempts before this one were meant for that very supervisor, else ""."""
        earlier = await self._conversations.dispatches(spec, attempt - 1)
        known = len(earlier) == attempt - 1 and all(started.sandbox == boot for started in earlier)
        return boot if known else ""

    async def outcome(self, call: ToolCall, planned: PlannedTool, opened: Opened, attach_to: str | None) -> Result:
        """How the call ended, or that it cannot be known."""
        if attach_to is None and (opened.stopped or await call.stop.heard()):
            return Result(EffectState.CANCELLED, CANCELLED_TEXT, True, {})
        planned = await placed(self._shells, call, planned)
        work = _SandboxWork(self._workbench, call, planned, opened, attach_to)
        try:
            outcome = await guarded(work.run(), call.stop, work.kill)
        except Stopped:
            return Result(EffectState.CANCELLED, CANCELLED_TEXT, True, {})
        except SandboxLost as error:
            return Result(EffectState.UNCERTAIN, LOST_TEXT, True, {"reason": error.message}, error_code=error.code)
        except MilepostError as error:
            if attach_to is not None:
                # It was dispatched before: that nobody can be asked now does not mean that it did not run.
                return Result(EffectState.UNCERTAIN, LOST_TEXT, True, {"reason": str(error)}, error_code=error.code)
            return Result(EffectState.FAILED, str(error), True, {}, error_code=error.code)
        return noted(planned, self._rendered(call.part.tool, planned, await self._hidden(outcome)))

    async def end(self, session: Session, effect_id: str, tool: str, planned: PlannedTool) -> Result | None:
        """Kill a call that nobody attends to; None if its end cannot be learned."""
        try:
            sandbox = await self._workbench.open(session)
            await sandbox.kill(effect_id)
            async with asyncio.timeout(CLOSE_SECONDS):
                outcome = await sandbox.attach(effect_id)
        except (MilepostError, TimeoutError):
            return None
        return self._rendered(tool, planned, await self._hidden(outcome))

    async def has(self, session_id: str) -> bool:
        """Whether the Session has a container on this host. Raises SandboxUnavailable."""
        return await self._workbench.has(session_id)

    def _rendered(self, tool: str, planned: PlannedTool, outcome: Outcome) -> Result:
        output = render(tool, planned.operation, outcome)
        if outcome.killed:
            text = f"{CANCELLED_TEXT}\n{output.text}" if output.text else CANCELLED_TEXT
            return Result(EffectState.CANCELLED, text, True, output.detail, output.full_text)
        state = EffectState.FAILED if output.is_error else EffectState.SUCCEEDED
        detail = {**output.detail, "repaired": True} if planned.repaired else output.detail
        return Result(state, output.text, output.is_error, detail, output.full_text)

    async def _hidden(self, outcome: Outcome) -> Outcome:
        """The outcome without the values of our own secrets, which a Workspace may hold as well (`.env`).

        Before it is shortened, since half a secret is none that can be found.
        """
        size = len(outcome.stdout) + len(outcome.stderr)
        if size > HIDE_INLINE_BYTES:
            return await asyncio.to_thread(_without_secrets, outcome, self._redactor)
        return _without_secrets(outcome, self._redactor)


def _without_secrets(outcome: Outcome, redactor: Redactor) -> Outcome:
    error = outcome.error
    return replace(
        outcome,
        stdout=redactor.data(outcome.stdout),
        stderr=redactor.data(outcome.stderr),
        error=None if error is None else redactor.certain(error),
        detail={
            name: redactor.certain(value) if isinstance(value, str) else value for name, value in outcome.detail.items()
        },
    )
