"""A provider that refuses a conversation as too long gets a shorter one: once, and it is recorded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from milepost.contracts.activities import ModelOutcome
from milepost.domain.compaction import ContextPolicy
from milepost.domain.errors import ModelContextTooLong, ModelUnavailable
from milepost.domain.events import ModelCalled, ModelFailed, ModelRetried
from milepost.domain.turns import TurnState
from milepost.ledger.chain import verify_chain
from milepost.ports.models import SUMMARY, ModelRequest
from milepost.providers.gateway import Gateway
from tests.context.plays import Model, compactions, driven, events_of, running, sent_text
from tests.context.test_compaction import one_call, size
from tests.providers.conftest import Secrets
from tests.providers.wires import WIRE_PARAMETERS, Wire
from tests.support.driven import Driver
from tests.support.wire_server import Reply

NO_WINDOW = ContextPolicy()
"""Nobody knows how long a conversation may be."""


class Window:
    """Refuses what is longer than `tokens`; `losing` loses the worker in the next summary."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.refused: list[str] = []
        self.losing = False

    def __call__(self, request: ModelRequest) -> None:
        if size(request) > self.tokens:
            self.refused.append(request.purpose)
            raise ModelContextTooLong("prompt is too long", fix="Use a larger one.")
        if self.losing and request.purpose == SUMMARY:
            self.losing = False
            raise asyncio.CancelledError


async def filled(driver: Driver, window: Window, session: str) -> str:
    """Turns until one was refused; that turn."""
    for number in range(40):
        turn = await driver.play(session, f"Request {number}. {'Look at this and that. ' * 20}")
        if window.refused:
            return turn
    raise AssertionError("nothing was refused")


async def test_a_refused_call_is_made_again_with_a_shorter_conversation(ledger_url: str, tmp_path: Path) -> None:
    window = Window(9_000)
    model = Model(one_call, lambda _: "Files were looked at.", before=window)
    async with driven(ledger_url, tmp_path, model, policy=NO_WINDOW) as driver:
        session = await driver.open()
        turn = await filled(driver, window, session)
        view = (await driver.turns.get(turn)).turn
        assert view.state is TurnState.COMPLETED, view.error_message
        (event,) = await compactions(driver, session)
        assert event.refused and event.summary is not None and event.tokens_after < event.tokens_before / 2
        assert len(model.summaries) == 1 and len(window.refused) == 1
        failed = [each for each in await events_of(driver, session) if isinstance(each, ModelFailed)]
        assert [each.error_code for each in failed] == ["model_context_too_long"]
        assert failed[0].usage.complete and failed[0].usage.total_tokens == 0, "what was refused cost nothing"
        entry = (await driver.history.entry(turn)).agents[0]
        assert any("after the provider had refused" in note for note in entry.notes), entry.notes
        # What was compacted stays so: the next turn is not refused.
        again = await driver.play(session, "Go on.")
        assert (await driver.turns.get(again)).turn.state is TurnState.COMPLETED and len(window.refused) == 1
        assert "Your own summary" in sent_text(model.answers[-1].messages)
        verify_chain(await driver.ledger.read(lambda tx: tx.events.read(session, limit=10_000)))


async def test_a_crash_between_refusal_and_answer_repeats_neither(ledger_url: str, tmp_path: Path) -> None:
    window = Window(6_000)
    model = Model(one_call, before=window)
    async with driven(ledger_url, tmp_path, model, policy=NO_WINDOW) as driver:
        session = await driver.open()
        window.losing = True
        with pytest.raises(asyncio.CancelledError):
            await filled(driver, window, session)
        assert window.refused == ["answer"], "the refusal is recorded, then the worker is lost in the summary"
        turn, round_ = await running(driver, session)
        answer = await driver.call_model(session, turn, round_)
        assert answer.outcome is ModelOutcome.ANSWERED and len(window.refused) == 1
        assert len(model.summaries) == 2, "one was lost"
        asked = len(model.requests)
        assert await driver.call_model(session, turn, round_) == answer and len(model.requests) == asked
        assert len(await compactions(driver, session)) == 1


