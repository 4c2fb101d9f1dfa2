"""Vectors of one owner's memory in faiss: exact, in memory, rebuilt from the records."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from typing import Any

from milepost.memory.recall_layout import Floats


class VectorIndex:
    """Inner products with unit vectors, several of them for a row if its text is long.

    One lock around the faiss index: adding while another thread searches ends the process.
    """

    def __init__(self, dimensions: int) -> None:
        import faiss

        self.dimensions = dimensions
        self._lock = threading.Lock()
        self._index: Any = faiss.IndexIDMap2(faiss.IndexFlatIP(dimensions))
        self._rows = array("i")
        self._first: dict[int, int] = {}
        self._single = True

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, rows: Sequence[int], vectors: Sequence[bytes]) -> None:
        """Add one vector for each of the rows; a row may come several times."""
        import numpy as np

        if not rows:
            return
        data = np.frombuffer(b"".join(vectors), dtype="<f4").reshape(len(rows), self.dimensions)
        with self._lock:
            first = len(self._rows)
            _alone()
            self._index.add_with_ids(np.ascontiguousarray(data, np.float32), np.arange(first, first + len(rows)))
            self._rows.extend(rows)
            for number, row in enumerate(rows, start=first):
                self._single = self._first.setdefault(row, number) == number and self._single

    def remove(self, row: int) -> None:
        """Drop the vectors of a row."""
        import numpy as np

        with self._lock:
            if row not in self._first:
                return
            numbers = [number for number, other in enumerate(self._rows) if other == row]
            self._index.remove_ids(np.array(numbers, dtype=np.int64))
            del self._first[row]

    def similarity(self, query: bytes, rows: int) -> Floats:
        """max(0, cosine) of the best vector of each row, 0 for rows without one."""
        import numpy as np

        found = np.zeros(rows, dtype=np.float32)
        with self._lock:
            if len(self._rows) == 0:
                return found
            _alone()
            _, products, numbers = self._index.range_search(_matrix(query), 0.0)
            places = np.frombuffer(self._rows, dtype=np.int32)[numbers]
            if self._single:
                found[places] = products
            else:
                np.maximum.at(found, places, products)
            del places
        return np.minimum(found, 1.0, out=found)

    def similar(self, vector: bytes, rows: Sequence[int]) -> list[tuple[int, float]]:
        """(row, cosine) with the first vector of each of the rows that have one."""
        import numpy as np

        with self._lock:
            there = [row for row in rows if row in self._first]
            if not there:
                return []
            stored = self._index.reconstruct_batch(np.array([self._first[row] for row in there], dtype=np.int64))
        products = stored @ _matrix(vector)[0]
        return [(row, float(product)) for row, product in zip(there, products, strict=True)]


def _alone() -> None:
    """Let faiss work in this thread alone. OpenMP keeps the number for each thread that calls, so each call says it.

    Searches of many owners run at once; helpers of each would spin on the processors that the others need.
    """
    import faiss

    faiss.omp_set_num_threads(1)


def _matrix(vector: bytes) -> Floats:
    import numpy as np

    return np.frombuffer(vector, dtype="<f4").astype(np.float32).reshape(1, -1)
