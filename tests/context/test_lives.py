"""A compaction goes where its turn goes: hidden by a rewind, taken along by a fork, a retry and an import."""

from __future__ import annotations

import io
import re
from pathlib import Path

from milepost.bootstrap.system import SystemClock, UuidIds
from milepost.domain.events import ContextCompacted
from milepost.services.exporting.service import ExportFormat, ExportService
from milepost.services.forks import ForkFrom, ForkService
from milepost.services.importing.service import ImportService
from milepost.services.rewinds import RewindService, RewindTo
from milepost.services.turns import RetryTurn
from tests.context.plays import Model, compactions, driven, events_of, sent_text
from tests.context.test_compaction import grown, one_call
from tests.support.driven import Driver


async def compacted(driver: Driver, model: Model, summaries: int) -> tuple[str, int, ContextCompacted]:
    """A Session in which so many summaries were written, the number of the turn with the last one, and that."""
    session = await driver.open()
    await grown(driver, model, session, until=lambda: len(model.summaries) == summaries)
    event = [event for event in await compactions(driver, session) if event.effect_id][-1]
    return session, (await driver.turns.get(event.turn_id)).turn.number, event


async def test_a_rewind_before_a_compaction_brings_the_conversation_back(ledger_url: str, tmp_path: Path) -> None:
    model = Model(one_call, lambda request: f"Summary {len(model.summaries)}.")
    async with driven(ledger_url, tmp_path, model) as driver:
        session, number, _ = await compacted(driver, model, 2)
        rewinds = RewindService(driver.ledger, driver.clock, UuidIds(), None, networked=False)
        # To before the second one: the first counts again.
        await rewinds.rewind(RewindTo(session, "test", number=number - 1))
        before = len(model.summaries)
        again = await driver.send(session, "Another way.")
        await driver.call_model(session, again, 1)
        sent = sent_text(model.answers[-1].messages)
        assert ("Summary 1." in sent) is (len(model.summaries) == before)
        await driver.finish(session, again, 1)
        first = (await compactions(driver, session))[0]
        first_number = (await driver.turns.get(first.turn_id)).turn.number
        # To before the first: every request of the turns that are left is sent as it was said.
        await rewinds.rewind(RewindTo(session, "test", number=first_number - 1))
        again = await driver.send(session, "From the beginning.")
        await driver.call_model(session, again, 1)
        sent = sent_text(model.answers[-1].messages)
        if len(model.summaries) == before:
            assert "Your own summary" not in sent and "Request 0." in sent


async def test_a_fork_takes_a_compaction_along_under_other_numbers(ledger_url: str, tmp_path: Path) -> None:
    model = Model(one_call, lambda request: f"Summary {len(model.summaries)}.")
    async with driven(ledger_url, tmp_path, model) as driver:
        session = await driver.open()
        for _ in range(3):
            await driver.play(session, "To be taken back.")
        rewinds = RewindService(driver.ledger, driver.clock, UuidIds(), None, networked=False)
        await rewinds.rewind(RewindTo(session, "test", number=1))
        await grown(driver, model, session, until=lambda: bool(model.summaries))
        event = (await compactions(driver, session))[-1]
        number = (await driver.turns.get(event.turn_id)).turn.number
        here = await driver.send(session, "Go on.")
        await driver.call_model(session, here, 1)
        original = model.answers[-1]
        await driver.finish(session, here, 1)
        forks = ForkService(driver.ledger, driver.clock, UuidIds(), None, lambda path: path)
        forked = await forks.fork(ForkFrom(session, "test", number=number))
        there = await driver.send(forked.session.session_id, "Go on.")
        await driver.call_model(forked.session.session_id, there, 1)
        assert (await driver.turns.get(there)).turn.number == number - 1, "two turns were taken back"
        sent, was = (re.sub(r"ref \d+", "ref N", sent_text(each.messages)) for each in (model.answers[-1], original))
        assert sent == was and "Your own summary" in sent
        copied = [
            one for one in await events_of(driver, forked.session.session_id) if isinstance(one, ContextCompacted)
        ]
        assert len(copied) == 1 and copied[0].summary == event.summary
        assert copied[0].effect_id not in ("", event.effect_id)


async def test_an_import_and_a_retry_send_what_the_original_sent(ledger_url: str, tmp_path: Path) -> None:
    model = Model(one_call, lambda request: f"Summary {len(model.summaries)}.")
    async with driven(ledger_url, tmp_path, model) as driver:
        session, _, _ = await compacted(driver, model, 1)
        exports = ExportService(driver.ledger, driver.contents, SystemClock(), "test")
        pieces = [piece async for piece in await exports.export(session, ExportFormat.JSON)]
        imports = ImportService(driver.ledger, driver.contents, SystemClock(), UuidIds(), tmp_path)
        imported = await imports.load(io.BytesIO(b"".join(pieces)))
        sent = []
        for one in (session, imported.session_id):
            turn = await driver.send(one, "Go on.")
            await driver.call_model(one, turn, 1)
            await driver.finish(one, turn, 1)
            sent.append(model.answers[-1].messages)
        assert sent[0] == sent[1] and "Your own summary" in sent_text(sent[0][:1])
        last = (await driver.turns.page(session))[0].turn.turn_id
        retried = await driver.turns.retry(RetryTurn(last))
        await driver.prepare(session, retried.turn.turn_id)
        await driver.call_model(session, retried.turn.turn_id, 1)
        assert model.answers[-1].messages[: len(sent[0])] == sent[0]


async def test_exports_and_history_show_what_was_done(sqlite_url: str, tmp_path: Path) -> None:
    model = Model(one_call, lambda request: "The *summary* itself.")
    async with driven(sqlite_url, tmp_path, model) as driver:
        session, _, event = await compacted(driver, model, 1)
        entry = await driver.history.entry(event.turn_id)
        (agent,) = entry.agents
        assert agent.compactions == (event,)
        assert any("turns summarized" in note and "of 8,000 tokens" in note for note in agent.notes), agent.notes
        assert agent.calls == agent.rounds + 1
        assert agent.usage.output_tokens > event.usage.output_tokens > 0
        exports = ExportService(driver.ledger, driver.contents, SystemClock(), "test")
        for wanted in (ExportFormat.MARKDOWN, ExportFormat.HTML):
            text = b"".join([piece async for piece in await exports.export(session, wanted)]).decode()
            assert "The conversation was compacted before model call" in text, wanted
            assert "The *summary* itself." in text and "Summary" in text, wanted
