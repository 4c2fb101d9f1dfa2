"""The database is away while a turn works: calls wait for it, and no attempt, answer or effect is lost or doubled."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from temporalio.exceptions import ApplicationError

from activities import patience
from milepost.contracts.activities import ModelOutcome
from milepost.domain.agents import AgentConfig
from milepost.domain.effects import Effect, EffectState
from milepost.domain.errors import CommitUnknown
from milepost.domain.events import ModelCalled, ModelRetried, ToolFinished
from milepost.domain.tools import Approval
from milepost.domain.turns import TurnState
from milepost.ledger.chain import verify_chain
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.ports.models import ModelRequest
from milepost.storage import open_ledger, open_notifier, sqlite, upgrade
from tests.context.plays import Answer, Model, events_of
from tests.support.databases import OpenLedger
from tests.support.driven import AGENT, Driver
from tests.support.needs import unavailable
from tests.support.postgres_server import find_binaries, memory_folder, run_apart, running_server

T = TypeVar("T")
AWAY_SECONDS = 0.7


def one_call(request: ModelRequest) -> Answer:
    return ("", [("bash", {"command": "make"})]) if request.call_number == 1 else ("Done.", [])


def made(ledger: Ledger, notifier: Any, folder: Path, model: Model) -> Driver:
    agent = AgentConfig(AGENT, "instant", "instant", approvals={"bash": Approval.ALLOW})
    return Driver(ledger, notifier, folder, lambda: 500, agent=agent, gateway=model)  # type: ignore[arg-type]


@asynccontextmanager
async def opened_at(url: str) -> AsyncIterator[OpenLedger]:
    notifier = await open_notifier(url)
    ledger = await open_ledger(url, notifier)
    try:
        yield OpenLedger(ledger, notifier, url)
    finally:
        await ledger.close()
        await notifier.close()


async def check(driver: Driver, model: Model, session: str, turn: str) -> None:
    """The whole turn was done at the first attempt of each of its calls, which waited and say so."""
    view = (await driver.turns.get(turn)).turn
    assert view.state is TurnState.COMPLETED
    assert len(model.requests) == 2, "the provider was at no fault: nothing was asked again"
    events = await events_of(driver, session)
    assert not [event for event in events if isinstance(event, ModelRetried)]
    called = [event for event in events if isinstance(event, ModelCalled)]
    (tool,) = [event for event in events if isinstance(event, ToolFinished)]
    assert [event.attempt for event in (*called, tool)] == [1, 1, 1]
    effects = await effects_of(driver, session, turn)
    assert {effect.state for effect in effects} == {EffectState.SUCCEEDED}
    verify_chain(await driver.ledger.read(lambda tx: tx.events.read(session, limit=10_000)))


async def effects_of(driver: Driver, session: str, turn: str) -> list[Effect]:
    return await driver.ledger.read(lambda tx: tx.effects.page(session, turn_id=turn, state=None, limit=10))


async def told(driver: Driver, session: str) -> list[str]:
    events = await events_of(driver, session)
    notes = [note for event in events if isinstance(event, ModelCalled) for note in event.diagnostics]
    notes += [str(e.detail.get("notes")) for e in events if isinstance(e, ToolFinished)]
    return [note for note in notes if "The ledger did not answer for" in note]


def lock(path: Path) -> sqlite3.Connection:
    """Hold the file's write lock, as another process would."""
    held = sqlite3.connect(path, isolation_level=None)
    held.execute("BEGIN IMMEDIATE")
    return held


@pytest.mark.parametrize("when", ["before", "model", "tool"])
async def test_a_locked_file(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 50)
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    loop = asyncio.get_running_loop()

    def away() -> None:
        held = lock(path)
        loop.call_later(AWAY_SECONDS, held.close)

    async def during(request: ModelRequest) -> None:
        if when == "model" and request.call_number == 1:
            away()

    model = Model(one_call, waits=during)
    async with opened_at(sqlite_url) as opened:
        driver = made(opened.ledger, opened.notifier, tmp_path, model)
        session = await driver.open()
        turn = await driver.send(session, "Please make it.")
        if when == "before":
            away()
        answer = await driver.call_model(session, turn, 1)
        if when == "tool":
            driver.sandbox.says = lambda: away() or "printed"  # type: ignore[func-returns-value]
        await driver.run_calls(session, turn, 1, answer)
        await driver.call_model(session, turn, 2)
        await driver.finish(session, turn, 2)
        await check(driver, model, session, turn)
        # What is recorded after the wait can tell of it; an outcome that waits to be recorded cannot any more.
        assert len(await told(driver, session)) == (1 if when == "before" else 0)


