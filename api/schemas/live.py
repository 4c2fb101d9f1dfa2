"""What a live reader asks for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from api.schemas.base import Query
from api.schemas.sessions import ID_PATTERN


class EventsQuery(Query):
    """`after` is the last frame's cursor; with `until_turn` the stream ends after that turn's terminal event."""

    after: Annotated[str, Field(max_length=40)] = "0"
    until_turn: Annotated[str | None, Field(pattern=ID_PATTERN)] = None


class TextQuery(Query):
    """Characters `start` to `end` of one channel of an attempt, as a `gap` frame names them."""

    attempt: Annotated[int, Field(ge=1, le=2**31 - 1)]
    channel: Literal["text", "reasoning"] = "text"
    start: Annotated[int, Field(ge=0, le=2**53)] = 0
    end: Annotated[int, Field(ge=0, le=2**53)]


class SocketQuery(EventsQuery):
    """The same, and the Session."""

    session: Annotated[str, Field(pattern=ID_PATTERN)]
