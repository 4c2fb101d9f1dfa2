"""Operations by effect id: at most one run per id, settled ones kept while there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from .operation import Operation

MAX_KEPT = 512
MAX_KEPT_BYTES = 64 * 1024 * 1024
MAX_REMEMBERED = 16_384
MAX_RUNNING = 64


class Registry:
    """Never forgets a running operation; of the oldest settled ones it remembers only that they ran."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Operation] = OrderedDict()
        self._evicted: OrderedDict[str, None] = OrderedDict()

    def get(self, effect_id: str) -> Operation | None:
        return self._kept.get(effect_id)

    def was_evicted(self, effect_id: str) -> bool:
        """It ran here, but its outcome is no longer kept."""
        return effect_id in self._evicted

    def add(self, operation: Operation) -> None:
        self._kept[operation.effect_id] = operation

    def running(self) -> Iterable[Operation]:
        return [operation for operation in self._kept.values() if not operation.settled]

    def settled(self, operation: Operation) -> None:
        """Call when an operation has settled: it becomes the youngest, the oldest ones make room."""
        self._kept.move_to_end(operation.effect_id)
        size = sum(kept.size for kept in self._kept.values())
        for effect_id in list(self._kept):
            if len(self._kept) <= MAX_KEPT and size <= MAX_KEPT_BYTES:
                break
            old = self._kept[effect_id]
            if old.settled and old is not operation:
                size -= old.size
                del self._kept[effect_id]
                if old.kind in ("exec", "edit"):
                    self._evicted[effect_id] = None
        while len(self._evicted) > MAX_REMEMBERED:
            self._evicted.popitem(last=False)
