"""Consolidation: durable facts of an idle agent's memory are promoted into its core blocks.

Promotion only: text is added to blocks, nothing is taken out of a block or of the facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import ClassVar

from milepost.domain.usage import Usage

MAX_FACTS = 100
"""Facts that one consolidation looks at; the next one goes on with the rest."""

MAX_TRIES = 3
"""Consolidations that may fail one after another until something new is written."""

MAX_FACT_CHARACTERS = 1000
MAX_PROMOTIONS = 10
MAX_PROMOTION_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class ConsolidationSettings:
    """Off by default: it costs a model call for each agent and Session that had something new.

    `review`: a person decides about each change before it is made.
    """

    enabled: bool = False
    interval_secs: int = 1800
    idle_threshold_secs: int = 120
    review: bool = False

    @property
    def interval(self) -> timedelta | None:
        """How often to look for idle agents; None: never."""
        return timedelta(seconds=self.interval_secs) if self.enabled else None


class ConsolidationState(StrEnum):
    """`EMPTY`: there was nothing worth promoting, or nothing that fits. Only `PENDING` waits for anybody."""

    RUNNING = "running"
    PENDING = "pending"
    APPLIED = "applied"
    EMPTY = "empty"
    REJECTED = "rejected"
    REVERTED = "reverted"
    FAILED = "failed"


CONSOLIDATION_TRANSITIONS: dict[ConsolidationState, frozenset[ConsolidationState]] = {
    ConsolidationState.RUNNING: frozenset(
        {ConsolidationState.PENDING, ConsolidationState.APPLIED, ConsolidationState.EMPTY, ConsolidationState.FAILED}
    ),
    ConsolidationState.PENDING: frozenset(
        {ConsolidationState.APPLIED, ConsolidationState.EMPTY, ConsolidationState.REJECTED}
    ),
    ConsolidationState.APPLIED: frozenset({ConsolidationState.REVERTED}),
    ConsolidationState.EMPTY: frozenset(),
    ConsolidationState.REJECTED: frozenset(),
    ConsolidationState.REVERTED: frozenset(),
    ConsolidationState.FAILED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Promotion:
    """A text that goes into a core block.

    `base` is the version of the block that the model saw. `version` is the one that has the text, None if there is
    none; `problem` says why. `reverted_by` is the version that took it out again. `facts` are ids of records.
    """

    label: str
    text: str
    facts: tuple[str, ...]
    base: int
    version: int | None = None
    reverted_by: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Consolidation:
    """One consolidation of an agent's memory in a Session. Times are microseconds since the epoch, UTC.

    `turn_id` is the newest turn it knows of: a rewind to before it takes the promotions back. `watermark` is the
    position of the newest record that was looked at, `facts` their number. `actor` is who decided last.
    """

    consolidation_id: str
    session_id: str
    agent: str
    state: ConsolidationState
    turn_id: str
    turn_number: int
    created_at: int
    updated_at: int
    watermark: int
    facts: int
    provider: str = ""
    model: str = ""
    effect_id: str | None = None
    promotions: tuple[Promotion, ...] = ()
    usage: Usage | None = None
    error: str | None = None
    actor: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryConsolidated:
    """A consolidation came to a state. Comes after the end of the turn it refers to."""

    TYPE: ClassVar[str] = "memory.consolidated"
    VERSION: ClassVar[int] = 1
    turn_id: str
    agent: str
    consolidation_id: str
    state: ConsolidationState
    promotions: tuple[Promotion, ...]
    effect_id: str | None = None
    usage: Usage | None = None
    error: str | None = None
    actor: str | None = None
