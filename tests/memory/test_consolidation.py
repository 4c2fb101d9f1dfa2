"""Consolidation: who is asked and when, what becomes of the answer, what it costs, and that it takes nothing away."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from milepost.bootstrap.system import SystemClock, UuidIds
from milepost.contracts.activities import ConsolidationResult
from milepost.contracts.naming import CONSOLIDATION_WORKFLOW, TURNS_QUEUE, consolidation_id, queue_name
from milepost.domain.budgets import Budget, Limits
from milepost.domain.consolidation import Consolidation, ConsolidationSettings, ConsolidationState, MemoryConsolidated
from milepost.domain.effects import EffectState
from milepost.domain.errors import AgentIsStopped, ConsolidationSettled, InvalidInput, ModelUnavailable
from milepost.domain.lives import AgentLifeChanged, AgentState
from milepost.domain.memory import DEFAULT_BLOCKS, BlockSpec, MemorySettings, Scope
from milepost.domain.messages import AssistantMessage, FinishReason, TextPart, UserMessage
from milepost.domain.turns import Overrides, TurnState
from milepost.domain.usage import Usage
from milepost.engine import consolidation_tries
from milepost.engine.budgets import session_scope
from milepost.engine.consolidation import INSTRUCTIONS, BlockShown, Fact, added, promotions_of, request_text, taken_out
from milepost.engine.consolidation_tries import failures, may_try
from milepost.ports.models import ModelCompleted, ModelItem, ModelRequest
from milepost.services import consolidating
from milepost.services.blocks import Author, appended
from milepost.services.budgeting import Ask
from milepost.services.consolidating import Consolidator
from milepost.services.consolidations import ConsolidationService
from milepost.services.exporting.service import ExportFormat, ExportService
from milepost.services.forks import ForkFrom, ForkService
from milepost.services.importing.service import ImportOptions, ImportService
from milepost.services.lives import AgentService
from milepost.services.rewinds import RewindService, RewindTo
from milepost.services.turns import BeginTurn
from milepost.services.verification import VerificationService
from milepost.storage import open_ledger, open_notifier
from milepost.temporal.client import TemporalAddress
from milepost.temporal.schedules import set_consolidation
from tests.memory.turning import SeenGateway, Turning, agent, turning
from tests.support.databases import OpenLedger
from tests.support.semantic import WordMemory
from tests.turns.test_turns import script

ON = ConsolidationSettings(enabled=True, idle_threshold_secs=0)
BLOCKS = (
    BlockShown("human", "The person.", 100, "Is called Ann.", 3),
    BlockShown("project", "The project.", 60, "", 0),
)
FACTS = (Fact("r1", "I like\n tea", 1_700_000_000_000_000, "user"), Fact("r2", "ok", 1_700_000_000_000_000))
USED = Usage(100, 0, 20, 0)


def answer(*promotions: tuple[str, str, list[int]]) -> str:
    items = [{"block": block, "text": text, "records": records} for block, text, records in promotions]
    return json.dumps({"promotions": items})


def test_the_request_has_blocks_with_their_room_and_records_by_number() -> None:
    text = request_text(BLOCKS, FACTS)
    assert "[human] The person. (86 of 100 characters are free)\nIs called Ann." in text
    assert "[project] The project. (60 of 60 characters are free)\n(empty)" in text
    assert "1. (2023-11-14) user: I like tea\n2. (2023-11-14) ok" in text


def test_an_answer_is_found_in_whatever_a_model_puts_around_it() -> None:
    said = answer(
        ("human", " likes \n tea ", [1, 2, 9, 1]), ("none", "x", []), ("project", "  ", []), ("human", "likes tea", [])
    )
    wrapped = f"<think>{{not json}} {{}} maybe</think>\n```json\n{said}\n```\nDone."
    (found,) = promotions_of(wrapped, BLOCKS, FACTS)
    assert (found.label, found.text, found.facts, found.base) == ("human", "likes tea", ("r1", "r2"), 3)
    assert promotions_of('{"promotions": []}', BLOCKS, FACTS) == ()
    assert promotions_of('{"promotions": ["x", {"block": 1}, {"block": "human", "text": 5}]}', BLOCKS, FACTS) == ()
    assert len(promotions_of(answer(*(("human", f"n{n}", []) for n in range(50))), BLOCKS, FACTS)) == 10
    for bad in ("", "no", "{}", '{"promotions": 1}', "{" * 5000):
        with pytest.raises(InvalidInput):
            promotions_of(bad, BLOCKS, FACTS)


def test_a_line_is_added_once_and_taken_out_alone() -> None:
    assert added("b")("a") == "a\nb" and added("b")("") == "b"
    with pytest.raises(InvalidInput):
        added("Likes  TEA")("x likes tea y")
    assert taken_out("b")("a\nb\nc") == "a\nc"
    with pytest.raises(InvalidInput):
        taken_out("b")("a\nbb")


class Promoting(SeenGateway):
    """Answers consolidations with `said`; an exception in it is raised."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str | Exception] = []
        self.asked: list[ModelRequest] = []
        self.hold: asyncio.Event | None = None
        self.closed = False

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelItem, None]:
        return self._answer(request) if request.system_prompt == INSTRUCTIONS else super().stream(request)

    async def _answer(self, request: ModelRequest) -> AsyncGenerator[ModelItem, None]:
        self.asked.append(request)
        try:
            if self.hold is not None:
                await self.hold.wait()
        finally:
            self.closed = True
        said = self.said.pop(0)
        if isinstance(said, Exception):
            raise said
        message = AssistantMessage((TextPart(said),))
        yield ModelCompleted(message, FinishReason.STOP, USED, request.provider, request.model)


