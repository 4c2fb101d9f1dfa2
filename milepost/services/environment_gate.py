"""Nothing live works unless the Session's environment is Ready, and nothing falls back to the host."""

from __future__ import annotations

from milepost.domain.environments import Environment, EnvironmentState, RemoteSandbox, not_ready
from milepost.domain.errors import EnvironmentNotReady, SandboxMissing
from milepost.domain.sessions import Session
from milepost.ports.ledger import Ledger
from milepost.services.environments import EnvironmentService


class EnvironmentGate:
    """Asked before a Session's sandbox is opened."""

    def __init__(self, ledger: Ledger, service: EnvironmentService) -> None:
        self._ledger = ledger
        self._service = service

    async def require(self, session: Session) -> Environment:
        """The Ready environment, or one that nobody must agree to and that `opened` makes Ready.

        Raises EnvironmentNotReady (it names the state and what to do), InvalidInput, StorageUnavailable.
        """
        session_id = session.session_id
        current = await self._ledger.read(lambda tx: tx.environments.current(session_id))
        if current is None or current.state is EnvironmentState.UNPREPARED:
            current = await self._looked_at(session, current)
        if current.state in (EnvironmentState.READY, EnvironmentState.UNPREPARED):
            return current
        raise not_ready(current)

    async def _looked_at(self, session: Session, current: Environment | None) -> Environment:
        plan = await self._service.plan(session, current)
        found = Environment(session.session_id, 1, EnvironmentState.UNPREPARED, plan, 0, 0)
        if plan.command is None and not self._service.asks(found):
            return found
        # There is something to run or to agree to: begin the generation, which is not Ready yet.
        return await self._ledger.write(
            lambda tx: self._service.begin(tx, session.session_id, plan, "the first call that needed it")
        )

    async def opened(self, found: Environment, sandbox: RemoteSandbox | None = None) -> None:
        """The sandbox of an environment that `require` gave was opened, there. Raises StorageUnavailable."""
        if found.state is EnvironmentState.UNPREPARED:
            await self._ledger.write(lambda tx: self._service.admit(tx, found.session_id, found.plan, sandbox))
        elif sandbox is not None and (found.result is None or found.result.sandbox is None):
            await self._ledger.write(lambda tx: self._service.placed(tx, found, sandbox))

    async def lost(self, found: Environment, error: SandboxMissing) -> EnvironmentNotReady:
        """Record that what was prepared is gone; return the refusal. Raises StorageUnavailable."""
        return not_ready(await self._ledger.write(lambda tx: self._service.lose(tx, found, error)))