async def test_patience_has_an_end(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 50)
    monkeypatch.setattr(patience, "PATIENCE_SECONDS", 0.4)
    model = Model(one_call)
    async with opened_at(sqlite_url) as opened:
        driver = made(opened.ledger, opened.notifier, tmp_path, model)
        session = await driver.open()
        turn = await driver.send(session, "Please make it.")
        held = lock(Path(sqlite_url.removeprefix("sqlite:///")))
        with pytest.raises(ApplicationError) as caught:
            await driver.call_model(session, turn, 1)
        assert caught.value.type == "storage_unavailable" and not caught.value.non_retryable
        assert model.requests == [], "nothing is asked of a provider that could not be recorded"
        held.close()
        assert (await driver.call_model(session, turn, 1)).outcome is ModelOutcome.ANSWERED


@pytest.mark.slow
@pytest.mark.postgres
async def test_a_server_that_is_stopped_and_started(tmp_path: Path) -> None:
    """In each of the places, in one turn."""
    binaries = find_binaries()
    if binaries is None:
        unavailable("PostgreSQL", "no initdb and postgres under /usr/lib/postgresql or on PATH")
    loop = asyncio.get_running_loop()
    with running_server(binaries, memory_folder()) as server:
        url = server.url(server.create_database())
        run_apart(upgrade(url))

        def away() -> None:
            server.stop()
            loop.call_later(AWAY_SECONDS, server.start)

        async def during(request: ModelRequest) -> None:
            if request.call_number == 2:
                away()

        model = Model(one_call, waits=during)
        async with opened_at(url) as opened:
            driver = made(opened.ledger, opened.notifier, tmp_path, model)
            session = await driver.open()
            turn = await driver.send(session, "Please make it.")
            away()
            answer = await driver.call_model(session, turn, 1)
            driver.sandbox.says = lambda: away() or "printed"  # type: ignore[func-returns-value]
            await driver.run_calls(session, turn, 1, answer)
            await driver.call_model(session, turn, 2)
            await driver.finish(session, turn, 2)
            await check(driver, model, session, turn)
            assert await told(driver, session)


class Forgetful:
    """Commits some transactions without saying so: each of those whose number is in `lost`, counted from `begin`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.instance_id = ledger.instance_id
        self.lost: set[int] = set()
        self.count = 0

    async def write(self, body: Callable[[LedgerTx], T]) -> T:
        value = await self._ledger.write(body)
        self.count += 1
        if self.count in self.lost:
            raise CommitUnknown("The connection was lost while committing.")
        return value

    async def read(self, body: Callable[[LedgerTx], T]) -> T:
        return await self._ledger.read(body)

    async def check(self) -> None:
        await self._ledger.check()

    async def close(self) -> None:
        await self._ledger.close()


async def test_a_commit_that_nobody_told_of_counts(opened: OpenLedger, tmp_path: Path) -> None:
    model = Model(one_call)
    ledger = Forgetful(opened.ledger)
    driver = made(ledger, opened.notifier, tmp_path, model)
    session = await driver.open()
    for lost in ({1}, {2}, {1, 2, 3, 4}):
        turn = await driver.send(session, "Please make it.")
        model.requests.clear()
        for step in (1, 2):
            ledger.count, ledger.lost = 0, lost
            answer = await driver.call_model(session, turn, step)
            ledger.count = 0
            await driver.run_calls(session, turn, step, answer)
            ledger.lost = set()
        await driver.finish(session, turn, 2)
        assert len(model.requests) == 2
        view = (await driver.turns.get(turn)).turn
        assert view.state is TurnState.COMPLETED
        effects = await effects_of(driver, session, turn)
        assert [(effect.state, effect.attempt) for effect in effects] == [(EffectState.SUCCEEDED, 1)] * 3
    events = await events_of(driver, session)
    assert not [event for event in events if isinstance(event, ModelRetried)]
    assert len([event for event in events if isinstance(event, ModelCalled)]) == 6
    assert (await driver.history.usage(session)).spending.reserved_tokens == 0
