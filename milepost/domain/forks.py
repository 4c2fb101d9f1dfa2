"""Forks: Sessions that begin with a copy of another one's turns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ForkState(StrEnum):
    """While it is `copying` the new Session is closed, and cannot be reopened."""

    COPYING = "copying"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Fork:
    """How a Session was made of another one's turns up to `to_number` (0: of none).

    `done_number` is the last turn of the source that was copied, `copied` how many were, `omitted` how many earlier
    ones are left out. `files`: the new Workspace got files. Times are microseconds since the epoch, UTC.
    """

    session_id: str
    source_id: str
    to_number: int
    done_number: int
    copied: int
    omitted: int
    files: bool
    state: ForkState
    actor: str
    created_at: int
    error: str | None = None
