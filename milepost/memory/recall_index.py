"""One owner's memory as it is searched: rows, terms and vectors, brought up to date from the records."""

from __future__ import annotations

import threading
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from milepost.domain.embeddings import EmbeddingSpace
from milepost.domain.errors import MemoryDamaged
from milepost.engine.recall import PAUSE_US, WEIGHTS
from milepost.memory.recall_layout import Floats, Layout
from milepost.memory.recall_terms import TermIndex
from milepost.memory.recall_vectors import VectorIndex
from milepost.ports.semantic_records import Changes, Head, IndexRow, Link, Mention

ONE = 1_000_000
MAX_FACTS = 2000
"""The newest facts, which a new one is compared with: adding costs the same in a large memory."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A row that was found. Scores are millionths; `through` is a superseded record whose score it took over.

    `own_words` and `beside_words`: whether terms of the query are in the record, and in those whose terms count for it.
    """

    id: str
    score: int
    words: int
    meaning: int
    context: int
    through: str | None
    own_words: bool = True
    beside_words: bool = False


@dataclass(frozen=True, slots=True)
class Hits:
    items: tuple[Hit, ...]
    searched: int
    incomplete: int


@dataclass(frozen=True, slots=True)
class Query:
    """What is searched for. `vector` is None if only words are compared."""

    terms: tuple[str, ...]
    vector: bytes | None
    limit: int
    min_score: int
    exclude: frozenset[str]
    shown: frozenset[str]