class Bench:
    def __init__(self, turns: Turning, gateway: Promoting) -> None:
        self.turns = turns
        self.gateway = gateway
        parts = turns.stack.parts
        self.ledger = parts.ledger
        self.blocks = turns.stores.block_service(parts.ledger)
        edits = turns.stores.edits(parts.ledger, parts.clock)
        self.service = ConsolidationService(parts.ledger, parts.clock, edits, parts.agents)
        self.agents = AgentService(parts.ledger, parts.clock, UuidIds(), parts.agents, turns.stack.turns)
        self._passes = 0

    async def run(self, *said: str | Exception) -> ConsolidationResult:
        """One pass, as the schedule starts it."""
        self.gateway.said = list(said)
        self._passes += 1
        stack = self.turns.stack
        name = f"{consolidation_id(self.ledger.instance_id)}-{self._passes}"
        queue = queue_name(self.ledger.instance_id, TURNS_QUEUE)
        return await stack.client.execute_workflow(
            CONSOLIDATION_WORKFLOW,
            id=name,
            task_queue=queue,
            result_type=ConsolidationResult,
            execution_timeout=timedelta(seconds=90),
        )

    async def value(self, session: str, label: str = "human", of: str = "default") -> str:
        spec = next(spec for spec in DEFAULT_BLOCKS if spec.label == label)
        return (await self.blocks.one(Scope.agent(session, of), spec)).value

    async def newest(self) -> Consolidation:
        return (await self.service.page(limit=1))[0]

    async def told(self, session: str) -> list[ConsolidationState]:
        return [event.state for event in await self.turns.events(session) if isinstance(event, MemoryConsolidated)]


@asynccontextmanager
async def _bench(
    opened: OpenLedger,
    address: TemporalAddress,
    folder: Path,
    settings: ConsolidationSettings = ON,
    **config: object,
) -> AsyncIterator[Bench]:
    first = replace(agent(), **config)  # type: ignore[arg-type]
    async with turning(opened, address, folder, WordMemory(), first, works=False) as turns:
        gateway = Promoting()
        turns.gateway = gateway
        turns.stack.parts = replace(turns.stack.parts, consolidation=settings, gateway=gateway)
        async with turns.stack.worker():
            yield Bench(turns, gateway)
        await gateway.close()


@pytest.fixture
async def sqlite_opened(sqlite_url: str) -> AsyncIterator[OpenLedger]:
    notifier = await open_notifier(sqlite_url)
    ledger = await open_ledger(sqlite_url, notifier)
    yield OpenLedger(ledger, notifier, sqlite_url)
    await ledger.close()
    await notifier.close()


