"""The ledger's side of preparing a generation: the one run that may, what it was given, how it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from milepost.contracts.naming import environment_workflow_id
from milepost.domain.environments import Environment, EnvironmentResult, EnvironmentState
from milepost.domain.errors import Fenced, TemporalUnavailable
from milepost.domain.events import EnvironmentOutput
from milepost.domain.sessions import Session
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.ports.system import Clock
from milepost.ports.workflows import WorkflowStarter, WorkflowState
from milepost.services.environments import append_output, settle

LOST = "environment_lost"


class Preparation:
    """Steps of one generation's workflow."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock

    async def claim(self, session_id: str, generation: int, run: str) -> Environment:
        """Give the generation to this workflow run. Raises Fenced if it is over, or another run's."""
        return await self._ledger.write(
            lambda tx: self._changed(tx, session_id, generation, run, lambda found: replace(found, claimed_run=run))
        )

    async def under_way(self, session_id: str, generation: int, run: str) -> tuple[Session, Environment]:
        """Raises Fenced once the generation was stopped, superseded or given to another run."""

        def body(tx: LedgerTx) -> tuple[Session, Environment]:
            return tx.sessions.get(session_id), _owned(tx.environments.current(session_id), generation, run)

        return await self._ledger.read(body)

    async def handed_over(self, session_id: str, generation: int, run: str, boot: str) -> None:
        """Record which supervisor is about to get the setup command. Raises Fenced."""
        await self._ledger.write(
            lambda tx: self._changed(tx, session_id, generation, run, lambda found: replace(found, boot=boot))
        )

    async def said(self, session_id: str, run: str, piece: EnvironmentOutput) -> None:
        """Record a piece of the setup command's output. Raises Fenced once the generation is over, or another run's."""
        now = self._clock.now()

        def body(tx: LedgerTx) -> None:
            tx.turns.lock_session(session_id)
            append_output(tx, _owned(tx.environments.current(session_id), piece.generation, run), piece, now)

        await self._ledger.write(body)

    async def end(
        self, session_id: str, generation: int, run: str, state: EnvironmentState, result: EnvironmentResult
    ) -> EnvironmentState:
        """Write the end, unless there is one; return it. Raises Fenced (another run's)."""
        now = self._clock.now()

        def body(tx: LedgerTx) -> EnvironmentState:
            tx.turns.lock_session(session_id)
            found = tx.environments.get(session_id, generation)
            if found is not None and found.state.settled:
                return found.state
            return settle(tx, _owned(found, generation, run), state, result, now).state

        return await self._ledger.write(body)

    async def reconcile(self, starter: WorkflowStarter) -> int:
        """Fail what a workflow that is gone left in preparing; return how many. A silent cluster changes nothing."""
        ended = 0
        for found in await self._ledger.read(lambda tx: tx.environments.preparing()):
            if await self._ledger.read(partial(_waits, found=found)):
                continue
            workflow_id = environment_workflow_id(self._ledger.instance_id, found.environment_id)
            try:
                state = await starter.state(workflow_id)
            except TemporalUnavailable:
                return ended
            if state is not WorkflowState.RUNNING:
                why = f"Its workflow is {state.replace('_', ' ')} in Temporal; how far it got is not known."
                ended += await self._ledger.write(partial(self._lost, found=found, why=why))
        return ended

    def _lost(self, tx: LedgerTx, *, found: Environment, why: str) -> int:
        tx.turns.lock_session(found.session_id)
        now = tx.environments.get(found.session_id, found.generation)
        if now is None or now.state is not EnvironmentState.PREPARING or now.claimed_run != found.claimed_run:
            return 0
        settle(tx, now, EnvironmentState.FAILED, EnvironmentResult(error_code=LOST, error=why), self._clock.now())
        return 1

    def _changed(
        self, tx: LedgerTx, session_id: str, generation: int, run: str, change: Callable[[Environment], Environment]
    ) -> Environment:
        tx.turns.lock_session(session_id)
        found = change(_owned(tx.environments.current(session_id), generation, run))
        tx.environments.save(found)
        return found


def _waits(tx: LedgerTx, *, found: Environment) -> bool:
    return tx.outbox.pending(found.environment_id) is not None


def _owned(found: Environment | None, generation: int, run: str) -> Environment:
    if found is None or found.generation != generation or found.state is not EnvironmentState.PREPARING:
        raise Fenced(f"Generation {generation} is not being prepared any more.")
    if found.claimed_run not in (None, run):
        raise Fenced(f"Generation {generation} is prepared by another workflow run.")
    return found
