"""Effects: dispatch, fence, outcome."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import pytest

from milepost.bootstrap.system import SystemClock
from milepost.domain.content import BlobRef, Content
from milepost.domain.effects import Effect, EffectClass, EffectState
from milepost.domain.errors import EffectNotFound, Fenced, IllegalTransition
from milepost.engine.effects import Entry, on_entry
from milepost.ports.ledger import Ledger
from milepost.services.effects import EffectJournal
from milepost.storage import Hub, open_ledger
from tests.ledger.samples import NASTY, in_parallel, new_turn, refused, spec
from tests.support.databases import OpenLedger


async def _dispatched(ledger: Ledger, times: int = 1) -> Effect:
    made = spec(await new_turn(ledger))
    for n in range(times):
        effect = await ledger.write(lambda tx, n=n: tx.effects.dispatch(made, 10 + n, f"worker{n}"))
    return effect


async def _settle(
    ledger: Ledger, effect: Effect, attempt: int, state: EffectState, result: bytes | None = None
) -> Effect:
    return await ledger.write(lambda tx: tx.effects.settle(effect.spec.effect_id, attempt, state, 99, result))


async def test_effects_come_back_whole(ledger: Ledger) -> None:
    made = spec(
        await new_turn(ledger),
        operation=NASTY,
        arguments=Content("preview", BlobRef("a" * 64, 10**12, "application/json")),
        effect_class=EffectClass.AT_MOST_ONCE,
    )
    assert await ledger.read(lambda tx: tx.effects.get(made.effect_id)) is None
    effect = await ledger.write(lambda tx: tx.effects.dispatch(made, 10, NASTY))
    assert effect == Effect(made, EffectState.DISPATCHED, 1, 10, 10, None, NASTY, None, None, None)
    assert await ledger.read(lambda tx: tx.effects.get(made.effect_id)) == effect
    settled = await ledger.write(
        lambda tx: tx.effects.settle(made.effect_id, 1, EffectState.FAILED, 12, bytes(range(256)), "code", NASTY)
    )
    outcome = {"result": bytes(range(256)), "error_code": "code", "error_message": NASTY}
    assert settled == replace(effect, state=EffectState.FAILED, finished_at=12, **outcome)
    assert await ledger.read(lambda tx: tx.effects.get(made.effect_id)) == settled


async def test_each_dispatch_has_the_next_attempt(ledger: Ledger) -> None:
    effect = await _dispatched(ledger, times=3)
    assert (effect.attempt, effect.created_at, effect.dispatched_at, effect.worker) == (3, 10, 12, "worker2")


async def test_dispatches_at_once_have_different_attempts(ledger: Ledger) -> None:
    made = spec(await new_turn(ledger))

    async def dispatch(n: int) -> Effect:
        return await ledger.write(lambda tx: tx.effects.dispatch(made, n, f"w{n}"))

    effects = await in_parallel(10, dispatch)
    assert sorted(effect.attempt for effect in effects) == list(range(1, 11))


async def test_an_earlier_attempt_is_fenced(ledger: Ledger) -> None:
    effect = await _dispatched(ledger, times=2)
    for state in (EffectState.SUCCEEDED, EffectState.FAILED, EffectState.UNCERTAIN, EffectState.CANCELLED):
        with pytest.raises(Fenced, match="Attempt 2 owns"):
            await _settle(ledger, effect, 1, state)
    assert (await _settle(ledger, effect, 2, EffectState.SUCCEEDED, b"two")).result == b"two"
    with pytest.raises(Fenced, match="settled already"):
        await _settle(ledger, effect, 2, EffectState.SUCCEEDED, b"again")
    found = await ledger.read(lambda tx: tx.effects.get(effect.spec.effect_id))
    assert found is not None
    assert found.result == b"two"


async def test_outcomes_at_once_settle_once(ledger: Ledger) -> None:
    effect = await _dispatched(ledger)

    async def settle(n: int) -> Effect:
        return await _settle(ledger, effect, 1, EffectState.SUCCEEDED, f"{n}".encode())

    results = await in_parallel(6, settle)
    (winner,) = [result for result in results if isinstance(result, Effect)]
    assert sum(isinstance(result, Fenced) for result in results) == 5
    assert await ledger.read(lambda tx: tx.effects.get(effect.spec.effect_id)) == winner


@pytest.mark.parametrize("attempt", [1, 2])
async def test_a_late_success_settles_an_uncertain_effect(ledger: Ledger, attempt: int) -> None:
    effect = await _dispatched(ledger, times=2)
    await _settle(ledger, effect, 2, EffectState.UNCERTAIN)
    if attempt == 1:
        for state in (EffectState.FAILED, EffectState.CANCELLED, EffectState.UNCERTAIN):
            with pytest.raises(Fenced):
                await _settle(ledger, effect, 1, state)
    settled = await _settle(ledger, effect, attempt, EffectState.SUCCEEDED, b"late")
    assert (settled.state, settled.result, settled.attempt) == (EffectState.SUCCEEDED, b"late", 2)
    with pytest.raises(Fenced):
        await _settle(ledger, effect, 2, EffectState.FAILED)


async def test_what_the_table_does_not_allow(ledger: Ledger) -> None:
    effect = await _dispatched(ledger)
    for state in (EffectState.PLANNED, EffectState.AWAITING_APPROVAL, EffectState.DENIED, EffectState.DISPATCHED):
        with pytest.raises(IllegalTransition):
            await _settle(ledger, effect, 1, state)
    with pytest.raises(IllegalTransition, match="never dispatched"):
        await _settle(ledger, effect, 2, EffectState.SUCCEEDED)
    await _settle(ledger, effect, 1, EffectState.UNCERTAIN)
    with pytest.raises(IllegalTransition, match="'uncertain'"):
        await ledger.write(lambda tx: tx.effects.dispatch(effect.spec, 50, "w"))
    await _settle(ledger, effect, 1, EffectState.FAILED)
    with pytest.raises(IllegalTransition, match="'failed'"):
        await ledger.write(lambda tx: tx.effects.dispatch(effect.spec, 50, "w"))
    with pytest.raises(EffectNotFound):
        await ledger.write(lambda tx: tx.effects.settle("no", 1, EffectState.FAILED, 1, None))


async def test_lists(ledger: Ledger) -> None:
    turn = await new_turn(ledger)
    made = [spec(turn, effect_id=f"{n}") for n in (3, 1, 2, 4)]
    for n, each in enumerate(made):
        await ledger.write(lambda tx, each=each, n=n: tx.effects.dispatch(each, n // 2, "w"))
    await ledger.write(lambda tx: tx.effects.settle("2", 1, EffectState.UNCERTAIN, 1, None))

    async def page(turn_id: str | None, state: EffectState | None, limit: int, after: str | None = None) -> list[str]:
        rows = await ledger.read(
            lambda tx: tx.effects.page(turn.session_id, turn_id=turn_id, state=state, limit=limit, after=after)
        )
        return [row.spec.effect_id for row in rows]

    assert await page(None, None, 9) == ["1", "3", "2", "4"]
    assert await page(None, None, 2, after="1") == ["3", "2"]
    assert await page(None, EffectState.DISPATCHED, 9, after="3") == ["4"]
    assert await page(turn.turn_id, EffectState.DISPATCHED, 2) == ["1", "3"]
    assert await page("another", None, 9) == []
    with pytest.raises(EffectNotFound):
        await page(None, None, 9, after="unknown")
    open_ = await ledger.read(lambda tx: tx.effects.open_of_turn(turn.turn_id))
    assert [row.spec.effect_id for row in open_] == ["1", "3", "4"]


async def test_the_database_itself_refuses_unknown_states(opened: OpenLedger) -> None:
    await _dispatched(opened.ledger)
    assert refused(opened.url, "UPDATE effects SET state = 'maybe'")
    assert refused(opened.url, "UPDATE effects SET effect_class = 'magic'")
    assert refused(opened.url, "UPDATE effects SET turn_id = 'none'") or opened.url.startswith("sqlite")


async def test_an_attempt_that_ends_while_the_next_one_enters_is_refused(
    opened: OpenLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the other way round: the entering attempt would find its decision overtaken, and end the turn."""
    ledger = opened.ledger
    turn = await new_turn(ledger, claimed_run="run")
    made = spec(turn)
    await ledger.write(lambda tx: tx.effects.dispatch(made, 10, "first"))
    ended: list[Future[Effect]] = []

    async def end() -> Effect:
        other = await open_ledger(opened.url, Hub())
        try:
            return await other.write(lambda tx: tx.effects.settle(made.effect_id, 1, EffectState.SUCCEEDED, 99, None))
        finally:
            await other.close()

    with ThreadPoolExecutor(1) as threads:

        def slowly(*arguments: Any) -> Entry:
            ended.append(threads.submit(asyncio.run, end()))
            wait(ended, timeout=2)
            return on_entry(*arguments)

        monkeypatch.setattr("milepost.services.effects.on_entry", slowly)
        entered = await EffectJournal(ledger, SystemClock(), "second").enter(made, "run", lambda _: [])
        with pytest.raises(Fenced):
            await asyncio.wrap_future(ended[0])
    assert entered.effect is not None
    assert (entered.entry, entered.effect.attempt) == (Entry.ATTACH, 2)
