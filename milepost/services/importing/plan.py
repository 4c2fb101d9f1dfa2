"""What an import is about to write, whatever it was read from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from milepost.domain.approvals import Approval
from milepost.domain.attachments import Attachment
from milepost.domain.budgets import Limits, Spending
from milepost.domain.effects import Effect
from milepost.domain.errors import InvalidInput
from milepost.domain.events import ImportCompleted
from milepost.domain.rewinds import Rewind
from milepost.domain.sessions import Session
from milepost.domain.turns import Turn
from milepost.ports.ledger import NewEvent

INTERRUPTED = "It had no end where it was imported from."


class BadLine(InvalidInput):
    """What is wrong with the file, and in which line."""

    def __init__(self, line: int | None, problem: str) -> None:
        where = "" if line is None else f"Line {line}: "
        super().__init__(f"{where}{problem}", field="file", fix="Nothing was imported. Correct the file and repeat.")


def derived(prefix: str, session_id: str, old: str, digits: int = 32) -> str:
    """The id in the new Session of what had the id `old`: always the same."""
    digest = hashlib.sha256(f"{session_id}/{old}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"{prefix}{digest[:digits]}"


class Source(Protocol):
    """Gives the rows of the new Session, any number of times, in order. Ids are those of the new Session already."""

    def events(self) -> Iterator[NewEvent]: ...
    def turns(self) -> Iterator[Turn]: ...
    def effects(self) -> Iterator[Effect]: ...
    def approvals(self) -> Iterator[Approval]: ...
    def rewinds(self) -> Iterator[Rewind]: ...
    def attachments(self) -> Iterator[tuple[Attachment, str | None]]: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """`session` has the Workspace that it will have here. `completed` is the import's own event."""

    session: Session
    source: Source
    completed: ImportCompleted
    missing_blobs: int = 0
    spending: Spending = field(default_factory=Spending)
    limits: Limits = field(default_factory=Limits)
