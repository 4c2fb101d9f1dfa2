"""The table of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.evidence import Kind
from tests.chaos.matrix import Cell, Result
from tests.chaos.points import Boundary

_COLUMNS = {
    ("sqlite", "instance"): "SQLite: API and worker, one process",
    ("sqlite", "temporal"): "SQLite: Temporal",
    ("postgresql", "worker"): "PostgreSQL: worker",
    ("postgresql", "api"): "PostgreSQL: API",
    ("postgresql", "temporal"): "PostgreSQL: Temporal",
    ("postgresql", "database"): "PostgreSQL: database",
}


@dataclass(frozen=True)
class Line:
    """One kill, as it is kept."""

    seed: int
    kills: int
    cell: str
    kill: str
    point: str
    kinds: list[str]
    faults: list[str]
    retried: int
    uncertain: int
    seconds: float

    @classmethod
    def of(cls, result: Result, seed: int, kills: int) -> Line:
        kill = result.kill
        return cls(
            seed=seed,
            kills=kills,
            cell=str(kill.cell),
            kill=str(kill),
            point=str(kill.point),
            kinds=[fault.kind.value for fault in result.faults],
            faults=[str(fault) for fault in result.faults],
            retried=sum(attempts - 1 for attempts in result.retried.values()),
            uncertain=result.uncertain,
            seconds=round(result.seconds, 1),
        )


def report(wanted: Sequence[Cell], lines: Sequence[Line], seed: int, kills: int) -> tuple[str, bool]:
    """The Markdown of a run, and whether all of it was done without a fault."""
    columns = [key for key in _COLUMNS if any((cell.database, cell.victim) == key for cell in wanted)]
    rows = [
        f"| killed at | {' | '.join(_COLUMNS[key] for key in columns)} |",
        f"|---|{'---|' * len(columns)}",
    ]
    by_cell = {str(cell): [line for line in lines if line.cell == str(cell)] for cell in wanted}
    for boundary in dict.fromkeys(cell.boundary for cell in wanted):
        found = [by_cell.get(str(Cell(*key, boundary)), []) for key in columns]
        texts = [f"{sum(not line.faults for line in cell)}/{len(cell)}" for cell in found]
        rows.append(f"| {_name(boundary)} | {' | '.join(texts)} |")
    told = [line for cell in by_cell.values() for line in cell]
    broken = Counter(kind for line in told for kind in dict.fromkeys(line.kinds))
    met = len({line.point for line in told})
    summary = [
        f"Seed {seed}, {kills} kills a cell: {len(told)} kills at {met} different moments of the turn. "
        f"{sum(line.retried for line in told)} calls were attempted again, {sum(line.uncertain for line in told)} "
        "at-most-once calls ended as `uncertain`.",
        "",
        *rows,
        "",
        "| promise | broken |",
        "|---|---|",
        *(f"| {kind} | {broken[kind.value]} |" for kind in Kind),
    ]
    good = all(len(cell) == kills for cell in by_cell.values()) and not any(line.faults for line in told)
    return "\n".join(summary), good


def _name(boundary: Boundary) -> str:
    return "while a tool runs" if boundary is Boundary.TOOL_RUNS else f"{boundary}, before or after its commit"
