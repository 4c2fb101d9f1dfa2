"""Preparing a generation of an environment: its container, and the setup command that was agreed to."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import replace

from temporalio import activity

from activities.boundary import boundary
from activities.guard import cancel_requested, heartbeats
from activities.setup_output import SetupOutput
from milepost.contracts.environments import (
    CLAIM_ENVIRONMENT,
    FAIL_ENVIRONMENT,
    PREPARE_ENVIRONMENT,
    EnvironmentClaimed,
    EnvironmentFailedParams,
    EnvironmentPrepared,
    EnvironmentStepParams,
)
from milepost.domain.environments import Environment, EnvironmentResult, EnvironmentState
from milepost.domain.errors import Fenced, MilepostError, SandboxLost, SetupFailed, WorkspaceBusy
from milepost.domain.sessions import Session
from milepost.domain.workspaces import LeasePurpose
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.ports.sandbox import Exec, Outcome, Sandbox
from milepost.ports.system import Clock
from milepost.security.redaction import Redactor
from milepost.services.contents import Contents
from milepost.services.environment_preparation import LOST, Preparation
from milepost.services.workbench import Workbench
from milepost.services.workspaces import leased

LOOK_SECONDS = 1.0
"""How often it is looked whether the generation is still wanted."""
LEASE_TRIES = 1800
KEPT_BYTES = 512 * 1024
"""Of the start and of the end of each output stream."""

SandboxQueue = Callable[[LedgerTx, Session], str]


class EnvironmentActivities:
    """`claim_environment`, `prepare_environment` and `fail_environment`."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        contents: Contents,
        workbench: Workbench,
        redactor: Redactor,
        queue: SandboxQueue,
        setup_seconds: float,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._contents = contents
        self._workbench = workbench
        self._redactor = redactor
        self._queue = queue
        self._setup_seconds = setup_seconds
        self._preparation = Preparation(ledger, clock)

    @activity.defn(name=CLAIM_ENVIRONMENT.name)
    async def claim_environment(self, params: EnvironmentStepParams) -> EnvironmentClaimed:
        """Give the generation to this workflow run."""
        with boundary():
            await self._preparation.claim(params.session_id, params.generation, params.claim)
            return await self._ledger.read(
                lambda tx: EnvironmentClaimed(self._queue(tx, tx.sessions.get(params.session_id)))
            )

    @activity.defn(name=FAIL_ENVIRONMENT.name)
    async def fail_environment(self, params: EnvironmentFailedParams) -> EnvironmentPrepared:
        """Record a failure that the step itself could not."""
        with boundary():
            result = EnvironmentResult(error_code=params.error_code, error=params.error)
            state = EnvironmentState.FAILED
            return EnvironmentPrepared(
                await self._preparation.end(params.session_id, params.generation, params.claim, state, result)
            )

    @activity.defn(name=PREPARE_ENVIRONMENT.name)
    async def prepare_environment(self, params: EnvironmentStepParams) -> EnvironmentPrepared:
        """Make the container and run the approved command in it, once. A later attempt attaches to what runs."""
        with boundary():
            work = asyncio.ensure_future(self._prepare(params))
            watch = asyncio.ensure_future(self._unwanted(params))
            try:
                async with heartbeats():
                    await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
                    if work.done():
                        return work.result()
                    await self._give_up(params, work)
                    watch.result()
                    raise Fenced(f"Generation {params.generation} is not wanted any more.")
            except asyncio.CancelledError:
                if cancel_requested():
                    await self._give_up(params, work)
                raise
            finally:
                for task in (work, watch):
                    task.cancel()
                await asyncio.gather(work, watch, return_exceptions=True)

    async def _unwanted(self, params: EnvironmentStepParams) -> None:
        """Raises Fenced once the generation was stopped or superseded."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._preparation.under_way(params.session_id, params.generation, params.claim)

    async def _give_up(self, params: EnvironmentStepParams, work: asyncio.Future[EnvironmentPrepared]) -> None:
        """End what runs. The container goes with it: nobody may take it for a prepared one."""
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await asyncio.shield(self._workbench.destroy(params.session_id))

    async def _prepare(self, params: EnvironmentStepParams) -> EnvironmentPrepared:
        session, found = await self._preparation.under_way(params.session_id, params.generation, params.claim)
        try:
            result = await self._carry_out(session, found, params)
        except Fenced:
            raise
        except SandboxLost as error:
            text = f"{error.message} Whether the setup command did its work is not known."
            result = EnvironmentResult(error_code=LOST, error=text)
        except MilepostError as error:
            result = EnvironmentResult(error_code=error.code, error=error.message, fix=error.fix)
        state = EnvironmentState.READY if result.error_code is None else EnvironmentState.FAILED
        if state is EnvironmentState.FAILED:
            await self._workbench.discard(params.session_id)
        ended = self._preparation.end(params.session_id, params.generation, params.claim, state, result)
        return EnvironmentPrepared(await asyncio.shield(ended))

    async def _carry_out(
        self, session: Session, found: Environment, params: EnvironmentStepParams
    ) -> EnvironmentResult:
        if found.boot is None:
            await self._workbench.destroy(session.session_id)
        sandbox = await self._workbench.open_for(session, found)
        command = found.command
        if command is None:
            return EnvironmentResult(sandbox=sandbox.placement)
        effect = _effect_id(found, command)
        operation = Exec(command, timeout=self._setup_seconds)
        await self._hold_workspace(session, found)
        holder = _holder(found)
        started = self._clock.now()
        async with leased(self._ledger, self._clock, session.workspace, holder, LeasePurpose.SETUP, session.session_id):
            outcome = await self._run(sandbox, effect, operation, found, params)
        seconds = (self._clock.now() - started) / 1_000_000
        return replace(await self._judged(outcome, seconds), sandbox=sandbox.placement)

    async def _hold_workspace(self, session: Session, found: Environment) -> None:
        """Wait until nobody else works on the files. Raises WorkspaceBusy."""
        for remaining in reversed(range(LEASE_TRIES)):
            now = self._clock.now()
            try:
                await self._ledger.write(
                    lambda tx, now=now: tx.workspaces.acquire(  # type: ignore[misc]
                        session.workspace,
                        _holder(found),
                        LeasePurpose.SETUP,
                        session.session_id,
                        now,
                        now + 60_000_000,
                    )
                )
                return
            except WorkspaceBusy:
                if not remaining:
                    raise
            await asyncio.sleep(1)

    async def _run(
        self, sandbox: Sandbox, effect: str, operation: Exec, found: Environment, params: EnvironmentStepParams
    ) -> Outcome:
        output = SetupOutput(self._preparation, found, params.claim, self._redactor)
        await output.resume(self._ledger)
        try:
            if found.boot is not None:
                # An earlier attempt handed it over, or was about to: only that very supervisor can tell, or start it.
                return await sandbox.attach(effect, output.take, operation=operation, boot=found.boot)
            await self._preparation.handed_over(params.session_id, params.generation, params.claim, sandbox.boot)
            return await sandbox.perform(effect, operation, output.take, boot=sandbox.boot)
        finally:
            await output.close()

    async def _judged(self, outcome: Outcome, seconds: float) -> EnvironmentResult:
        text = await asyncio.to_thread(_output, outcome, self._redactor)
        output = await self._contents.store(text)
        error: str | None = None
        if outcome.timed_out:
            error = f"The setup command did not end within {self._setup_seconds:g} s and was killed."
        elif outcome.killed:
            error = "The setup command was killed."
        elif outcome.error is not None:
            error = outcome.error
        elif outcome.exit_code != 0:
            error = f"The setup command ended with exit code {outcome.exit_code}."
        code = None if error is None else SetupFailed.code
        return EnvironmentResult(outcome.exit_code, output, round(seconds, 3), code, error)


def _holder(found: Environment) -> str:
    return f"env/{found.environment_id}"


def _effect_id(found: Environment, command: str) -> str:
    parts = ("environment", found.environment_id, command)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _output(outcome: Outcome, redactor: Redactor) -> str:
    """Both streams as text, the middle of a long one left out, without the instance's own secrets."""
    texts = []
    for name, data in (("", outcome.stdout), ("[stderr]\n", outcome.stderr)):
        hidden = redactor.data(data)
        if len(hidden) > 2 * KEPT_BYTES:
            left = len(hidden) - 2 * KEPT_BYTES
            hidden = hidden[:KEPT_BYTES] + f"\n[... {left} bytes left out ...]\n".encode() + hidden[-KEPT_BYTES:]
        if hidden:
            texts.append(name + hidden.decode("utf-8", "replace"))
    return "\n".join(texts)