@pytest.fixture
async def bench(sqlite_opened: OpenLedger, temporal_address: TemporalAddress, tmp_path: Path) -> AsyncIterator[Bench]:
    async with _bench(sqlite_opened, temporal_address, tmp_path) as made:
        yield made


async def _talked(bench: Bench, text: str = "My name is Ann and I like tea") -> str:
    session = await bench.turns.open("default")
    await bench.turns.turn(session, text, {"text": "Noted."})
    await bench.turns.remembered()
    return session


async def _aside(bench: Bench, session: str) -> None:
    """A turn that leaves nothing in memory."""
    begin = BeginTurn(session, "Aside", script=script({"text": "Aside."}), overrides=Overrides(stateless=True))
    await bench.turns.stack.ended((await bench.turns.stack.turns.begin(begin)).turn.turn_id)
    await bench.turns.remembered()


async def test_facts_are_promoted_once_and_the_call_is_an_effect_that_counts(bench: Bench) -> None:
    session = await _talked(bench)
    spent = (await bench.ledger.read(lambda tx: tx.budgets.spending(session_scope(session)))).usage
    done = await bench.run(answer(("human", "Is called Ann.", [1]), ("project", "", []), ("human", "Likes tea.", [1])))
    assert done == ConsolidationResult(1, 2, 0)
    assert await bench.value(session) == "Is called Ann.\nLikes tea."
    (request,) = bench.gateway.asked
    message = request.messages[0]
    assert isinstance(message, UserMessage) and "My name is Ann and I like tea" in message.text.text
    assert request.tools == () and request.sampling.response_format is not None
    found = await bench.newest()
    assert (found.state, found.facts) == (ConsolidationState.APPLIED, 2)
    assert found.usage is not None and found.usage.total_tokens == USED.total_tokens
    assert [promotion.version for promotion in found.promotions] == [1, 2]
    effect = await bench.ledger.read(lambda tx: tx.effects.get(str(found.effect_id)))
    assert effect is not None and effect.state is EffectState.SUCCEEDED and effect.attempt == 1
    spending = await bench.ledger.read(lambda tx: tx.budgets.spending(session_scope(session)))
    assert spending.usage.total_tokens == spent.total_tokens + USED.total_tokens
    assert (spending.reserved_tokens, spending.assumed_tokens) == (0, 0)
    assert await bench.told(session) == [ConsolidationState.PENDING, ConsolidationState.APPLIED]
    # Nothing new was said, so nobody is asked.
    assert await bench.run() == ConsolidationResult(0, 0, 0)
    assert len(bench.gateway.asked) == 1
    # What is new is asked about alone, and what a block says already is not written twice.
    await bench.turns.turn(session, "We ship on Fridays", {"text": "Good."})
    await bench.turns.remembered()
    done = await bench.run(answer(("human", "likes  TEA.", []), ("project", "Ships on Fridays.", [1])))
    assert done == ConsolidationResult(1, 1, 0)
    request = bench.gateway.asked[1]
    message = request.messages[0]
    assert isinstance(message, UserMessage)
    assert "My name is Ann" not in message.text.text and "1. " in message.text.text and "Fridays" in message.text.text
    assert await bench.value(session) == "Is called Ann.\nLikes tea."
    assert (await bench.newest()).promotions[0].problem == "The block says so already."


async def test_reverting_takes_back_its_own_lines_alone(bench: Bench) -> None:
    session = await _talked(bench)
    await bench.run(answer(("human", "Is called Ann.", []), ("human", "Likes tea.", [])))
    owner, spec = Scope.agent(session, "default"), DEFAULT_BLOCKS[1]
    await bench.blocks.edit(owner, spec, Author("person", "k1", 1), appended("Lives in Rome."))
    await bench.blocks.edit(
        owner, spec, Author("person", "k2", 2), lambda value: value.replace("Likes tea.", "Loves tea.")
    )
    found = await bench.newest()
    done = await bench.service.revert(found.consolidation_id, actor="test")
    assert done.state is ConsolidationState.REVERTED and done.actor == "test"
    assert await bench.value(session) == "Loves tea.\nLives in Rome."
    assert [promotion.problem is None for promotion in done.promotions] == [True, False]
    with pytest.raises(ConsolidationSettled):
        await bench.service.revert(found.consolidation_id, actor="test")
    with pytest.raises(ConsolidationSettled):
        await bench.service.apply(found.consolidation_id, actor="test")