class RecallIndex:
    """Thread-safe. Rows have the order of their positions and keep their number until the index is made anew."""

    def __init__(self, head: Head) -> None:
        self.generation = head.generation
        self.changes = head.changes
        self.space: EmbeddingSpace | None = head.space
        self._lock = threading.RLock()
        self._ids: list[str] = []
        self._row: dict[str, int] = {}
        self._times = array("q")
        self._asks = array("f")
        self._facts = array("i")
        self._alive = bytearray()
        self._embedded = bytearray()
        self._mentions: list[tuple[Mention, ...]] = []
        self._of_turn: defaultdict[str, set[int]] = defaultdict(set)
        self._links: dict[int, tuple[Link, ...]] = {}
        self._terms = TermIndex()
        self._vectors: VectorIndex | None = None
        self._layout: tuple[frozenset[str], Layout] | None = None

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def incomplete(self) -> int:
        """How many records have no vector."""
        with self._lock:
            return sum(self._alive) - sum(self._embedded)

    # --- keeping up -------------------------------------------------------------------------------------------

    def apply(self, page: Changes) -> None:
        """Take in a page of records. Taking in the same page again changes nothing.

        Raises MemoryDamaged: a vector is not one.
        """
        with self._lock:
            self._layout = None
            self.space = page.head.space
            for record in page.forgotten:
                self._drop(record)
            fresh: list[tuple[int, bytes]] = []
            for item in page.rows:
                row = self._row.get(item.id)
                if row is None:
                    row = self._append(item)
                self._update(row, item)
                if item.vectors and not self._embedded[row]:
                    fresh.extend((row, self._checked(item.id, vector)) for vector in item.vectors)
                    self._embedded[row] = 1
            if fresh:
                assert self.space is not None  # noqa: S101
                if self._vectors is None:
                    self._vectors = VectorIndex(self.space.dimensions)
                self._vectors.add([row for row, _ in fresh], [vector for _, vector in fresh])

    def _append(self, item: IndexRow) -> int:
        row = len(self._ids)
        self._ids.append(item.id)
        self._row[item.id] = row
        self._times.append(item.at)
        self._asks.append(float(item.asks))
        if item.fact:
            self._facts.append(row)
        self._alive.append(1)
        self._embedded.append(0)
        self._mentions.append(())
        self._terms.append(item.terms)
        return row

    def _update(self, row: int, item: IndexRow) -> None:
        self._mentions[row] = item.mentions
        for mention in item.mentions:
            if mention.turn_id:
                self._of_turn[mention.turn_id].add(row)
        if item.superseded:
            self._links[row] = item.superseded
        else:
            self._links.pop(row, None)

    def _drop(self, record: str) -> None:
        row = self._row.pop(record, None)
        if row is None:
            return
        self._alive[row] = self._embedded[row] = 0
        self._links.pop(row, None)
        if self._vectors is not None:
            self._vectors.remove(row)

    def _checked(self, record: str, vector: bytes) -> bytes:
        assert self.space is not None  # noqa: S101
        if len(vector) != self.space.vector_bytes:
            raise MemoryDamaged(
                f"The vector of record {record} has {len(vector)} bytes instead of {self.space.vector_bytes}.",
                fix="Make the vectors anew: milepost memory reindex-records",
            )
        return vector

    # --- searching --------------------------------------------------------------------------------------------

    def search(self, query: Query) -> Hits:
        """The best rows by the formula of `engine.recall`; of equal scores the newer record comes first."""
        with self._lock:
            layout = self._visible(query.exclude)
            if len(layout) == 0:
                return Hits((), 0, 0)
            own, words = self._own(query, layout)
            scores = own + self._context(own, layout)
            through = self._supersede(scores, layout, query.exclude)
            self._hide_shown(scores, layout, query)
            missing = len(layout) - self._count_embedded(layout)
            best = self._best(scores, query)
            found = self._terms.present(query.terms, layout)
            items = tuple(self._hit(place, scores, own, words, layout, through, found) for place in best)
            return Hits(items, len(layout), missing)

    def _visible(self, exclude: frozenset[str]) -> Layout:
        if self._layout is not None and self._layout[0] == exclude:
            return self._layout[1]
        import numpy as np

        visible = np.frombuffer(self._alive, dtype=np.uint8).astype(bool)
        for turn in exclude:
            for row in self._of_turn.get(turn, ()):
                if self._last_said(row, exclude) == 0:
                    visible[row] = False
        layout = Layout(self._times, visible, PAUSE_US)
        self._layout = exclude, layout
        return layout

    def _last_said(self, row: int, exclude: frozenset[str]) -> int:
        """Number of the change that brought the last visible source; 0 if none is."""
        return max((said.change for said in self._mentions[row] if said.turn_id not in exclude), default=0)

    def _own(self, query: Query, layout: Layout) -> tuple[Floats, Floats]:
        """Scores of the rows themselves, and the share of their words in them."""
        matched = self._terms.bm25(query.terms, layout, WEIGHTS)
        words: Floats = matched / (matched + WEIGHTS.half)
        if query.vector is None or self._vectors is None:
            return words, words
        meaning = self._vectors.similarity(query.vector, len(self._ids))[layout.rows]
        words = words * WEIGHTS.words
        return words + WEIGHTS.meaning * meaning, words

    def _context(self, own: Floats, layout: Layout) -> Floats:
        import numpy as np

        asks = np.frombuffer(self._asks, dtype=np.float32)[layout.rows]
        answers = np.where(layout.shifted(asks, 1) > 0, WEIGHTS.question, 1.0).astype(np.float32)
        nearest = np.maximum(layout.shifted(own, 1) * answers, layout.shifted(own, -1))
        second = np.maximum(layout.shifted(own, 2), layout.shifted(own, -2))
        shared: Floats = WEIGHTS.neighbor * nearest + WEIGHTS.second_neighbor * second
        return shared

    def _supersede(self, scores: Floats, layout: Layout, exclude: frozenset[str]) -> dict[int, str]:
        """Give what is superseded's score to what supersedes it, and take it out; {place: record it took over}."""
        links = sorted((link.change, row, link.newer) for row, links in self._links.items() for link in links)
        through: dict[int, str] = {}
        out: list[int] = []
        for change, row, newer in links:
            older, place = layout.place(row), layout.place(self._row[newer]) if newer in self._row else -1
            if older < 0 or place < 0 or change <= self._last_said(row, exclude):
                continue
            out.append(older)
            if scores[older] > scores[place]:
                scores[place] = scores[older]
                through[place] = self._ids[row]
        scores[out] = -1.0
        return through

    def _hide_shown(self, scores: Floats, layout: Layout, query: Query) -> None:
        for turn in query.shown:
            for row in self._of_turn.get(turn, ()):
                place = layout.place(row)
                if place >= 0 and turn not in query.exclude:
                    scores[place] = -1.0

    def _count_embedded(self, layout: Layout) -> int:
        import numpy as np

        return int(np.frombuffer(self._embedded, dtype=np.uint8)[layout.rows].sum())

    def _best(self, scores: Floats, query: Query) -> Sequence[int]:
        import numpy as np

        good = np.flatnonzero(scores * ONE >= max(query.min_score, 1) - 0.5)
        if len(good) > query.limit:
            # Everything that ties with the last one stays, so that the order below decides and not the partition.
            cut = np.partition(scores[good], len(good) - query.limit)[len(good) - query.limit]
            good = good[scores[good] >= cut]
        return sorted((int(place) for place in good), key=lambda place: (-float(scores[place]), -place))[: query.limit]

    def _hit(
        self,
        place: int,
        scores: Floats,
        own: Floats,
        words: Floats,
        layout: Layout,
        through: dict[int, str],
        found: tuple[Floats, Floats],
    ) -> Hit:
        older = through.get(place)
        source = place if older is None else layout.place(self._row[older])
        whole = float(scores[place])
        score = round(ONE * min(1.0, whole))
        shown = ONE / max(1.0, whole)
        by_words = round(shown * float(words[source]))
        by_meaning = round(shown * float(own[source] - words[source]))
        rest = max(0, score - by_words - by_meaning)
        in_own, beside = (bool(part[source] > 0) for part in found)
        return Hit(self._ids[int(layout.rows[place])], score, by_words, by_meaning, rest, older, in_own, beside)

    # --- comparing --------------------------------------------------------------------------------------------

    def similar(self, record: str, vector: bytes, least: float) -> list[str]:
        """Ids of facts whose vectors are near to this one, nearest first, among the newest facts."""
        with self._lock:
            if self._vectors is None:
                return []
            own = self._row.get(record, -1)
            rows = [row for row in self._facts[-MAX_FACTS:] if self._alive[row] and row != own]
            near = [item for item in self._vectors.similar(vector, rows) if item[1] >= least]
            return [self._ids[row] for row, _ in sorted(near, key=lambda item: -item[1])]
