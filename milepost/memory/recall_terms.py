"""Which records have a term, how often: the inverted index of one owner's memory, in numpy arrays."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable

from milepost.engine.lexical import K1, B, inverse_frequency
from milepost.engine.recall import Weights
from milepost.memory.recall_layout import Floats, Layout

BESIDE = (1, 2, -1)
"""The neighbors whose terms count for a record: the one before, the one before that, the one after."""


class TermIndex:
    """Terms of rows; rows are numbered from 0 and only ever added. Not safe for threads: callers hold a lock."""

    def __init__(self) -> None:
        self._postings: dict[str, tuple[array[int], array[float]]] = {}
        self._lengths = array("f")

    def append(self, terms: str) -> None:
        """Add the next row."""
        row = len(self._lengths)
        found = terms.split()
        for term, count in Counter(found).items():
            posting = self._postings.get(term)
            if posting is None:
                posting = self._postings[term] = (array("i"), array("f"))
            posting[0].append(row)
            posting[1].append(count)
        self._lengths.append(len(found))

    def bm25(self, query: Iterable[str], layout: Layout, weights: Weights) -> Floats:
        """BM25 of each visible row, over counts that include a share of its neighbors' (see `engine.recall`)."""
        import numpy as np

        shares = tuple(zip(BESIDE, (weights.term_before, weights.term_second_before, weights.term_after), strict=True))
        own = np.frombuffer(self._lengths, dtype=np.float32)[layout.rows]
        lengths = own + sum(share * layout.shifted(own, distance) for distance, share in shares)
        average = float(lengths.mean()) if len(lengths) else 0.0
        norm = K1 * (1 - B + B * lengths / average) if average > 0 else np.full_like(lengths, K1)
        scores = np.zeros_like(own)
        # Sorted, since sums of floats depend on their order and a query has the same score whatever order it comes in.
        for term in sorted(set(query)):
            if term not in self._postings:
                continue
            places, counts = layout.places(*self._postings[term])
            if len(places) == 0:
                continue
            counted = np.zeros_like(own)
            counted[places] = counts
            counted += sum(share * layout.shifted(counted, distance) for distance, share in shares)
            weight = inverse_frequency(max(len(own), weights.least_records), len(places)) * (K1 + 1)
            scores += weight * counted / (counted + norm)
        return scores

    def present(self, query: Iterable[str], layout: Layout) -> tuple[Floats, Floats]:
        """Above 0 for each visible row that has a term of the query, and for each with such a row beside it."""
        import numpy as np

        own = np.zeros(len(layout), dtype=np.float32)
        for term in set(query) & self._postings.keys():
            own[layout.places(*self._postings[term])[0]] = 1.0
        beside: Floats = sum((layout.shifted(own, distance) for distance in BESIDE), np.zeros_like(own))
        return own, beside
