"""From a turn's events to what it did to the files of its Workspace. Pure.

A *run* is a stretch of the turn in which nobody else changed a file, as far as snapshots can tell; a *gap* is a
difference between two snapshots that no call of the turn lies between, or only one whose end is not known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from milepost.domain.events import Event, ToolStarted, WorkspaceSnapshotted

WORKSPACE_EVENTS = (ToolStarted.TYPE, WorkspaceSnapshotted.TYPE)


@dataclass(frozen=True, slots=True)
class Run:
    """The states around consecutive calls."""

    start: str
    end: str


@dataclass(frozen=True, slots=True)
class Gap:
    """A difference that no finished call of the turn made.

    `after_turn` is the turn whose state `start` is, None if no turn made it. `lost` are calls whose end is not known
    and which may have made it; without them it was somebody else. `first` is the one before the turn's first call.
    """

    start: str
    end: str
    after_turn: str | None = None
    lost: tuple[str, ...] = ()
    first: bool = False


@dataclass(frozen=True, slots=True)
class Trace:
    """All of a turn. `lost` are calls after which no state is known; `problems` say why snapshots are missing."""

    runs: tuple[Run, ...] = ()
    gaps: tuple[Gap, ...] = ()
    lost: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    omitted: tuple[str, ...] = ()

    @property
    def start(self) -> str | None:
        """The state before the turn's first call that could write."""
        return self.runs[0].start if self.runs else None

    @property
    def end(self) -> str | None:
        """The state after the last one."""
        return self.runs[-1].end if self.runs else None


def trace(events: Iterable[Event], writes: frozenset[str]) -> Trace:
    """Fold a turn's events, ascending. `writes` are the tools whose calls may change files."""
    runs: list[Run] = []
    gaps: list[Gap] = []
    open_calls: dict[str, None] = {}
    problems: list[str] = []
    omitted: dict[str, None] = {}
    current: str | None = None
    for event in events:
        if isinstance(event, ToolStarted):
            if event.tool in writes:
                open_calls[event.effect_id] = None
            continue
        if not isinstance(event, WorkspaceSnapshotted):
            continue
        omitted.update(dict.fromkeys(event.omitted))
        if event.tree is None:
            problems.append(event.error or "A snapshot failed.")
            continue
        if event.moment == "before":
            before = event.previous if current is None else current
            if before is not None and before != event.tree:
                gaps.append(Gap(before, event.tree, event.previous_turn, tuple(open_calls), current is None))
            open_calls.clear()
            runs.append(Run(event.tree, event.tree))
        elif runs:
            open_calls.pop(event.effect_id, None)
            runs[-1] = replace(runs[-1], end=event.tree)
        current = event.tree
    return Trace(tuple(runs), tuple(gaps), tuple(open_calls), tuple(problems), tuple(omitted))
