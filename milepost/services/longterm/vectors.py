"""Vectors of a namespace in memory: as they are up to 100,000, above that 8 bits a component in a faiss index.

A quantized vector lies within a known distance of its original, so a dot product with a unit vector is off by at most
that distance; whoever searches takes the difference into account and reads the originals of what may be a hit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from milepost.domain.longterm import EXACT_CANDIDATES

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]

PIECE: Final = 8192
"""Vectors that are decoded at a time."""

ROUNDING: Final = 6e-8
"""Of a single, relative; a sum of n products of singles is off by at most n times this."""


class VectorTable:
    """Rows of vectors; a row without one is zero. Not safe to use from several threads at once.

    Attributes:
        error: how far a similarity may be from the exact one.
        quantized: whether the originals are no longer in memory.
    """

    def __init__(self, dimensions: int, flat_rows: int = EXACT_CANDIDATES) -> None:
        self._dimensions = dimensions
        self._flat_rows = flat_rows
        self._matrix: Floats = np.zeros((256, dimensions), dtype=np.float32)
        self._rows = 0
        self._index: Any = None
        self.error = ROUNDING * dimensions

    @property
    def quantized(self) -> bool:
        return self._index is not None

    def add(self, vectors: Sequence[bytes | None]) -> None:
        """Append rows."""
        zero = bytes(4 * self._dimensions)
        joined = b"".join(zero if vector is None else vector for vector in vectors)
        new = np.frombuffer(joined, dtype="<f4").reshape(len(vectors), self._dimensions).astype(np.float32)
        if self._index is None:
            self._append(new)
            if self._rows > self._flat_rows:
                self._quantize()
        else:
            self._add_quantized(new)
            self._rows += len(new)

    def _append(self, new: Floats) -> None:
        end = self._rows + len(new)
        if end > len(self._matrix):
            grown = np.zeros((max(end, 2 * len(self._matrix)), self._dimensions), dtype=np.float32)
            grown[: self._rows] = self._matrix[: self._rows]
            self._matrix = grown
        self._matrix[self._rows : end] = new
        self._rows = end

    def _quantize(self) -> None:
        faiss = _faiss()
        rows = self._matrix[: self._rows]
        kind = faiss.ScalarQuantizer.QT_8bit
        self._index = faiss.IndexScalarQuantizer(self._dimensions, kind, faiss.METRIC_INNER_PRODUCT)
        self._index.train(rows)
        for first in range(0, len(rows), PIECE):
            self._add_quantized(rows[first : first + PIECE])
        self._matrix = np.zeros((0, self._dimensions), dtype=np.float32)

    def _add_quantized(self, new: Floats) -> None:
        codes = self._index.sa_encode(new)
        off = np.linalg.norm(new - self._index.sa_decode(codes), axis=1).max(initial=0.0)
        self.error = max(self.error, float(off) + ROUNDING * self._dimensions)
        self._index.add_sa_codes(codes)

    def similarities(self, query: Floats, rows: Rows) -> Floats:
        """Dot products of some rows with the query, each off by at most `error`."""
        if self._index is not None:
            found = np.zeros(len(rows), dtype=np.float32)
            for first in range(0, len(rows), PIECE):
                some = rows[first : first + PIECE]
                found[first : first + PIECE] = _products(self._index.reconstruct_batch(some), query)
            return found
        if 2 * len(rows) > self._rows:
            whole: Floats = _products(self._matrix[: self._rows], query)[rows]
            return whole
        return _products(self._matrix[rows], query)

    def nearest(self, query: Floats, count: int, among: Mask) -> Rows:
        """About the `count` nearest rows of those chosen, by the quantized vectors."""
        faiss = _faiss()
        selector = faiss.IDSelectorBitmap(np.packbits(among, bitorder="little"))
        params = faiss.SearchParameters(sel=selector)
        _, found = self._index.search(query[None], count, params=params)
        rows: Rows = found[0][found[0] >= 0]
        return rows

    def original(self, row: int) -> bytes:
        """The vector of a row that is not quantized, as it was written."""
        data: bytes = self._matrix[row].astype("<f4").tobytes()
        return data


def _products(rows: Floats, query: Floats) -> Floats:
    """Dot products on this thread alone: a BLAS with several spins while others use the processors."""
    found: Floats = np.einsum("ij,j->i", rows, query)
    return found


def _faiss() -> Any:
    import faiss

    # More would take the processors from everything else that runs here.
    faiss.omp_set_num_threads(1)
    return faiss
