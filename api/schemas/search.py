"""Search."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from api.schemas.base import Body, Query, Shape, at_most
from api.schemas.sessions import ID_PATTERN, MAX_LIMIT
from api.times import microseconds, rfc3339
from milepost.domain.search import SearchFilter, SearchKind
from milepost.domain.turns import TurnState
from milepost.services.search import Hit, SearchPage, SearchRequest

AgentName = Annotated[str, *at_most(500)]
Time = Annotated[str, Field(max_length=64, examples=["2026-01-31T12:00:00Z"])]
Cursor = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9_-]+$")]
State = Literal["running", "completed", "failed", "stopped", "interrupted"]
Kind = Literal["session", "request", "attachment", "output", "error", "call", "result"]


class SearchQuery(Query):
    """What to look for and where."""

    q: str
    """Words: all must be there. `"in this order"`, `-without`, `this OR that`, `begin*`."""
    literal: bool = False
    """Look for the exact string instead."""
    session_id: Annotated[str | None, Field(pattern=ID_PATTERN)] = None
    agent: AgentName | None = None
    state: State | None = None
    kind: Kind | None = None
    since: Time | None = None
    until: Time | None = None
    superseded: bool = True
    """Also turns that a rewind has superseded."""
    cursor: Cursor | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 20

    def command(self) -> SearchRequest:
        return _request(self)


class SearchBody(Body):
    """The same as a body, for queries that are too long for an address or are no UTF-8."""

    q: str
    literal: bool = False
    session_id: Annotated[str | None, Field(pattern=ID_PATTERN)] = None
    agent: AgentName | None = None
    state: State | None = None
    kind: Kind | None = None
    since: Time | None = None
    until: Time | None = None
    superseded: bool = True
    cursor: Cursor | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 20

    def command(self) -> SearchRequest:
        return _request(self)


def _request(asked: SearchQuery | SearchBody) -> SearchRequest:
    where = SearchFilter(
        session_id=asked.session_id,
        agent=asked.agent,
        state=None if asked.state is None else TurnState(asked.state),
        kind=None if asked.kind is None else SearchKind(asked.kind),
        since=None if asked.since is None else microseconds(asked.since, "since"),
        until=None if asked.until is None else microseconds(asked.until, "until"),
        superseded=asked.superseded,
    )
    return SearchRequest(asked.q, where, asked.literal, asked.cursor, asked.limit)


class FragmentShape(Shape):
    """A piece of a snippet. `match`: this is what was looked for."""

    text: str
    match: bool


class HitShape(Shape):
    """A text that matches. `kind`: session (title, folder), request, output, error, call (tool and arguments), result.

    The turn's fields are null for a text of the Session itself.
    """

    session_id: str
    session_title: str
    turn_id: str | None
    turn_number: int | None
    turn_state: str | None
    superseded: bool
    kind: str
    agent: str | None
    at: str
    snippet: list[FragmentShape]

    @classmethod
    def of(cls, hit: Hit) -> HitShape:
        found = hit.found
        return cls(
            session_id=found.session_id,
            session_title=hit.session_title,
            turn_id=found.turn_id,
            turn_number=found.turn_number,
            turn_state=None if found.turn_state is None else found.turn_state.value,
            superseded=found.superseded,
            kind=found.kind.value,
            agent=hit.agent or None,
            at=rfc3339(found.at),
            snippet=[FragmentShape(text=piece.text, match=piece.match) for piece in hit.snippet],
        )


class SearchPageShape(Shape):
    """Best first; newest first if `literal`. `next_cursor` goes on, null at the end.

    A literal page may have fewer hits than asked for, also none, and still not be the last.
    """

    hits: list[HitShape]
    literal: bool
    complete: bool
    """Whether every event is in the index; if not, run `milepost db reindex`."""
    next_cursor: str | None

    @classmethod
    def of(cls, page: SearchPage) -> SearchPageShape:
        return cls(
            hits=[HitShape.of(hit) for hit in page.hits],
            literal=page.literal,
            complete=page.complete,
            next_cursor=page.next_cursor,
        )
