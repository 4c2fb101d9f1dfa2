"""Rewinds: boundaries in a Session behind which turns no longer count."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rewind:
    """One rewind: of the turns with `to_number` < number <= `last_number` those that were live became superseded.

    `to_number` 0 is before the first turn. `last_number` is the Session's last turn at that time; a later turn has a
    greater number. `turns` counts what became superseded. `created_at` is microseconds since the epoch, UTC.
    """

    rewind_id: str
    session_id: str
    to_number: int
    last_number: int
    turns: int
    actor: str
    reason: str | None
    created_at: int

    def covers(self, number: int) -> bool:
        """Whether a turn of this number was taken out of the conversation, if nothing had done so before."""
        return self.to_number < number <= self.last_number
