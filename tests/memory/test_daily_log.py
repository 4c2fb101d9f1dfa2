"""The daily log on every store: append only, once, and every entry in the range it belongs to."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from milepost.domain.memory import DailyEntry, Scope
from milepost.memory.daily_files import FileDailyLog
from tests.ledger.samples import NASTY
from tests.memory.conftest import Stores
from tests.memory.test_blocks import in_processes, ledger_place
from tests.memory.writer import LOG

__all__ = ["ledger_place"]

OWNER = Scope.agent("ses_1", "coder")
OTHER = Scope.agent("ses_1", "Coder")
ALL = (-(10**15), 10**16)


def us(text: str) -> int:
    """Microseconds since the epoch of a time with its offset."""
    delta = datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)
    return delta // timedelta(microseconds=1)


def entry(name: str, at: int, **changes: object) -> DailyEntry:
    return DailyEntry(**{"id": name, "at": at, "kind": "note", "speaker": "coder", "text": name, **changes})  # type: ignore[arg-type]


async def ids(
    stores: Stores, start: int, end: int, limit: int = 100, after: tuple[int, str] | None = None
) -> list[str]:
    found = await stores.daily.read(OWNER, start, end, limit=limit, after=after)
    return [each.id for each in found.entries]


@pytest.fixture(params=["UTC", "Pacific/Auckland", "America/St_Johns"])
def local_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The machine lies somewhere else: the log must not notice."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


async def test_what_is_appended_is_read_whole(stores: Stores) -> None:
    full = DailyEntry("t1.answer", us("2026-11-30T10:00:00+00:00"), "answer", NASTY, NASTY, "trn_1", 7, True)
    await stores.daily.append(OWNER, [full])
    assert (await stores.daily.read(OWNER, *ALL, limit=10)).entries == (full,)
    assert (await stores.daily.read(OTHER, *ALL, limit=10)).entries == ()
    await stores.daily.drop(OWNER)
    assert await ids(stores, *ALL) == []


async def test_an_entry_is_there_once(stores: Stores) -> None:
    await stores.daily.append(OWNER, [entry("a", 1), entry("b", 2), entry("a", 1)])
    await stores.daily.append(OWNER, [entry("b", 2, text="other"), entry("c", 3)])
    found = (await stores.daily.read(OWNER, *ALL, limit=10)).entries
    assert [(each.id, each.text) for each in found] == [("a", "a"), ("b", "b"), ("c", "c")]


@pytest.mark.usefixtures("local_zone")
async def test_ranges_hold_at_midnight_and_in_any_time_zone(stores: Stores) -> None:
    """Days on disk are UTC; a day of a person somewhere else is a range across two of them."""
    times = {
        "before": "2026-03-28T23:59:59.999999+00:00",
        "midnight": "2026-03-29T00:00:00+00:00",
        "noon": "2026-03-29T12:00:00+00:00",
        "last": "2026-03-29T23:59:59.999999+00:00",
        "next": "2026-03-30T00:00:00+00:00",
    }
    await stores.daily.append(OWNER, [entry(name, us(text)) for name, text in reversed(times.items())])
    day = (us("2026-03-29T00:00:00+00:00"), us("2026-03-30T00:00:00+00:00"))
    assert await ids(stores, *day) == ["midnight", "noon", "last"]
    assert await stores.daily.days(OWNER) == ["2026-03-28", "2026-03-29", "2026-03-30"]
    for hours in (-11, -3.5, 5.75, 13):
        zone = timezone(timedelta(hours=hours))
        start = datetime(2026, 3, 29, tzinfo=zone)
        wanted = [
            name for name, text in times.items() if datetime.fromisoformat(text).astimezone(zone).date() == start.date()
        ]
        bounds = [us(moment.isoformat()) for moment in (start, start + timedelta(days=1))]
        assert await ids(stores, *bounds) == wanted
    assert await ids(stores, us(times["midnight"]), us(times["midnight"])) == []
    assert await ids(stores, us(times["before"]), us(times["midnight"])) == ["before"]


async def test_entries_are_read_in_pages_in_order(stores: Stores) -> None:
    start = us("2026-01-01T00:00:00+00:00")
    wanted = [entry(f"e{number:03}", start + (number // 3) * 6 * 3600 * 10**6) for number in range(60)]
    await stores.daily.append(OWNER, wanted[::-1])
    found: list[DailyEntry] = []
    while page := (
        await stores.daily.read(
            OWNER, start, start + 10**13, limit=7, after=(found[-1].at, found[-1].id) if found else None
        )
    ).entries:
        assert len(page) <= 7
        found += page
    assert found == wanted


@pytest.mark.slow
async def test_writers_of_several_processes_lose_nothing(stores: Stores, ledger_place: str) -> None:
    await in_processes(stores, ledger_place, "log", ["one", "two"], 20)
    found = await stores.daily.read(LOG, *ALL, limit=100)
    assert sorted(each.id for each in found.entries) == sorted(
        f"{name}.{n}" for name in ("one", "two") for n in range(20)
    )
    assert found.damaged == 0


def _file(home: Path, day: str) -> Path:
    return home / "memory/daily_log/v1" / OWNER.component / f"{day}.jsonl"


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _cut(path: Path, count: int) -> None:
    os.truncate(path, path.stat().st_size - count)


def _add(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


class TestFiles:
    async def test_files_are_lines_of_a_day_and_their_owners_alone(self, tmp_path: Path) -> None:
        times = [us("2026-11-30T23:30:00-02:00"), us("2026-11-30T10:00:00+00:00")]
        await FileDailyLog(tmp_path).append(OWNER, [entry(str(at), at) for at in times])
        for day, at in (("2026-12-01", times[0]), ("2026-11-30", times[1])):
            path = _file(tmp_path, day)
            assert (_mode(path), _mode(path.parent)) == (0o600, 0o700)
            (line,) = path.read_bytes().splitlines()
            assert json.loads(line)["at"] == at

    async def test_a_line_that_a_crash_cut_is_passed_over_and_written_again(self, tmp_path: Path) -> None:
        log = FileDailyLog(tmp_path)
        await log.append(OWNER, [entry("a", 1), entry("b", 2)])
        _cut(_file(tmp_path, "1970-01-01"), 9)
        cut = await log.read(OWNER, *ALL, limit=10)
        assert ([each.id for each in cut.entries], cut.damaged) == (["a"], 1)
        await log.append(OWNER, [entry("b", 2), entry("c", 3)])
        whole = await log.read(OWNER, *ALL, limit=10)
        assert ([each.id for each in whole.entries], whole.damaged) == (["a", "b", "c"], 1)

    async def test_lines_of_a_later_release_and_of_nobody(self, tmp_path: Path) -> None:
        log = FileDailyLog(tmp_path)
        await log.append(OWNER, [entry("a", 1)])
        new = b'{"id":"n","at":2,"kind":"note","speaker":"x","text":"y","mood":"good"}'
        _add(_file(tmp_path, "1970-01-01"), new + b'\n\n[]\nnull\n{"id":1,"at":2}\n')
        found = await log.read(OWNER, *ALL, limit=10)
        assert ([each.id for each in found.entries], found.damaged) == (["a", "n"], 3)

    async def test_appending_rewrites_nothing(self, tmp_path: Path) -> None:
        log = FileDailyLog(tmp_path)
        await log.append(OWNER, [entry("a", 1)])
        path = _file(tmp_path, "1970-01-01")
        before, node = path.read_bytes(), path.stat().st_ino
        await asyncio.gather(*(log.append(OWNER, [entry(f"n{number}", 2)]) for number in range(5)))
        assert path.read_bytes().startswith(before)
        assert path.stat().st_ino == node
