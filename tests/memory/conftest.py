"""Stores of memory: files, and the ledger's two databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from milepost.memory.block_files import FileBlocks
from milepost.memory.daily_files import FileDailyLog
from milepost.memory.ledger import LedgerBlocks, LedgerDailyLog
from milepost.ports.ledger import Ledger
from milepost.ports.memory import CoreBlocks, DailyLog
from milepost.storage import open_ledger, open_notifier


@dataclass(frozen=True)
class Stores:
    """`place` is what a process of its own opens them with: a folder or the address of a database."""

    blocks: CoreBlocks
    daily: DailyLog
    ledger: Ledger
    place: str


def stores_at(place: str, ledger: Ledger) -> Stores:
    if "://" in place:
        return Stores(LedgerBlocks(ledger), LedgerDailyLog(ledger), ledger, place)
    return Stores(FileBlocks(Path(place)), FileDailyLog(Path(place)), ledger, place)


@pytest.fixture(params=["files", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    """The tiers on each store there is."""
    url = str(request.getfixturevalue("postgres_url" if request.param == "postgresql" else "sqlite_url"))
    notifier = await open_notifier(url)
    ledger = await open_ledger(url, notifier)
    yield stores_at(str(tmp_path / "home") if request.param == "files" else url, ledger)
    await ledger.close()
    await notifier.close()
