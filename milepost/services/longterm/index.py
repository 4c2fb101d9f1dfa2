"""What is searched of a namespace, in memory: which tokens and labels its records have, and their vectors.

It is made of the store's changes and follows them; nothing in it is an authority. Rows are appended and never changed:
a record that is written again has a new row, and its old one is dead. Not safe to use from several threads at once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from milepost.domain.embeddings import EmbeddingSpace
from milepost.domain.longterm import EXACT_CANDIDATES
from milepost.ports.longterm import Change
from milepost.services.longterm.entries import Facts, sound
from milepost.services.longterm.vectors import Mask, Rows, VectorTable

NEVER = 2**62
MIN_DEAD = 1000


@dataclass(slots=True)
class Postings:
    """Rows that have a token, ascending, and how often."""

    rows: array[int]
    counts: array[int]


class NamespaceIndex:
    """`position` is the change it has come to. `corrupt` names a record whose vector is not what was written."""

    def __init__(self, space: EmbeddingSpace | None, exact_candidates: int = EXACT_CANDIDATES) -> None:
        self.space = space
        self.exact_candidates = exact_candidates
        self.position = 0
        self.vectors = VectorTable(space.dimensions, exact_candidates) if space is not None else None
        self.keys: list[str] = []
        self.changes = array("q")
        self.lengths = array("q")
        self._expires = array("q")
        self._alive = bytearray()
        self._embedded = bytearray()
        self._row: dict[str, int] = {}
        self._tokens: dict[str, Postings] = {}
        self._labels: dict[str, array[int]] = {}
        self._corrupt: dict[str, None] = {}

    @property
    def live(self) -> int:
        """Records, expired ones among them."""
        return len(self._row)

    @property
    def worn(self) -> bool:
        """Whether so many rows are dead that it should be made anew."""
        return len(self.keys) - len(self._row) > max(MIN_DEAD, len(self._row))

    @property
    def corrupt(self) -> str | None:
        return next(iter(self._corrupt), None)

    def apply(self, changes: Sequence[tuple[Change, Facts | None]]) -> None:
        """Take in changes in their order, each with the facts of what is there now."""
        vectors: list[bytes | None] = []
        for change, facts in changes:
            self._bury(change.key)
            if facts is not None:
                vectors.append(self._append(change, facts))
            self.position = change.change
        if self.vectors is not None and vectors:
            self.vectors.add(vectors)

    def _bury(self, key: str) -> None:
        row = self._row.pop(key, None)
        self._corrupt.pop(key, None)
        if row is not None:
            self._alive[row] = 0

    def _append(self, change: Change, facts: Facts) -> bytes | None:
        row = len(self.keys)
        self.keys.append(change.key)
        self.changes.append(change.change)
        self.lengths.append(sum(facts.counts.values()))
        self._expires.append(NEVER if change.expires_at is None else change.expires_at)
        self._alive.append(1)
        self._row[change.key] = row
        for token, count in facts.counts.items():
            postings = self._tokens.get(token)
            if postings is None:
                postings = self._tokens[token] = Postings(array("I"), array("I"))
            postings.rows.append(row)
            postings.counts.append(count)
        for label in facts.labels:
            self._labels.setdefault(label, array("I")).append(row)
        data = self._sound(change)
        self._embedded.append(data is not None)
        return data

    def _sound(self, change: Change) -> bytes | None:
        vector = change.vector
        if vector is None or self.space is None or vector.space != self.space:
            return None
        if sound(vector, self.space):
            return vector.data
        self._corrupt[change.key] = None
        return None

    # --- reading ------------------------------------------------------------------------------------------------

    def candidates(self, labels: Sequence[str], now: int) -> tuple[Mask, Mask]:
        """Records whose time is not over, and those of them that have all labels."""
        live = np.frombuffer(bytes(self._alive), dtype=np.bool_) & (_copy(self._expires) > now)
        chosen = live
        for label in labels:
            having = np.zeros(len(live), dtype=np.bool_)
            rows = self._labels.get(label)
            if rows is not None:
                having[_copy_rows(rows)] = True
            chosen = chosen & having
        return live, chosen

    def embedded(self) -> Mask:
        """Which rows have a vector."""
        return np.frombuffer(bytes(self._embedded), dtype=np.bool_)

    def token_lengths(self) -> NDArray[np.int64]:
        """How many tokens each row has."""
        return _copy(self.lengths)

    def postings(self, token: str) -> tuple[Rows, NDArray[np.int64]]:
        """Rows with a token, and how often they have it."""
        found = self._tokens.get(token)
        if found is None:
            empty = np.zeros(0, dtype=np.int64)
            return empty, empty
        return _copy_rows(found.rows), _copy_rows(found.counts)

    def count(self, token: str, row: int) -> int:
        """How often a row has a token."""
        found = self._tokens.get(token)
        if found is None:
            return 0
        place = bisect_left(found.rows, row)
        return found.counts[place] if place < len(found.rows) and found.rows[place] == row else 0


# Copies, since an array cannot grow while numpy looks into it.
def _copy(values: array[int]) -> NDArray[np.int64]:
    return np.frombuffer(values.tobytes(), dtype=np.int64)


def _copy_rows(values: array[int]) -> Rows:
    return np.frombuffer(values.tobytes(), dtype=np.uint32).astype(np.int64)
