"""What a search asks for and what it finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from milepost.domain.turns import TurnState


class SearchKind(StrEnum):
    """Which text of a Session a hit is in. `ATTACHMENT` is a file's name and the text in it.

    `CALL` is a tool's name and arguments, `RESULT` what it gave back.
    """

    SESSION = "session"
    REQUEST = "request"
    ATTACHMENT = "attachment"
    OUTPUT = "output"
    ERROR = "error"
    CALL = "call"
    RESULT = "result"


@dataclass(frozen=True, slots=True)
class Term:
    """Words that follow each other. `prefix`: the last one may go on."""

    words: tuple[str, ...]
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class WordQuery:
    """A text matches if each of `groups` has a term in it, and none of `excluded` is. There is at least one group."""

    groups: tuple[tuple[Term, ...], ...]
    excluded: tuple[Term, ...] = ()

    @property
    def wanted(self) -> tuple[Term, ...]:
        return tuple(term for group in self.groups for term in group)


@dataclass(frozen=True, slots=True)
class SearchFilter:
    """Where to look; None is everywhere. `since` <= time of the text < `until`, microseconds since the epoch, UTC.

    A `state` leaves out what belongs to no turn. `superseded`: also turns that a rewind has superseded.
    """

    session_id: str | None = None
    agent: str | None = None
    state: TurnState | None = None
    kind: SearchKind | None = None
    since: int | None = None
    until: int | None = None
    superseded: bool = True


@dataclass(frozen=True, slots=True)
class Found:
    """A text that matches: part `part` of the texts of kind `kind` of event `seq`; best from `start` to `end`.

    Offsets are characters. What belongs to the Session and to no turn has no turn fields.
    """

    doc_id: int
    session_id: str
    seq: int
    kind: SearchKind
    part: int
    start: int
    end: int
    at: int
    turn_id: str | None
    turn_number: int | None
    turn_state: TurnState | None
    superseded: bool