async def test_what_is_still_too_long_fails_with_what_to_do(sqlite_url: str, tmp_path: Path) -> None:
    window = Window(1_500)
    model = Model(one_call, before=window)
    async with driven(sqlite_url, tmp_path, model, policy=NO_WINDOW) as driver:
        session = await driver.open()
        for _ in range(3):
            window.tokens = 10**9
            await driver.play(session, "Look. " * 200)
        window.tokens = 1_500
        turn = await driver.play(session, "word " * 3_000)
        view = (await driver.turns.get(turn)).turn
        assert (view.state, view.error_code) == (TurnState.FAILED, "model_context_too_long")
        message = view.error_message or ""
        assert "The largest parts: message" in message and "had been compacted before" in message, message
        assert "larger" in message
        assert window.refused.count("answer") == 2, "refused, compacted, refused again: and that is all"
        (event,) = await compactions(driver, session)
        assert event.refused
        asked = len(model.requests)
        await driver.history.entry(turn)
        assert len(model.requests) == asked


async def test_nothing_is_compacted_where_that_is_off(sqlite_url: str, tmp_path: Path) -> None:
    window = Window(3_000)
    model = Model(one_call, before=window)
    async with driven(sqlite_url, tmp_path, model, policy=ContextPolicy(compact=False)) as driver:
        session = await driver.open()
        turn = await filled(driver, window, session)
        view = (await driver.turns.get(turn)).turn
        assert view.error_code == "model_context_too_long" and "agents.default.context.compact" in (
            view.error_message or ""
        )
        assert await compactions(driver, session) == [] and len(window.refused) == 1


async def test_a_route_with_a_larger_window_goes_first(sqlite_url: str, tmp_path: Path) -> None:
    """A fallback may take it as it is; if it fails for another reason, the conversation is compacted all the same."""
    busy = False
    window = Window(6_000)

    def before(request: ModelRequest) -> None:
        if request.provider == "instant":
            window(request)
        elif busy:
            raise ModelUnavailable("busy")

    model = Model(one_call, before=before)
    async with driven(sqlite_url, tmp_path, model, policy=NO_WINDOW, fallbacks=("larger",)) as driver:
        session = await driver.open()
        turn = await filled_by_hand(driver, window, session)
        assert (await driver.turns.get(turn)).turn.state is TurnState.COMPLETED
        assert await compactions(driver, session) == [], "the larger one took it"
        events = await events_of(driver, session)
        assert [e.error_code for e in events if isinstance(e, ModelRetried)][:1] == ["model_context_too_long"]
        assert [e.provider for e in events if isinstance(e, ModelCalled)][-1] == "larger"
        busy = True
        turn = await driver.send(session, "Go on.")
        answer = await tried(driver, session, turn, 1)
        assert answer is ModelOutcome.ANSWERED
        (event,) = await compactions(driver, session)
        assert event.refused


async def filled_by_hand(driver: Driver, window: Window, session: str) -> str:
    """As `filled`, where Temporal would make the tries."""
    for number in range(40):
        turn = await driver.send(session, f"Request {number}. {'Look at this and that. ' * 20}")
        for round_ in (1, 2):
            await tried(driver, session, turn, round_)
            answer = await driver.call_model(session, turn, round_)
            await driver.run_calls(session, turn, round_, answer)
        await driver.finish(session, turn, 2)
        if window.refused:
            return turn
    raise AssertionError("nothing was refused")


async def tried(driver: Driver, session: str, turn: str, round_: int) -> ModelOutcome:
    for attempt in range(1, 7):
        try:
            return (await driver.call_model(session, turn, round_, attempt=attempt)).outcome
        except Exception as error:
            assert getattr(error, "non_retryable", None) is False, error
    raise AssertionError("six tries")


@pytest.mark.parametrize("wire", WIRE_PARAMETERS)
async def test_every_kind_of_provider(sqlite_url: str, tmp_path: Path, wire: Wire) -> None:
    """With the refusal that the service documents, over HTTP."""
    server = wire.server().start()
    server.longest = 30_000
    server.plan(*(Reply(text="Done so far.") for _ in range(40)))
    gateway = Gateway({"instant": wire.made(server, name="instant")}, Secrets())
    try:
        async with driven(sqlite_url, tmp_path, gateway, policy=NO_WINDOW, model="fake-small") as driver:
            session = await driver.open()
            turns = [await driver.play(session, f"Request {n}. {'Look at this. ' * 350}") for n in range(9)]
            for turn in turns:
                view = (await driver.turns.get(turn)).turn
                assert view.state is TurnState.COMPLETED, view.error_message
            found = await compactions(driver, session)
            assert found and all(event.refused for event in found)
            assert all(event.error is None for event in found), found
    finally:
        await gateway.close()
        server.close()
