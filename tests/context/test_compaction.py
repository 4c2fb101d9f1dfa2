"""A conversation that outgrows its model's window is compacted: results first, then turns; once; the ledger never."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from temporalio.exceptions import ApplicationError

from milepost.contracts.activities import ModelOutcome
from milepost.domain.compaction import Boundary, ContextPolicy
from milepost.domain.errors import ModelRequestRejected, ModelUnavailable
from milepost.domain.events import ModelCalled, ModelFailed, ModelRetried, ToolFinished, TurnCompleted
from milepost.domain.turns import TurnState
from milepost.engine.tokens import request_items, total
from milepost.ledger.chain import verify_chain
from milepost.ports.models import ANSWER, SUMMARY, ModelRequest
from tests.context.plays import Answer, Model, compactions, driven, events_of, prefix_breaks, running, sent_text
from tests.support.driven import Driver


def one_call(request: ModelRequest) -> Answer:
    """A command in each turn's first round, then a text."""
    if request.call_number == 1:
        return "", [("bash", {"command": f"make {len(request.messages)}"})]
    return f"Done {len(request.messages)}.", []


def size(request: ModelRequest) -> int:
    return total(request_items(request.system_prompt, request.messages, request.tools))


async def test_results_are_shortened_before_anything_is_summarized(sqlite_url: str, tmp_path: Path) -> None:
    model = Model(one_call)
    async with driven(sqlite_url, tmp_path, model, window=40_000, size=6_000) as driver:
        session = await driver.open()
        while not await compactions(driver, session):
            await driver.play(session, "Please look.")
        (event,) = await compactions(driver, session)
        assert (event.summary, event.covered, event.error) == (None, None, None)
        assert event.clipped_results > 0 and event.tokens_before > 34_000 > event.tokens_after
        assert model.summaries == []
        text = sent_text(model.answers[-1].messages)
        assert "an old result:" in text and "read_output has all of it under ref 1.1.1" in text
        results = [event for event in await events_of(driver, session) if isinstance(event, ToolFinished)]
        assert all(len(result.output.text) > 5_000 for result in results), "the ledger is never cut"


async def test_a_long_session_stays_in_its_window_with_a_stable_prefix(ledger_url: str, tmp_path: Path) -> None:
    model = Model(one_call, lambda request: f"Summary number {len(model.summaries)}.")
    async with driven(ledger_url, tmp_path, model, window=8_000) as driver:
        session = await driver.open()
        for number in range(24):
            await driver.play(session, f"Request {number}. {'Look at this and that. ' * 20}")
        found = await compactions(driver, session)
        verify_chain(await driver.ledger.read(lambda tx: tx.events.read(session, limit=10_000)))
        events = await events_of(driver, session)
    assert len([event for event in events if isinstance(event, TurnCompleted)]) == 24
    assert 2 <= len(model.summaries) <= 10
    assert len(found) >= len(model.summaries)
    assert all(event.error is None and event.tokens_after < 0.9 * event.tokens_before for event in found)
    assert all(size(request) <= 0.85 * 8_000 for request in model.answers)
    assert prefix_breaks(model.answers) == len(found), "the prefix changes right after a compaction and never else"
    last = model.answers[-1].messages[0].text.text  # type: ignore[union-attr]
    assert last.startswith("[Your own summary of") and f"Summary number {len(model.summaries)}." in last
    assert found[-1].covered_turns > 12


async def grown(driver: Driver, model: Model, session: str, *, until: Callable[[], bool]) -> None:
    """Turns until something is true; at most 30."""
    for number in range(30):
        await driver.play(session, f"Request {number}. {'Look at this and that. ' * 20}")
        if until():
            return
    raise AssertionError("it did not happen")


class Losing:
    """Loses the worker in the calls of these purposes, one after another."""

    def __init__(self, *purposes: str) -> None:
        self.left = list(purposes)

    def __call__(self, request: ModelRequest) -> None:
        if self.left and request.purpose == self.left[0] and (request.purpose == SUMMARY or len(self.left) == 1):
            self.left.pop(0)
            raise asyncio.CancelledError


