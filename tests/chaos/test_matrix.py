"""A bounded part of the matrix (`python -m tests.chaos` is the whole), and runs that have to fail."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.chaos import controls, wire
from tests.chaos.conftest import Plays
from tests.chaos.evidence import Fault, Kind
from tests.chaos.matrix import Cell, Kill, Result, carry_out, cells, draw, open_world, session
from tests.chaos.points import Boundary, Point, When, points
from tests.chaos.report import Line, report
from tests.support.needs import unavailable
from tests.support.postgres_server import find_binaries
from tests.support.validators import formats

pytestmark = [pytest.mark.podman, pytest.mark.timeout(450)]


async def on_sqlite(podman_root: Path) -> list[Result]:
    return await kills(
        podman_root,
        ("instance", Point(Boundary.TOOL_RUNS, When.WHILE, "tool.2.1")),
        ("instance", Point(Boundary.SETTLE_MODEL, When.BEFORE, "model.3")),
    )


async def more_on_sqlite(podman_root: Path) -> list[Result]:
    return await kills(
        podman_root,
        ("temporal", Point(Boundary.FINISH, When.BEFORE)),
        ("instance", Point(Boundary.DELIVER, When.BEFORE)),
        ("instance", Point(Boundary.ENTER_TOOL, When.AFTER, "tool.2.0")),
    )


async def on_postgresql(podman_root: Path) -> list[Result]:
    return await kills(
        podman_root,
        ("api", Point(Boundary.BEGIN, When.AFTER)),
        ("database", Point(Boundary.SETTLE_TOOL, When.BEFORE, "tool.1.0")),
        ("worker", Point(Boundary.TOOL_RUNS, When.WHILE, "tool.3.3")),
        ("temporal", Point(Boundary.STREAM, When.AFTER, "model.2")),
        database="postgresql",
    )


async def kills(podman_root: Path, *chosen: tuple[str, Point], database: str = "sqlite") -> list[Result]:
    if database == "postgresql" and find_binaries() is None:
        unavailable("PostgreSQL", "no initdb and postgres under /usr/lib/postgresql or on PATH")
    async with open_world(database, podman_root) as world, session(world):
        assert not await world.undisturbed()
        drawn = [
            Kill(Cell(database, victim, point.boundary), number, point, 0.3)
            for number, (victim, point) in enumerate(chosen)
        ]
        return [await carry_out(world, kill, 1) for kill in drawn]


def unharmed(results: list[Result]) -> None:
    told = [f"{result.kill}: {fault}" for result in results for fault in result.faults]
    assert not told, "\n".join(told)


@pytest.mark.slow
@pytest.mark.play(runs=[on_sqlite])
def test_a_kill_on_sqlite_leaves_no_trace(plays: Plays) -> None:
    results = plays.of(on_sqlite)
    unharmed(results)
    assert [result.retried for result in results] == [{"tool.2.1": 2}, {"model.3": 2}], "what was lost was taken up"


@pytest.mark.slow
@pytest.mark.play(runs=[more_on_sqlite])
def test_further_kills_on_sqlite_leave_no_trace(plays: Plays) -> None:
    results = plays.of(more_on_sqlite)
    unharmed(results)
    assert results[-1].uncertain == 1, "an at-most-once call whose worker died is not made again"


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.play(runs=[on_postgresql])
def test_kills_of_each_part_on_postgresql_leave_no_trace(plays: Plays) -> None:
    unharmed(plays.of(on_postgresql))


@pytest.mark.slow
@pytest.mark.play(runs=[controls.without_fencing])
def test_without_fencing_the_suite_finds_a_doubled_effect(plays: Plays) -> None:
    found: list[Fault] = plays.of(controls.without_fencing)
    assert Kind.EFFECT in {fault.kind for fault in found}, found
    assert any("not each of" in fault.text for fault in found)


@pytest.mark.slow
@pytest.mark.play(runs=[controls.without_outbox])
def test_without_the_outbox_the_suite_finds_a_lost_turn(plays: Plays) -> None:
    found: list[Fault] = plays.of(controls.without_outbox)
    assert {fault.kind for fault in found} == {Kind.TURN}, found


async def twin_with_claims(podman_root: Path) -> list[Fault]:
    return await controls.twin(podman_root)


async def twin_without_claims(podman_root: Path) -> list[Fault]:
    return await controls.twin(podman_root, frozenset({"claim"}))


@pytest.mark.slow
@pytest.mark.play(runs=[twin_with_claims, twin_without_claims])
def test_only_the_claim_keeps_a_second_run_from_working_on_a_turn(plays: Plays) -> None:
    assert not plays.of(twin_with_claims)
    found: list[Fault] = plays.of(twin_without_claims)
    assert Kind.EFFECT in {fault.kind for fault in found}, found


def test_next_requests_are_judged_by_rules_that_exist() -> None:
    assert set(wire.CONFIGURATIONS) <= set(formats())


def test_every_moment_of_the_turn_is_drawn() -> None:
    for database in ("sqlite", "postgresql"):
        for cell in cells(database):
            drawn = {kill.point for kill in draw(cell, len(points(cell.boundary)), 7)}
            assert drawn == set(points(cell.boundary))
    cell = cells("sqlite")[0]
    assert draw(cell, 5, 7) == draw(cell, 5, 7)
    assert draw(cell, 5, 7) != draw(cell, 5, 8)


def test_a_report_is_good_only_if_every_cell_is_done_without_a_fault() -> None:
    wanted = cells("sqlite")
    done = [Result(kill) for cell in wanted for kill in draw(cell, 2, 1)]
    lines = [Line.of(result, 1, 2) for result in done]
    text, good = report(wanted, lines, 1, 2)
    assert good
    assert "| begin, before or after its commit | 2/2 | 2/2 |" in text
    assert not report(wanted, lines[:-1], 1, 2)[1]
    done[0].faults.append(Fault(Kind.TURN, "lost"))
    text, good = report(wanted, [Line.of(result, 1, 2) for result in done], 1, 2)
    assert not good
    assert re.search(r"accepted turns lost \| 1 \|", text)