@pytest.mark.slow
async def test_an_edit_made_meanwhile_is_not_overwritten(bench: Bench) -> None:
    session = await _talked(bench)
    bench.gateway.hold = asyncio.Event()
    running = asyncio.create_task(bench.run(answer(("human", "Is called Ann.", []))))
    async with asyncio.timeout(60):
        while not bench.gateway.asked:
            await asyncio.sleep(0.02)
    owner, spec = Scope.agent(session, "default"), DEFAULT_BLOCKS[1]
    await bench.blocks.edit(owner, spec, Author("person", "k1", 1), appended("Lives in Rome."))
    bench.gateway.hold.set()
    assert (await running).promotions == 1
    assert await bench.value(session) == "Lives in Rome.\nIs called Ann."


async def test_nothing_runs_for_a_stopped_agent(bench: Bench) -> None:
    session = await _talked(bench)
    view = await bench.agents.stop("default", actor="test", reason="enough")
    assert view.state is AgentState.STOPPED
    assert await bench.run() == ConsolidationResult(0, 0, 0)
    with pytest.raises(AgentIsStopped, match="enough"):
        await bench.turns.stack.turns.begin(BeginTurn(session, "hello"))
    assert (await bench.agents.stop("default", actor="other")).stop == view.stop
    assert (await bench.agents.start("default", actor="test")).state is AgentState.IDLE
    # Stopped in the middle of the call: its connection is closed, and what it may have cost is charged.
    bench.gateway.hold = asyncio.Event()
    running = asyncio.create_task(bench.run("never"))
    async with asyncio.timeout(60):
        while not bench.gateway.asked:
            await asyncio.sleep(0.02)
        await bench.agents.stop("default", actor="test")
        assert (await running).promotions == 0
    assert bench.gateway.closed
    found = await bench.newest()
    assert found.state is ConsolidationState.FAILED and found.error is not None and "stopped" in found.error
    spending = await bench.ledger.read(lambda tx: tx.budgets.spending(session_scope(session)))
    assert spending.reserved_tokens == 0 and spending.assumed_tokens > 0
    stream = f"instance/{bench.ledger.instance_id}"
    stored = await bench.ledger.read(lambda tx: tx.events.read(stream))
    assert [item.type for item in stored].count(AgentLifeChanged.TYPE) == 3


async def test_stopping_an_agent_ends_its_running_turn(bench: Bench) -> None:
    session = await bench.turns.open("default")
    turn = (await bench.turns.stack.send(session, script=script({"text": "hello there", "delay": 30}))).turn
    view = await bench.agents.get("default")
    assert view.state is AgentState.RUNNING and view.turns == (turn.turn_id,)
    await bench.agents.stop("default", actor="test")
    assert (await bench.turns.stack.ended(turn.turn_id)).state is TurnState.STOPPED


@pytest.mark.slow
async def test_a_failed_call_is_tried_again_and_then_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await _talked(bench)
    done = await bench.run(ModelUnavailable("down"), answer(("human", "Is called Ann.", [])))
    assert done.promotions == 1
    found = await bench.newest()
    effect = await bench.ledger.read(lambda tx: tx.effects.get(str(found.effect_id)))
    assert effect is not None and effect.attempt == 2
    await bench.turns.turn(session, "And more", {"text": "Yes."})
    await bench.turns.remembered()
    await bench.run("I would rather not.")
    assert (await bench.newest()).state is ConsolidationState.FAILED
    # What failed is asked about again, but not at once.
    assert (await bench.run()).asked == 0
    monkeypatch.setattr(consolidation_tries, "BACKOFF", 0)
    assert (await bench.run(answer(("human", "Says more.", [1])))).promotions == 1