async def test_a_crash_after_the_summary_does_not_summarize_again(ledger_url: str, tmp_path: Path) -> None:
    losing = Losing(SUMMARY, ANSWER)
    model = Model(one_call, before=losing)
    async with driven(ledger_url, tmp_path, model) as driver:
        session = await driver.open()
        with pytest.raises(asyncio.CancelledError):
            await grown(driver, model, session, until=lambda: False)
        assert len(model.summaries) == 1, "the first loss is in the summary"
        turn, round_ = await running(driver, session)
        with pytest.raises(asyncio.CancelledError):
            await driver.call_model(session, turn, round_)
        assert len(model.summaries) == 2 and not losing.left, "then one in the call that follows it"
        again = await driver.call_model(session, turn, round_)
        assert again.outcome is ModelOutcome.ANSWERED
        assert len(model.summaries) == 2
        assert model.answers[-1].messages == model.answers[-2].messages
        assert await driver.call_model(session, turn, round_) == again, "and a finished call is not made again"
        (event,) = [event for event in await compactions(driver, session) if event.summary]
        retries = [event for event in await events_of(driver, session) if isinstance(event, ModelRetried)]
        assert event.attempt == 2
        assert [retry.error_code for retry in retries if retry.effect_id == event.effect_id] == ["worker_lost"]


async def test_a_summary_that_fails_for_good_is_told_and_not_tried_again(sqlite_url: str, tmp_path: Path) -> None:
    def refuse(request: ModelRequest) -> None:
        if request.purpose == SUMMARY:
            raise ModelRequestRejected("no summaries here")

    model = Model(one_call, before=refuse)
    async with driven(sqlite_url, tmp_path, model) as driver:
        session = await driver.open()
        await grown(driver, model, session, until=lambda: bool(model.summaries))
        turn = (await driver.turns.page(session))[0].turn
        assert turn.state is TurnState.COMPLETED, "it still fitted the window"
        (event,) = await compactions(driver, session)
        assert event.error is not None and "no summaries here" in event.error and event.summary is None
        events = await events_of(driver, session)
        failed = [event for event in events if isinstance(event, ModelFailed)]
        assert len(failed) == 1 and failed[0].error_code == ModelRequestRejected.code
        for _ in range(9):
            turn_id = await driver.play(session, "More. " * 100)
            if (await driver.turns.get(turn_id)).turn.state is TurnState.FAILED:
                break
        turn = (await driver.turns.get(turn_id)).turn
        assert turn.error_code == "context_too_large"
        message = turn.error_message or ""
        assert "8,000 tokens" in message and "The largest parts: message" in message, message
        assert len(model.summaries) >= 2, "each turn tries once"


async def test_a_summary_is_tried_again_after_a_passing_failure(sqlite_url: str, tmp_path: Path) -> None:
    def busy(request: ModelRequest) -> None:
        if request.purpose == SUMMARY and request.attempt == 1:
            raise ModelUnavailable("busy")

    model = Model(one_call, before=busy)
    async with driven(sqlite_url, tmp_path, model) as driver:
        session = await driver.open()
        with pytest.raises(ApplicationError) as raised:
            await grown(driver, model, session, until=lambda: False)
        assert not raised.value.non_retryable
        turn, round_ = await running(driver, session)
        assert (await driver.call_model(session, turn, round_)).outcome is ModelOutcome.ANSWERED
        (event,) = await compactions(driver, session)
        assert event.summary is not None and event.attempt == 2


async def test_an_empty_or_a_long_summary_is_not_used(ledger_url: str, tmp_path: Path) -> None:
    texts = iter(["  ", "long words " * 4_000])
    model = Model(one_call, lambda _: next(texts, "Short."))
    async with driven(ledger_url, tmp_path, model) as driver:
        session = await driver.open()
        await grown(driver, model, session, until=lambda: len(model.summaries) == 3)
        found = await compactions(driver, session)
        errors = [event.error for event in found if event.effect_id]
        assert errors[0] == "The model's summary was empty."
        assert errors[1] is not None and errors[1].startswith("With the model's summary the request would still have")
        assert errors[2] is None
        spent = sum(event.usage.output_tokens for event in found)
        assert spent > 10_000, "what is not used is charged too"
        turns = [turn.turn for turn in await driver.turns.page(session)]
        called = [event for event in await events_of(driver, session) if isinstance(event, ModelCalled)]
        assert sum(turn.usage.output_tokens for turn in turns) == spent + sum(e.usage.output_tokens for e in called)
        used = await driver.history.usage(session)
        assert used.spending.usage.output_tokens == sum(turn.usage.output_tokens for turn in turns)
        assert used.spending.reserved_tokens == 0


