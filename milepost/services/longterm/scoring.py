"""One search of a namespace's index: rough scores of all candidates, then exact ones of what may be among the best.

Rough scores are vectorized and off by a known amount. Everything that may be above the last hit within that amount is
scored again as `engine.lexical` defines it, so the hits and their order are those of a search that scores every record
exactly. Only above `exact_candidates` candidates the nearest vectors are taken from the quantized index instead, and a
record that is neither among them nor among those with the best words can be missed.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from milepost.domain.longterm import SearchMode
from milepost.engine.lexical import (
    BM25_HALF,
    BM25_SHARE,
    ONE,
    VECTOR_SHARE,
    Statistics,
    best_score,
    bm25,
    bm25_score,
    cosine,
    floats,
    hybrid_score,
    inverse_frequency,
    saturation,
    vector_score,
)
from milepost.services.longterm.index import NamespaceIndex
from milepost.services.longterm.vectors import Floats, Mask, Rows

Scores = NDArray[np.float64]

POOL = 20
"""How many times the wanted hits the approximate index is asked for, and at least `MIN_POOL`."""

MIN_POOL = 1000


@dataclass(frozen=True, slots=True)
class Query:
    """What is looked for: distinct tokens, a vector for modes that need one, labels that records must have.

    `neural`: whether near vectors mean near meaning.
    """

    mode: SearchMode
    tokens: tuple[str, ...]
    vector: bytes | None
    neural: bool
    labels: tuple[str, ...]
    limit: int
    now: int

    @property
    def by_vector(self) -> bool:
        """Whether vectors have a part in the scores."""
        if self.mode is SearchMode.BEST:
            return self.neural
        return self.mode in (SearchMode.VECTOR, SearchMode.HYBRID)


@dataclass(frozen=True, slots=True)
class Finalist:
    """A row that may be among the hits. `text` and `bm25` are exact."""

    row: int
    key: str
    change: int
    text: int
    bm25: float
    embedded: bool


@dataclass(frozen=True, slots=True)
class Pool:
    """What may be among the hits. `originals` lack if the vectors have to be read from the store."""

    finalists: tuple[Finalist, ...]
    exact: bool
    candidates: int
    without_vector: int
    originals: Mapping[str, bytes] | None


@dataclass(frozen=True, slots=True)
class Hit:
    """A hit with its exact score and the parts that its mode has."""

    key: str
    change: int
    score: int
    text: int | None
    bm25: int | None
    vector: int | None


def finalists(index: NamespaceIndex, query: Query) -> Pool:
    """Everything that may be among the hits."""
    live, chosen = index.candidates(query.labels, query.now)
    having = index.embedded()
    words = _Words(index, query, live)
    near = _Near(index, query, chosen & having, words.rough)
    rough, off = _rough(query, words, near)
    worth = chosen & ((words.rough > 0) | near.positive)
    rows = np.flatnonzero(worth)
    kept = _best(rows, rough[rows], off, query.limit, index.keys)
    found = tuple(
        Finalist(row, index.keys[row], index.changes[row], *words.exact(row), embedded=bool(having[row]))
        for row in map(int, kept)
    )
    originals = None
    if index.vectors is None or not index.vectors.quantized:
        table = index.vectors
        originals = {item.key: table.original(item.row) for item in found if table is not None and item.embedded}
    missing = int(np.count_nonzero(chosen & ~having))
    return Pool(found, near.exact, int(np.count_nonzero(chosen)), missing, originals)


def hits(pool: Pool, query: Query, vectors: Mapping[str, bytes]) -> list[Hit]:
    """The best of a pool by their exact scores, equal ones by key. `vectors` are the originals by key."""
    known: dict[bytes, float] = {}
    scored = [_exact(item, query, vectors.get(item.key) if item.embedded else None, known) for item in pool.finalists]
    positive = (hit for hit in scored if hit.score > 0)
    return heapq.nsmallest(query.limit, positive, key=lambda hit: (-hit.score, hit.key))


def _exact(item: Finalist, query: Query, vector: bytes | None, known: dict[bytes, float]) -> Hit:
    near: float | None = None
    if query.by_vector and vector is not None and query.vector is not None:
        if vector not in known:
            known[vector] = cosine(query.vector, vector)
        near = known[vector]
    part = None if near is None else vector_score(near)
    text = item.text if query.mode in (SearchMode.TEXT, SearchMode.HYBRID) else None
    words = bm25_score(item.bm25) if query.mode in (SearchMode.BM25, SearchMode.BEST) else None
    match query.mode:
        case SearchMode.TEXT:
            score = item.text
        case SearchMode.VECTOR:
            score = part or 0
        case SearchMode.HYBRID:
            score = hybrid_score(item.text, part)
        case SearchMode.BM25:
            score = bm25_score(item.bm25)
        case SearchMode.BEST:
            score = best_score(item.bm25, near, neural=query.neural)
    return Hit(item.key, item.change, score, text, words, part)


class _Words:
    """Which part the words of the query have in the scores of all rows: `rough`, in their own unit."""

    def __init__(self, index: NamespaceIndex, query: Query, live: Mask) -> None:
        self._index = index
        self._query = query
        self._ranked = query.mode in (SearchMode.BM25, SearchMode.BEST)
        self._statistics = Statistics(0, 0, {})
        self.rough: Scores = np.zeros(len(live))
        if query.mode is SearchMode.VECTOR:
            return
        found = {token: index.postings(token) for token in query.tokens}
        if not self._ranked:
            for rows, _ in found.values():
                self.rough[rows] += 1
            return
        lengths = index.token_lengths()
        containing = {token: int(np.count_nonzero(live[rows])) for token, (rows, _) in found.items()}
        self._statistics = Statistics(int(np.count_nonzero(live)), int(lengths[live].sum()), containing)
        average = self._statistics.tokens / max(1, self._statistics.texts)
        for token, (rows, counts) in found.items():
            weight = inverse_frequency(self._statistics.texts, containing[token])
            self.rough[rows] += weight * _saturations(counts, lengths[rows], average)

    def exact(self, row: int) -> tuple[int, float]:
        """The text score and the BM25 of a row, whichever the mode needs."""
        query = self._query
        if self._ranked:
            counts = {token: self._index.count(token, row) for token in query.tokens}
            return 0, bm25(query.tokens, counts, self._index.lengths[row], self._statistics)
        return (ONE * int(self.rough[row]) // len(query.tokens) if query.tokens else 0), 0.0


def _saturations(counts: NDArray[np.int64], lengths: NDArray[np.int64], average: float) -> Scores:
    formula: Any = saturation  # arithmetic alone, which arrays know too
    found: Scores = formula(counts, lengths, average)
    return found


class _Near:
    """Similarities of rows to the query's vector, 0 where they are not known or negative.

    `positive` rows may have a similarity above 0.
    """

    def __init__(self, index: NamespaceIndex, query: Query, having: Mask, words: Scores) -> None:
        self.exact = True
        self.error = 0.0
        self.rough: Scores = np.zeros(len(having))
        self.positive: Mask = np.zeros(len(having), dtype=np.bool_)
        table = index.vectors
        if table is None or not query.by_vector or query.vector is None:
            return
        vector: Floats = np.frombuffer(floats(query.vector).tobytes(), dtype=np.float32)
        rows = np.flatnonzero(having)
        if len(rows) > index.exact_candidates:
            self.exact = False
            count = max(MIN_POOL, POOL * query.limit)
            rows = np.union1d(table.nearest(vector, count, having), _top(words, having, count))
        self.error = table.error
        found = table.similarities(vector, rows)
        self.rough[rows] = np.clip(found, 0.0, 1.0)
        self.positive[rows] = found > -self.error


def _top(words: Scores, among: Mask, count: int) -> Rows:
    rows = np.flatnonzero(among & (words > 0))
    if len(rows) <= count:
        return rows
    best: Rows = rows[np.argpartition(-words[rows], count - 1)[:count]]
    return best


def _rough(query: Query, words: _Words, near: _Near) -> tuple[Scores, float]:
    """Scores in millionths, and how far each may be from the exact one."""
    off = ONE * near.error
    match query.mode:
        case SearchMode.TEXT:
            return np.floor(ONE * words.rough / max(1, len(query.tokens))), 0.0
        case SearchMode.VECTOR:
            return ONE * near.rough, off + 1
        case SearchMode.HYBRID:
            text = ONE * words.rough / max(1, len(query.tokens))
            return (text + ONE * near.rough) / 2, off / 2 + 2
        case SearchMode.BM25:
            return ONE * _parts(words.rough), 1.0
        case SearchMode.BEST:
            if not query.neural:
                return ONE * _parts(words.rough), 1.0
            mixed = BM25_SHARE * _parts(words.rough) + VECTOR_SHARE * near.rough
            return ONE * mixed, VECTOR_SHARE * off + 1


def _parts(values: Scores) -> Scores:
    found: Scores = values / (values + BM25_HALF)
    return found


def _best(rows: Rows, rough: Scores, off: float, limit: int, keys: Sequence[str]) -> Rows:
    """The rows that may be among the best `limit`."""
    if len(rows) <= limit:
        return rows
    cut = np.partition(rough, len(rough) - limit)[len(rough) - limit]
    if off > 0:
        near: Rows = rows[rough >= cut - 2 * off]
        return near
    # Scores are exact: of those that are equal at the cut, the first by key.
    above = rows[rough > cut]
    equal = rows[rough == cut]
    kept = heapq.nsmallest(limit - len(above), map(int, equal), key=keys.__getitem__)
    both: Rows = np.concatenate([above, np.array(kept, dtype=np.int64)])
    return both