async def test_what_keeps_failing_is_asked_three_times_until_something_new_is_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consolidation_tries, "BACKOFF", 0)
    session = await _talked(bench)
    for number in range(3):
        assert (await bench.run("I would rather not.")).asked == 1, number
    assert (await bench.run()).asked == 0
    assert await _consolidator(bench).begin(session, "default", "late") is None
    # A turn that leaves nothing in memory is nothing new.
    await _aside(bench, session)
    assert (await bench.run()).asked == 0
    await bench.turns.turn(session, "We ship on Fridays", {"text": "Good."})
    await bench.turns.remembered()
    assert (await bench.run(answer(("human", "Is called Ann.", [1])))).promotions == 1
    assert len(bench.gateway.asked) == 4
    states = [item.state for item in await bench.service.page()]
    assert states == [ConsolidationState.APPLIED, *[ConsolidationState.FAILED] * 3]


async def test_a_session_without_records_is_not_asked(bench: Bench) -> None:
    session = await bench.turns.open("default")
    await _aside(bench, session)
    assert await _consolidator(bench).candidates() == []


def _failed(name: str, at: int, **changes: object) -> Consolidation:
    made = Consolidation(name, "ses", "a", ConsolidationState.FAILED, "t1", 1, at, at, 7, 3)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_tries_wait_longer_each_time_and_end() -> None:
    second = 1_000_000
    one, two, three = (_failed(f"c{number}", number * second) for number in (1, 2, 3))
    assert may_try((), 10, 0)
    assert not may_try((one,), 10, 41 * second - 1) and may_try((one,), 10, 41 * second)
    assert not may_try((two, one), 10, 162 * second - 1) and may_try((two, one), 10, 162 * second)
    assert not may_try((three, two, one), 10, 10**18)
    assert failures((three, two, one), "t1", None) == (three, two, one)
    # Another turn is something new, unless it left no records.
    assert failures((two, one), "t2", None) == () and failures((two, one), "t2", 8) == ()
    assert failures((two, one), "t2", 7) == (two, one)
    assert failures((two, replace(one, state=ConsolidationState.EMPTY)), "t1", 7) == (two,)
    lost = replace(two, state=ConsolidationState.RUNNING)
    assert failures((lost, one), "t1", 7) == (lost, one)


@pytest.mark.slow
async def test_a_rewind_takes_the_promotions_back(bench: Bench) -> None:
    session = await _talked(bench)
    await bench.run(answer(("human", "Is called Ann.", [])))
    rewinds = RewindService(bench.ledger, SystemClock(), UuidIds())
    await rewinds.rewind(RewindTo(session, "test", number=0))
    assert await bench.value(session) == ""


@pytest.mark.slow
async def test_a_person_may_review_first(
    sqlite_opened: OpenLedger, temporal_address: TemporalAddress, tmp_path: Path
) -> None:
    async with _bench(sqlite_opened, temporal_address, tmp_path, replace(ON, review=True)) as bench:
        session = await _talked(bench)
        assert (await bench.run(answer(("human", "Is called Ann.", [])))).promotions == 0
        assert await bench.value(session) == ""
        found = await bench.newest()
        assert found.state is ConsolidationState.PENDING
        # While it waits nobody is asked again.
        await bench.turns.turn(session, "more", {"text": "ok"})
        await bench.turns.remembered()
        assert (await bench.run()).asked == 0
        done = await bench.service.apply(found.consolidation_id, actor="test")
        assert done.state is ConsolidationState.APPLIED and await bench.value(session) == "Is called Ann."
        await bench.run(answer(("human", "Says more.", [])))
        found = await bench.newest()
        assert (await bench.service.reject(found.consolidation_id, actor="test")).state is ConsolidationState.REJECTED
        assert await bench.value(session) == "Is called Ann."
        assert (await bench.run()).asked == 0, "what was rejected is not proposed again"


