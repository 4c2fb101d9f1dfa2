"""What a live reader asks for."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.schemas.base import Query
from api.schemas.sessions import ID_PATTERN


class EventsQuery(Query):
    """`after` is the last frame's cursor; with `until_turn` the stream ends after that turn's terminal event."""

    after: Annotated[str, Field(max_length=40)] = "0"
    until_turn: Annotated[str | None, Field(pattern=ID_PATTERN)] = None


class SocketQuery(EventsQuery):
    """The same, and the Session."""

    session: Annotated[str, Field(pattern=ID_PATTERN)]
