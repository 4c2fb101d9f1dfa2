"""The Session's sandbox as the execution side sees it: whether tools can be offered, and what it is made of."""

from __future__ import annotations

import time
from collections.abc import Callable

from milepost.domain.errors import SandboxUnavailable, SessionNotFound
from milepost.domain.sessions import Session, SessionStatus
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.ports.sandbox import Sandbox, SandboxProvider, SandboxSpec

CHECK_TTL_SECONDS = 20.0

SpecOf = Callable[[Session], SandboxSpec]


class Workbench:
    """One provider, asked at most every 20 s whether it works."""

    def __init__(self, provider: SandboxProvider | None, spec_of: SpecOf) -> None:
        self._provider = provider
        self._spec_of = spec_of
        self._checked_at = float("-inf")
        self._reason: str | None = None
        self._used = False

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
        """The Session's sandbox. Raises SandboxUnavailable."""
        if self._provider is None:
            raise SandboxUnavailable("The configuration has no sandbox back end.", fix="Set sandbox.backend.")
        self._used = True
        return await self._provider.open(self._spec_of(session))

    async def has(self, session_id: str) -> bool:
        """Whether the Session has a container on this host. Raises SandboxUnavailable."""
        return self._provider is not None and session_id in await self._provider.sessions()

    async def tidy(self, ledger: Ledger, *, leaving: bool = False) -> int:
        """Remove containers that no turn needs; return how many.

        While serving, those of closed or deleted Sessions; when `leaving`, all without a running turn. A container
        holds nothing of worth between turns: the files are in the Workspace, and the next turn makes a new one.
        Raises SandboxUnavailable.
        """
        if self._provider is None or not self._used:
            return 0  # a process that opened no sandbox need not wake the back end
        found = await self._provider.sessions()
        unused = await ledger.read(lambda tx: [session for session in found if _unused(tx, session, leaving=leaving)])
        for session_id in unused:
            await self._provider.remove(session_id)
        return len(unused)


def _unused(tx: LedgerTx, session_id: str, *, leaving: bool) -> bool:
    try:
        session = tx.sessions.get(session_id)
    except SessionNotFound:
        return True
    if tx.turns.running(session_id) is not None:
        return False
    return leaving or session.status is SessionStatus.CLOSED
