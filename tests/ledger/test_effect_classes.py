"""Every effect class in every state: what a call finds that comes to it, what an end leaves, what settles late."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from milepost.domain.effects import EFFECT_TRANSITIONS, Effect, EffectClass, EffectSpec, EffectState
from milepost.domain.errors import Fenced, IllegalTransition
from milepost.domain.events import EffectReconciled, EffectUncertain, Event, StreamKind
from milepost.domain.tools import Approval
from milepost.domain.turns import Turn, TurnState
from milepost.engine.effects import Entry
from milepost.ledger.codec import decode_event
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.services.effects import EffectJournal, Entered, Settlement
from milepost.services.finishing import Ending, end_turn
from milepost.services.gate import Gate
from tests.ledger.samples import new_turn, spec

CLAIM = "run-1"
ASK = Gate(Approval.ASK, "tool", 1, 0, "{}", 60)
ALLOW = Gate(Approval.ALLOW, "tool", 1, 0, "{}", 60)

RUN_AGAIN = (
    EffectClass.PURE,
    EffectClass.OBSERVE,
    EffectClass.IDEMPOTENT,
    EffectClass.KEYED,
    EffectClass.MODEL,
    EffectClass.INTERNAL_STATE,
)
UNKNOWN_AT_THE_END = (EffectClass.KEYED, EffectClass.ATTACHABLE, EffectClass.AT_MOST_ONCE)
SETTLED = (EffectState.SUCCEEDED, EffectState.FAILED, EffectState.CANCELLED)


class Clock:
    """A time in which nothing lasts: each look at it is a moment of its own, as no two calls begin in the same one."""

    looks = itertools.count(5_000_000)

    def now(self) -> int:
        return next(self.looks)


def journal(ledger: Ledger) -> EffectJournal:
    return EffectJournal(ledger, Clock(), "worker")


async def planned(ledger: Ledger, kind: EffectClass) -> tuple[Turn, EffectSpec]:
    """A claimed turn, and a call of it that nobody has come to."""
    turn = await new_turn(ledger)
    await ledger.write(lambda tx: tx.turns.claim(turn.turn_id, CLAIM))
    return turn, spec(turn, effect_class=kind, position="tool.1.0" if kind is not EffectClass.MODEL else "model.1")


async def enter(ledger: Ledger, made: EffectSpec, gate: Gate | None = None) -> Entered:
    return await journal(ledger).enter(made, CLAIM, lambda attempt: [], gate)


async def ended(ledger: Ledger, turn: Turn) -> None:
    def body(tx: LedgerTx) -> None:
        tx.turns.lock_session(turn.session_id)
        end_turn(tx, tx.turns.get(turn.turn_id), Ending(TurnState.INTERRUPTED, "gone"), 6_000_000)

    await ledger.write(body)


async def row(ledger: Ledger, made: EffectSpec) -> Effect:
    found = await ledger.read(lambda tx: tx.effects.get(made.effect_id))
    assert found is not None
    return found


async def events(ledger: Ledger, turn: Turn) -> list[Event]:
    stored = await ledger.read(lambda tx: tx.events.read(turn.session_id))
    return [decode_event(item.type, item.version, item.payload) for item in stored]


async def _found_dispatched(ledger: Ledger, kind: EffectClass) -> None:
    turn, made = await planned(ledger, kind)
    first = await enter(ledger, made)
    assert first.entry is Entry.DISPATCH and first.effect is not None
    assert (first.effect.state, first.effect.attempt) == (EffectState.DISPATCHED, 1)
    again = await enter(ledger, made)
    assert again.effect is not None
    assert again.effect.spec.idempotency_key == made.idempotency_key, "the same key, whatever happens"
    if kind in RUN_AGAIN:
        assert (again.entry, again.effect.state, again.effect.attempt) == (Entry.DISPATCH, EffectState.DISPATCHED, 2)
    elif kind is EffectClass.ATTACHABLE:
        assert (again.entry, again.effect.state, again.effect.attempt) == (Entry.ATTACH, EffectState.DISPATCHED, 2)
    else:
        assert (again.entry, again.effect.state) == (Entry.BECOME_UNCERTAIN, EffectState.UNCERTAIN)
        assert again.effect.attempt == 1
        assert [type(event) for event in await events(ledger, turn)].count(EffectUncertain) == 1
        third = await enter(ledger, made)
        assert third.entry is Entry.RETURN_RECORDED, "and it stays so"


async def test_a_call_found_dispatched_without_an_outcome(ledger: Ledger) -> None:
    for kind in EffectClass:
        await _found_dispatched(ledger, kind)


async def _found_settled(ledger: Ledger, kind: EffectClass, state: EffectState) -> None:
    _, made = await planned(ledger, kind)
    await enter(ledger, made)
    await journal(ledger).settle(made, 1, Settlement(state, b'"recorded"'), [])
    again = await enter(ledger, made, ALLOW)
    assert again.entry is Entry.RETURN_RECORDED and again.effect is not None
    assert (again.effect.state, again.effect.result, again.effect.attempt) == (state, b'"recorded"', 1)
    with pytest.raises(Fenced):
        await journal(ledger).settle(made, 1, Settlement(EffectState.SUCCEEDED), [])


async def test_a_settled_call_is_not_made_again(ledger: Ledger) -> None:
    for kind in EffectClass:
        for state in SETTLED:
            await _found_settled(ledger, kind, state)


async def _denied(ledger: Ledger, kind: EffectClass) -> None:
    _, made = await planned(ledger, kind)
    denied = await journal(ledger).deny(made, CLAIM, "denied_by_hook", "The hook 'guard' denied it.")
    assert denied.effect is not None
    assert (denied.effect.state, denied.effect.attempt, denied.effect.dispatched_at) == (EffectState.DENIED, 0, None)
    assert (denied.effect.error_code, denied.effect.error_message) == ("denied_by_hook", "The hook 'guard' denied it.")
    other = await journal(ledger).deny(made, CLAIM, "hook_failed", "another word")
    assert other.effect == denied.effect
    assert (await enter(ledger, made, ALLOW)).entry is Entry.RETURN_RECORDED


async def test_a_denied_call_stays_denied_with_what_denied_it(ledger: Ledger) -> None:
    for kind in EffectClass:
        await _denied(ledger, kind)


async def _waits(ledger: Ledger, kind: EffectClass) -> None:
    turn, made = await planned(ledger, kind)
    held = await enter(ledger, made, ASK)
    assert held.entry is Entry.WAIT_FOR_PERSON and held.approval is not None and held.effect is not None
    assert (held.effect.state, held.effect.attempt) == (EffectState.AWAITING_APPROVAL, 0)
    again = await enter(ledger, made, ASK)
    assert (again.entry, again.approval) == (Entry.WAIT_FOR_PERSON, held.approval)
    await ended(ledger, turn)
    assert (await row(ledger, made)).state is EffectState.CANCELLED


async def test_a_call_that_waits_for_a_person(ledger: Ledger) -> None:
    for kind in EffectClass:
        await _waits(ledger, kind)


async def _turn_ends(ledger: Ledger, kind: EffectClass) -> None:
    turn, made = await planned(ledger, kind)
    await enter(ledger, made)
    await ended(ledger, turn)
    unknown = kind in UNKNOWN_AT_THE_END
    assert (await row(ledger, made)).state is (EffectState.UNCERTAIN if unknown else EffectState.CANCELLED)
    told = [event for event in await events(ledger, turn) if isinstance(event, EffectUncertain)]
    assert len(told) == int(unknown)


async def test_what_the_end_of_its_turn_makes_of_a_dispatched_call(ledger: Ledger) -> None:
    for kind in EffectClass:
        await _turn_ends(ledger, kind)


async def _late(ledger: Ledger, kind: EffectClass) -> None:
    turn, made = await planned(ledger, kind)
    await enter(ledger, made)
    if kind is EffectClass.KEYED:
        await enter(ledger, made)
    last = (await row(ledger, made)).attempt
    await ended(ledger, turn)
    if last > 1:
        with pytest.raises(Fenced):
            await journal(ledger).settle(made, 1, Settlement(EffectState.FAILED), [])
    await journal(ledger).settle(made, 1, Settlement(EffectState.SUCCEEDED, b'"late"'), [])
    settled = await row(ledger, made)
    assert (settled.state, settled.result, settled.attempt) == (EffectState.SUCCEEDED, b'"late"', last)
    (event,) = [event for event in await events(ledger, turn) if isinstance(event, EffectReconciled)]
    assert (event.resolution, event.actor) == ("late", "worker")
    with pytest.raises(Fenced):
        await journal(ledger).settle(made, last, Settlement(EffectState.SUCCEEDED), [])


async def test_a_late_success_settles_what_was_uncertain_and_a_late_failure_does_not(ledger: Ledger) -> None:
    for kind in UNKNOWN_AT_THE_END:
        await _late(ledger, kind)


async def test_a_noted_outcome_is_gone_on_with_whatever_the_class(ledger: Ledger) -> None:
    for kind in (EffectClass.AT_MOST_ONCE, EffectClass.KEYED, EffectClass.OBSERVE):
        turn, made = await planned(ledger, kind)
        await enter(ledger, made)
        await journal(ledger).note(made, 1, b'"noted"')
        again = await enter(ledger, made)
        assert again.entry is Entry.ATTACH and again.effect is not None
        assert (again.effect.state, again.effect.attempt, again.effect.result) == (
            EffectState.DISPATCHED,
            2,
            b'"noted"',
        )
        with pytest.raises(Fenced):
            await journal(ledger).note(made, 1, b'"of an attempt that is fenced off"')
        await ended(ledger, turn)
        assert (await row(ledger, made)).result is None, "what no hook has seen is not kept"
        with pytest.raises(Fenced):
            await journal(ledger).note(made, 2, b'"too late"')


async def test_every_state_change_but_those_of_the_table_is_refused(ledger: Ledger) -> None:
    """Each state is reached as the product reaches it; then every other one is tried."""
    turn, _ = await planned(ledger, EffectClass.AT_MOST_ONCE)
    tried = 0
    for source in EffectState:
        for target in EffectState:
            if source is EffectState.PLANNED or target in EFFECT_TRANSITIONS[source]:
                continue
            made = spec(turn, effect_class=EffectClass.AT_MOST_ONCE, position=f"tool.1.{tried}")
            await _bring(ledger, made, source)
            before = await row(ledger, made)
            with pytest.raises((Fenced, IllegalTransition)):
                await ledger.write(
                    lambda tx, made=made, before=before, target=target: tx.effects.settle(
                        made.effect_id, before.attempt, target, 9, None
                    )
                )
            assert await row(ledger, made) == before
            tried += 1
    assert tried > 40


async def _bring(ledger: Ledger, made: EffectSpec, state: EffectState) -> None:
    if state is EffectState.AWAITING_APPROVAL:
        await enter(ledger, made, ASK)
    elif state is EffectState.DENIED:
        await journal(ledger).deny(made, CLAIM, "code", "text")
    else:
        await enter(ledger, made)
        if state is not EffectState.DISPATCHED:
            await ledger.write(lambda tx: tx.effects.settle(made.effect_id, 1, state, 8, None))


async def test_an_approved_call_that_was_lost_is_what_its_class_says(ledger: Ledger) -> None:
    """An approval does not make an at-most-once call run twice."""
    _, made = await planned(ledger, EffectClass.AT_MOST_ONCE)
    await enter(ledger, made, ASK)

    def approve(tx: LedgerTx) -> None:
        approval = tx.approvals.of_effect(made.effect_id)
        assert approval is not None
        tx.approvals.resolve(approval.approval_id, type(approval.state).APPROVED, 7, "anna", None)

    await ledger.write(approve)
    assert (await enter(ledger, made, ASK)).entry is Entry.DISPATCH
    assert (await enter(ledger, made, ASK)).entry is Entry.BECOME_UNCERTAIN
    assert (await row(ledger, replace(made))).state is EffectState.UNCERTAIN


def test_a_denial_and_a_hook_are_events_of_a_session() -> None:
    from milepost.domain.events import EVENTS_BY_KIND, HookDecided

    assert HookDecided in EVENTS_BY_KIND[StreamKind.SESSION]