async def test_a_stop_during_the_summary_ends_the_turn(ledger_url: str, tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def hang(request: ModelRequest) -> None:
        if request.purpose == SUMMARY:
            asked.set()
            await asyncio.sleep(60)

    model = Model(one_call, waits=hang)
    async with driven(ledger_url, tmp_path, model) as driver:
        session = await driver.open()
        playing = asyncio.ensure_future(grown(driver, model, session, until=lambda: False))
        await asyncio.wait_for(asked.wait(), 60)
        turn, _ = await running(driver, session)
        await driver.turns.stop(turn, actor="test")
        with pytest.raises(AssertionError):
            await asyncio.wait_for(playing, 30)
        assert (await driver.turns.get(turn)).turn.state is TurnState.STOPPED
        assert await compactions(driver, session) == []
        failed = [event for event in await events_of(driver, session) if isinstance(event, ModelFailed)]
        assert [event.error_code for event in failed] == ["stopped"]
        used = await driver.history.usage(session)
        assert used.spending.reserved_tokens == 0 and not used.spending.usage.complete


async def test_a_turn_that_ends_while_nobody_summarizes_charges_what_was_asked(sqlite_url: str, tmp_path: Path) -> None:
    model = Model(one_call, before=Losing(SUMMARY))
    async with driven(sqlite_url, tmp_path, model) as driver:
        session = await driver.open()
        with pytest.raises(asyncio.CancelledError):
            await grown(driver, model, session, until=lambda: False)
        turn, round_ = await running(driver, session)
        await driver.finish(session, turn, round_, TurnState.FAILED)
        failed = [event for event in await events_of(driver, session) if isinstance(event, ModelFailed)]
        assert [(event.error_code, event.usage.complete) for event in failed] == [("turn_ended", False)]
        assert (await driver.history.usage(session)).spending.reserved_tokens == 0


async def test_one_turn_that_is_long_itself_is_compacted_twice_at_most(ledger_url: str, tmp_path: Path) -> None:
    def work(request: ModelRequest) -> Answer:
        text = f"Step {request.call_number}. {'I go on with this one. ' * 15}"
        return (
            (text, [("bash", {"command": f"make {request.call_number}"})]) if request.call_number < 60 else ("Ok", [])
        )

    model = Model(work)
    async with driven(ledger_url, tmp_path, model, size=1_000) as driver:
        session = await driver.open()
        turn_id = await driver.play(session, "THE REQUEST ITSELF")
        found = await compactions(driver, session)
        turn = (await driver.turns.get(turn_id)).turn
    assert [event.number for event in found] == [1, 2]
    assert found[0].covered == Boundary(0, found[0].covered_rounds + 1)
    assert turn.error_code == "context_too_large", turn.error_message
    assert "THE REQUEST ITSELF" in sent_text(model.answers[-1].messages), "the request is never cut"
    assert "the first" in sent_text(model.answers[-1].messages[:1]) and prefix_breaks(model.answers) == 2


async def test_without_a_window_or_with_compaction_off_nothing_happens(sqlite_url: str, tmp_path: Path) -> None:
    model = Model(one_call)
    policy = ContextPolicy(compact=False, window=3_000)
    async with driven(sqlite_url, tmp_path, model, policy=policy) as driver:
        session = await driver.open()
        for _ in range(4):
            turn_id = await driver.play(session, "Look. " * 100)
        assert (await driver.turns.get(turn_id)).turn.error_code == "context_too_large"
        assert await compactions(driver, session) == [] and model.summaries == []
