"""The stores of long-term memory: the ledger's two databases and the example package, by one suite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from milepost.ports.ledger import Ledger
from milepost.ports.longterm import LongTermStore, Stored, Write
from milepost.services.longterm.ledger_store import LedgerLongTerm
from tests.memory.store_conformance import check

EXAMPLE = Path(__file__).parents[2] / "examples" / "memory-store-json"


def modes(folder: Path) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in folder.iterdir()}


async def test_the_ledgers_databases(ledger: Ledger) -> None:
    async def open_store() -> LongTermStore:
        return LedgerLongTerm(ledger)

    await check(open_store)


async def test_the_example_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from milepost_memory_json import open_store  # type: ignore[import-not-found]

    await check(lambda: open_store({"pretty": True}, tmp_path))
    assert modes(tmp_path) == {0o600}


async def test_the_suite_notices_a_store_that_loses_writes(ledger: Ledger) -> None:
    class Careless(LedgerLongTerm):
        async def put(self, namespace: str, writes: Sequence[Write]) -> list[Stored]:
            return await super().put(namespace, [replace(item, expected=None) for item in writes])

    async def open_store() -> LongTermStore:
        return Careless(ledger)

    with pytest.raises(AssertionError, match="a wrong version was accepted"):
        await check(open_store)
