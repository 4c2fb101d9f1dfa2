"""The Session's sandbox as the execution side sees it: whether tools can be offered, and what it is made of."""

from __future__ import annotations

import time
from collections.abc import Callable

from milepost.domain.errors import SandboxUnavailable
from milepost.domain.sessions import Session
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

    async def unavailable(self) -> str | None:
        """Why no tools can be offered (with what to do), or None."""
        if self._provider is None:
            return "Tools are off: the configuration has no sandbox back end."
        if time.monotonic() - self._checked_at > CHECK_TTL_SECONDS:
            health = await self._provider.check()
            self._reason = None if health.ok else " ".join(filter(None, (health.detail, health.fix)))
            self._checked_at = time.monotonic()
        return self._reason

    async def open(self, session: Session) -> Sandbox:
        """The Session's sandbox. Raises SandboxUnavailable."""
        if self._provider is None:
            raise SandboxUnavailable("The configuration has no sandbox back end.", fix="Set sandbox.backend.")
        return await self._provider.open(self._spec_of(session))
