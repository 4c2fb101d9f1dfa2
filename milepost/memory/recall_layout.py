"""Which rows of an index are visible to a search, and which of them are neighbors."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Floats: TypeAlias = "npt.NDArray[np.float32]"
"""By name, since numpy is imported where it is used: the command line starts without it."""


class Layout:
    """Visible rows in their order, by place (0 to n - 1). Neighbors lie in one stretch of conversation.

    Attributes:
        rows: the row of each place.
    """

    def __init__(self, times: array[int], visible: Any, pause: int) -> None:
        """`times` of all rows in microseconds; `visible` says for each row whether it is."""
        import numpy as np

        self.rows: npt.NDArray[np.int64] = np.flatnonzero(visible)
        self._place = np.full(len(visible), -1, dtype=np.int64)
        self._place[self.rows] = np.arange(len(self.rows))
        self._whole = len(self.rows) == len(visible)
        said = np.frombuffer(times, dtype=np.int64)[self.rows]
        self._together = np.abs(np.diff(said)) <= pause
        self._together2 = self._together[:-1] & self._together[1:]

    def __len__(self) -> int:
        return len(self.rows)

    def place(self, row: int) -> int:
        """The place of a row, -1 for one that is not visible."""
        return int(self._place[row])

    def places(self, rows: Sequence[int] | array[int], values: array[float]) -> tuple[Any, Any]:
        """The places of those rows that are visible, with their values."""
        import numpy as np

        found = np.frombuffer(rows, dtype=np.int32) if isinstance(rows, array) else np.asarray(rows)
        numbers = np.frombuffer(values, dtype=np.float32)
        if self._whole:
            return found, numbers
        places = self._place[found]
        seen = places >= 0
        return places[seen], numbers[seen]

    def shifted(self, values: Floats, distance: int) -> Floats:
        """For each place the value `distance` (1, 2, -1 or -2) before it; 0 where that is another conversation."""
        import numpy as np

        moved = np.zeros_like(values)
        size = abs(distance)
        if size >= len(values):
            return moved
        together = self._together if size == 1 else self._together2
        if distance > 0:
            np.multiply(values[:-size], together, out=moved[size:])
        else:
            np.multiply(values[size:], together, out=moved[:-size])
        return moved
