"""The Session's sandbox as the execution side sees it: whether tools can be offered, and what it is made of."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from milepost.domain.environments import Environment, EnvironmentState
from milepost.domain.errors import SandboxMissing, SandboxUnavailable, SessionNotFound
from milepost.domain.sessions import Session, SessionStatus
from milepost.observability.logging import get_logger
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.ports.sandbox import Sandbox, SandboxProvider, SandboxSpec, Volume
from milepost.services.environment_gate import EnvironmentGate

_log = get_logger(__name__)

CHECK_TTL_SECONDS = 20.0

SpecOf = Callable[[Session], SandboxSpec]
"""What any environment of the Session is made of."""


class Workbench:
    """One provider, asked at most every 20 s whether it works. Without a `gate` every environment counts as Ready."""

    def __init__(
        self,
        provider: SandboxProvider | None,
        spec_of: SpecOf,
        gate: EnvironmentGate | None = None,
        idle_seconds: float = 1800.0,
    ) -> None:
        self._provider = provider
        self._spec_of = spec_of
        self._gate = gate
        self._checked_at = float("-inf")
        self._reason: str | None = None
        self._used = False
        self._idle_seconds = idle_seconds
        self._last_use: dict[str, float] = {}
        self.publishes = True
        """Whether ports are published from this process; off where another one of this host does."""

    async def unavailable(self) -> str | None:
        """Why no tools can be offered (with what to do), or None."""
        if self._provider is None:
            return "The built-in tools are off: the configuration has no sandbox back end."
        if time.monotonic() - self._checked_at > CHECK_TTL_SECONDS:
            health = await self._provider.check()
            self._reason = None if health.ok else " ".join(filter(None, (health.detail, health.fix)))
            self._checked_at = time.monotonic()
        return self._reason

    async def open(self, session: Session) -> Sandbox:
        """The Session's sandbox. Raises SandboxUnavailable, EnvironmentNotReady."""
        if self._gate is None:
            return await self._required().open(self._spec_of(session))
        self._required()
        environment = await self._gate.require(session)
        try:
            sandbox = await self.open_for(session, environment)
        except SandboxMissing as error:
            raise await self._gate.lost(environment, error) from None
        await self._gate.opened(environment, sandbox.placement)
        return sandbox

    async def peek(self, session: Session) -> Sandbox:
        """Like `open`, but no use of it: it may be removed as if nobody had looked."""
        last = self._last_use.get(session.session_id)
        try:
            return await self.open(session)
        finally:
            if last is not None:
                self._last_use[session.session_id] = last

    async def open_for(self, session: Session, environment: Environment) -> Sandbox:
        """The sandbox of this very generation, whatever its state. Raises SandboxUnavailable, SandboxMissing."""
        self._last_use[session.session_id] = time.monotonic()
        spec = fitted(self._spec_of(session), environment)
        return await self._required().open(spec if self.publishes else replace(spec, ports=()))

    async def destroy(self, session_id: str) -> None:
        """Remove the Session's container and all that was prepared in it. Raises SandboxUnavailable."""
        await self._required().destroy(session_id)

    async def discard(self, session_id: str) -> None:
        """Like `destroy`, as far as the back end answers: what it keeps now is found by its labels later."""
        try:
            await self.destroy(session_id)
        except SandboxUnavailable as error:
            _log.warning("sandbox.left", session_id=session_id, error=error.code, detail=error.message)

    def _required(self) -> SandboxProvider:
        if self._provider is None:
            raise SandboxUnavailable("The configuration has no sandbox back end.", fix="Set sandbox.backend.")
        self._used = True
        return self._provider

    async def has(self, session_id: str) -> bool:
        """Whether the Session has a container on this host. Raises SandboxUnavailable."""
        return self._provider is not None and session_id in await self._provider.sessions()

    async def tidy(self, ledger: Ledger, *, leaving: bool = False) -> int:
        """Remove containers that no turn needs; return how many.

        While serving, those of closed or deleted Sessions, and those that nothing has used for long, which a running
        terminal or background command is; when `leaving`, all without a running turn. A container holds nothing else of
        worth between turns: the files are in the Workspace and on volumes, and the next turn makes a new one.
        Raises SandboxUnavailable.
        """
        if self._provider is None or not self._used:
            return 0  # a process that opened no sandbox need not wake the back end
        found = await self._provider.sessions()
        at_work, unused = await ledger.read(lambda tx: _sorted(tx, found, leaving=leaving))
        now = time.monotonic()
        # One that this process has not seen before is idle from now on.
        seen = {session: now if session in at_work else self._last_use.get(session, now) for session in found}
        self._last_use = seen
        unused |= {session for session in found - at_work if now - seen[session] > self._idle_seconds}
        for session_id in unused:
            await self._provider.remove(session_id)
        return len(unused)


def fitted(spec: SandboxSpec, environment: Environment) -> SandboxSpec:
    """The Session's specification with what its environment says."""
    plan, volumes = environment.plan, set[Volume]()
    if plan.node:
        volumes.add(Volume.NODE_MODULES)
    if environment.command is not None:
        volumes.add(Volume.HOME)
    return replace(
        spec,
        image=plan.image or spec.image,
        environment=spec.environment | plan.variables,
        generation=environment.generation,
        volumes=frozenset(volumes),
        ports=environment.ports,
        placement=None if environment.result is None else environment.result.sandbox,
        # What a setup command installed cannot be made anew by opening.
        fresh=environment.command is None or environment.state is not EnvironmentState.READY,
    )


def _sorted(tx: LedgerTx, found: frozenset[str], *, leaving: bool) -> tuple[set[str], set[str]]:
    """Those that something is at work in, and those that nobody needs."""
    at_work, unused = set[str](), set[str]()
    for session_id in found:
        try:
            session = tx.sessions.get(session_id)
        except SessionNotFound:
            unused.add(session_id)
            continue
        environment = tx.environments.current(session_id)
        preparing = environment is not None and environment.state is EnvironmentState.PREPARING
        if preparing or tx.turns.running(session_id) is not None:
            at_work.add(session_id)
        elif leaving or session.status is SessionStatus.CLOSED:
            unused.add(session_id)
        elif tx.processes.of_session(session_id, running=True, limit=1):
            at_work.add(session_id)
    return at_work, unused
