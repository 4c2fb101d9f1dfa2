"""The search index port: words of events, kept in the transactions that append them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from milepost.domain.events import Event
from milepost.domain.search import Found, SearchFilter, WordQuery


class SearchIndex(Protocol):
    """Finds texts of events. The same texts match on every database; only the order of ranks may differ."""

    def add(self, session_id: str, events: Sequence[tuple[int, int, str | None, Event]]) -> None:
        """Index events, each (seq, time, turn id, event); what is indexed already stays as it is."""

    def find(self, query: WordQuery, where: SearchFilter, *, offset: int, limit: int) -> list[Found]:
        """Best first, one for each text. Of more than 10,000 matching passages the newest are ranked."""

    def scan(
        self, needle: bytes, where: SearchFilter, *, before: tuple[int, int] | None, rows: int, limit: int
    ) -> tuple[list[Found], tuple[int, int] | None]:
        """Texts whose event has `needle` in its payload, newest first; and where to go on (None: the end).

        Looks at no more than `rows` texts and finds at most `limit`. Places to go on are (time, doc id).
        """

    def clear(self) -> None:
        """Empty the index and mark it as not complete."""

    def set_complete(self) -> None:
        """Mark the index as having every event's words, as this release makes them."""

    def complete(self) -> bool:
        """Whether every event is in the index, as this release indexes it."""
