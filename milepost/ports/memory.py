"""The memory port: what the tiers are kept in. Files for one host, the ledger's database for several.

Times are microseconds since the epoch, UTC. All methods may raise MemoryUnavailable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from milepost.domain.memory import BlockVersion, DailyEntry, Scope


class CoreBlocks(Protocol):
    """Versions of core blocks. Whoever writes states the newest number it knows; nothing is ever overwritten."""

    async def versions(self, scope: Scope, label: str) -> tuple[BlockVersion, ...]:
        """The kept versions (the newest 100), ascending; none for a block that was never written.

        Every version that was written before the call began is seen.
        """

    async def all(self, scope: Scope) -> dict[str, tuple[BlockVersion, ...]]:
        """The versions of all blocks of an owner that were ever written, by label."""

    async def write(self, scope: Scope, label: str, version: BlockVersion) -> BlockVersion:
        """Add a version if its number is one more than the newest. One with a known `key` is returned as it is kept.

        Raises BlockConflict: somebody wrote meanwhile.
        """

    async def drop(self, scope: Scope) -> None:
        """Delete all blocks of an owner, before they are written anew from the ledger."""


@dataclass(frozen=True, slots=True)
class DailyRange:
    """Entries with `start` <= at < `end`, in order of time and id. `damaged` counts lines that cannot be read."""

    entries: tuple[DailyEntry, ...]
    damaged: int = 0


class DailyLog(Protocol):
    """Append-only dated records."""

    async def append(self, scope: Scope, entries: Sequence[DailyEntry]) -> None:
        """Add entries; those whose id is there already change nothing. Durable on return."""

    async def read(
        self, scope: Scope, start: int, end: int, *, limit: int, after: tuple[int, str] | None = None
    ) -> DailyRange:
        """At most `limit` entries with start <= at < end and (at, id) > `after`."""

    async def days(self, scope: Scope) -> list[str]:
        """Dates (UTC, `YYYY-MM-DD`) that have entries, ascending."""

    async def drop(self, scope: Scope) -> None:
        """Delete an owner's log, before it is written anew from the ledger."""
