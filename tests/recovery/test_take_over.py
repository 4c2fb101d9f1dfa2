"""What a killed instance held is free at once for the next one on its data root."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.bootstrap.core import migrate, open_core
from milepost.bootstrap.data_root import DataRoot
from milepost.config.loading import Config, load_config
from milepost.ports.ledger import Ledger

pytestmark = pytest.mark.slow

MINUTE = 60_000_000


async def _acquired(ledger: Ledger, owner: str) -> bool:
    return await ledger.write(lambda tx: tx.leases.acquire("reconcile", owner, 1, MINUTE))


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILEPOST_HOME", str(tmp_path / "home"))
    (tmp_path / "milepost.yaml").write_text("sandbox: {backend: none}\n")
    return load_config()


async def test_leases_of_the_dead_are_forgotten(ledger: Ledger) -> None:
    assert await _acquired(ledger, "dead")
    assert not await _acquired(ledger, "next")
    await ledger.write(lambda tx: tx.leases.clear())
    assert await _acquired(ledger, "next")


async def test_an_instance_takes_over_its_sqlite_ledger(config: Config) -> None:
    root = DataRoot(config.data_root)
    await migrate(config, root)
    async with open_core(config, root) as core:
        assert await _acquired(core.ledger, "dead")
    async with open_core(config, root) as core:
        assert not await _acquired(core.ledger, "next")
        await core.take_over()
        assert await _acquired(core.ledger, "next")


@pytest.mark.postgres
async def test_on_postgresql_others_may_be_alive(
    config: Config, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILEPOST_DATABASE__URL", postgres_url)
    config = load_config()
    async with open_core(config, DataRoot(config.data_root)) as core:
        assert await _acquired(core.ledger, "alive")
        await core.take_over()
        assert not await _acquired(core.ledger, "next")
