"""What every back end checks of a specification, and its locks by Session."""

from __future__ import annotations

import asyncio
from collections.abc import Container

from milepost.domain.errors import InvalidInput
from milepost.ports.sandbox import SandboxSpec

NETWORKS = ("none", "bridge")
MANY = 10_000


def check(spec: SandboxSpec, instance_id: str) -> None:
    """Raises InvalidInput for a specification of another instance, or of an unknown network."""
    if spec.instance_id != instance_id:
        text = f"The Session belongs to instance {spec.instance_id}, this is {instance_id}."
        raise InvalidInput(text, field="instance_id")
    if spec.network not in NETWORKS:
        raise InvalidInput(
            f"Unknown sandbox network {spec.network!r}.", field="network", fix=f"Use {' or '.join(NETWORKS)}."
        )


class Locks:
    """One for each Session. Those that nobody holds are forgotten when there are many, but for the `kept` ones."""

    def __init__(self, kept: Container[str]) -> None:
        self._kept = kept
        self._locks: dict[str, asyncio.Lock] = {}

    def of(self, session_id: str) -> asyncio.Lock:
        """The Session's lock."""
        if len(self._locks) > MANY:
            self._locks = {key: lock for key, lock in self._locks.items() if lock.locked() or key in self._kept}
        return self._locks.setdefault(session_id, asyncio.Lock())
