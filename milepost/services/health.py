"""Checks of every real part, for `doctor` and the health routes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from milepost.domain.errors import MilepostError

CHECK_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Check:
    """One part. `detail` says what was found, `fix` the exact thing to do; neither names a secret."""

    name: str
    ok: bool
    detail: str
    fix: str | None = None


CheckFunction = Callable[[], Awaitable[Check]]


class HealthService:
    """Runs named checks at the same time, each with a time limit. `checks` tells which there are now."""

    def __init__(self, checks: Callable[[], Mapping[str, CheckFunction]], ready: frozenset[str]) -> None:
        self._checks = checks
        self._ready = ready

    async def doctor(self) -> list[Check]:
        """All checks, in their order."""
        return list(await asyncio.gather(*(self._run(name, check) for name, check in self._checks().items())))

    async def ready(self) -> list[Check]:
        """Only the parts without which no turn can run."""
        chosen = {name: check for name, check in self._checks().items() if name in self._ready}
        return list(await asyncio.gather(*(self._run(name, check) for name, check in chosen.items())))

    async def _run(self, name: str, check: CheckFunction) -> Check:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_SECONDS):
                return await check()
        except MilepostError as error:
            return Check(name, False, error.message, error.fix)
        except TimeoutError:
            return Check(name, False, f"No answer within {CHECK_TIMEOUT_SECONDS:.0f} s.")