@pytest.mark.slow
async def test_no_budget_no_call(sqlite_opened: OpenLedger, temporal_address: TemporalAddress, tmp_path: Path) -> None:
    budget = Budget(session=Limits(model_calls=1), turn=Limits(model_calls=1))
    async with _bench(sqlite_opened, temporal_address, tmp_path, budget=budget) as bench:
        session = await _talked(bench)
        assert (await bench.run()).promotions == 0
        assert bench.gateway.asked == []
        found = await bench.newest()
        assert found.state is ConsolidationState.FAILED and "model calls" in str(found.error)
        spending = await bench.ledger.read(lambda tx: tx.budgets.spending(session_scope(session)))
        assert spending.model_calls == 1 and spending.reserved_tokens == 0


@pytest.mark.parametrize(
    ("settings", "config"),
    [
        (ConsolidationSettings(enabled=False, idle_threshold_secs=0), {}),
        (ConsolidationSettings(enabled=True, idle_threshold_secs=3600), {}),
        (ON, {"memory": None}),
        (ON, {"memory": MemorySettings((BlockSpec("given", "x", read_only=True),))}),
    ],
)
@pytest.mark.slow
async def test_who_is_not_asked(
    sqlite_opened: OpenLedger,
    temporal_address: TemporalAddress,
    tmp_path: Path,
    settings: ConsolidationSettings,
    config: dict[str, object],
) -> None:
    async with _bench(sqlite_opened, temporal_address, tmp_path, settings, **config) as bench:
        await _talked(bench)
        assert (await bench.run()).asked == 0
        assert bench.gateway.asked == [] and await bench.service.page() == []


async def test_the_schedule(bench: Bench) -> None:
    client, instance = bench.turns.stack.client, f"{bench.ledger.instance_id}-other"
    handle = client.get_schedule_handle(consolidation_id(instance))
    await set_consolidation(client, instance, None)
    await set_consolidation(client, instance, timedelta(hours=2))
    await handle.pause(note="by hand")
    await set_consolidation(client, instance, timedelta(hours=1))
    found = (await handle.describe()).schedule
    assert [interval.every for interval in found.spec.intervals] == [timedelta(hours=1)]
    assert found.state.paused, "a person's pause stays"
    await set_consolidation(client, instance, None)
    assert instance not in [item.id async for item in await client.list_schedules()]


@pytest.mark.slow
async def test_the_worker_keeps_the_schedule_and_it_starts_passes(bench: Bench) -> None:
    session = await _talked(bench)
    bench.gateway.said = [answer(("human", "Is called Ann.", []))]
    handle = bench.turns.stack.client.get_schedule_handle(consolidation_id(bench.ledger.instance_id))
    async with asyncio.timeout(60):
        await handle.trigger()
        while await bench.value(session) == "":
            await asyncio.sleep(0.05)
    assert (await handle.describe()).schedule.spec.intervals[0].every == timedelta(seconds=1800)
    await set_consolidation(bench.turns.stack.client, bench.ledger.instance_id, None)


def _consolidator(bench: Bench) -> Consolidator:
    parts = bench.turns.stack.parts
    semantic = bench.turns.stores.semantic
    return Consolidator(bench.ledger, parts.clock, parts.agents, bench.blocks, semantic, bench.service, ON, "worker")


ASK = Ask(Budget(), "default", tokens=50, micros=None)


async def test_an_attempt_whose_worker_is_lost_is_charged_and_repeated(bench: Bench) -> None:
    session = await _talked(bench)
    consolidator = _consolidator(bench)
    work = await consolidator.begin(session, "default", "one")
    assert work is not None
    first = await consolidator.dispatch(work, consolidator.spec(work), ASK)
    assert first is not None and first.effect.attempt == 1
    # Nobody else takes it up meanwhile, and the one that is repeated finds itself.
    assert await consolidator.begin(session, "default", "two") is None
    again = await consolidator.begin(session, "default", "one")
    assert again is not None and again.facts == work.facts
    second = await consolidator.dispatch(again, consolidator.spec(again), ASK)
    assert second is not None and second.effect.attempt == 2
    spending = await bench.ledger.read(lambda tx: tx.budgets.spending(session_scope(session)))
    assert (spending.assumed_tokens, spending.reserved_tokens) == (50, 50)
    said = answer(("human", "Is called Ann.", [1]))
    await consolidator.answered(again, second.effect, said, USED)
    # Killed before it was concluded: the recorded answer is found, and no model is asked.
    third = await consolidator.dispatch(again, consolidator.spec(again), ASK)
    assert third is not None and third.recorded and third.effect.result == said.encode()
    assert (await consolidator.conclude(again, said)).state is ConsolidationState.APPLIED
    assert (await consolidator.conclude(again, said)).state is ConsolidationState.APPLIED
    assert await bench.value(session) == "Is called Ann."
    spending = await bench.ledger.read(lambda tx: tx.budgets.spending(session_scope(session)))
    assert (spending.assumed_tokens, spending.reserved_tokens) == (50, 0)


@pytest.mark.slow
async def test_one_that_nobody_works_on_any_more_is_given_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await _talked(bench)
    consolidator = _consolidator(bench)
    work = await consolidator.begin(session, "default", "one")
    assert work is not None
    assert await consolidator.dispatch(work, consolidator.spec(work), ASK) is not None
    assert await consolidator.candidates() == []
    monkeypatch.setattr(consolidating, "STALE_US", 0)
    assert await consolidator.candidates() == [], "a lost try is a failed one"
    monkeypatch.setattr(consolidation_tries, "BACKOFF", 0)
    assert [item.session_id for item in await consolidator.candidates()] == [session]
    assert (await bench.run(answer(("human", "Is called Ann.", [1])))).promotions == 1
    left = await bench.service.get(work.consolidation.consolidation_id)
    assert left.state is ConsolidationState.FAILED
    spending = await bench.ledger.read(lambda tx: tx.budgets.spending(session_scope(session)))
    assert (spending.assumed_tokens, spending.reserved_tokens) == (50, 0)


@pytest.mark.slow
async def test_a_kill_while_texts_are_written_loses_and_doubles_none(
    sqlite_opened: OpenLedger, temporal_address: TemporalAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _bench(sqlite_opened, temporal_address, tmp_path, replace(ON, review=True)) as bench:
        session = await _talked(bench)
        await bench.run(answer(("human", "Is called Ann.", []), ("project", "Ships.", [])))
        found = await bench.newest()
        move = ConsolidationService.move

        async def killed(*_: object) -> Consolidation:
            raise asyncio.CancelledError

        monkeypatch.setattr(ConsolidationService, "move", killed)
        with pytest.raises(asyncio.CancelledError):
            await bench.service.apply(found.consolidation_id, actor="test")
        monkeypatch.setattr(ConsolidationService, "move", move)
        done = await bench.service.apply(found.consolidation_id, actor="test")
        assert [promotion.version for promotion in done.promotions] == [1, 1]
        assert await bench.value(session) == "Is called Ann." and await bench.value(session, "project") == "Ships."


@pytest.mark.slow
async def test_what_was_promoted_is_in_forks_and_imports(bench: Bench, tmp_path: Path) -> None:
    session = await _talked(bench)
    await bench.run(answer(("human", "Is called Ann.", [1])))
    parts = bench.turns.stack.parts
    forks = ForkService(bench.ledger, parts.clock, UuidIds(), None, lambda path: path)
    forked = (await forks.fork(ForkFrom(session, "test"))).session.session_id
    export = ExportService(bench.ledger, parts.contents, parts.clock, "0.1.0")
    data = b"".join([piece async for piece in await export.export(session, ExportFormat.JSON)])
    service = ImportService(bench.ledger, parts.contents, parts.clock, UuidIds())
    (tmp_path / "other").mkdir()
    imported = await service.load(io.BytesIO(data), ImportOptions(str(tmp_path / "other")))
    await bench.turns.remembered()
    for copy in (forked, imported.session_id):
        assert await bench.value(copy) == "Is called Ann."
    assert (await VerificationService(bench.ledger, parts.contents).verify()).findings == []
    # What the source's consolidations looked at counts for it alone; nothing of a copy touches it.
    assert [item.session_id for item in await bench.service.page()] == [session]
