"""Turns with encrypted payloads: nothing readable in Temporal, and keys that change or are missing lose nothing."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer, WorkflowReplayResult

from milepost.contracts.activities import CALL_MODEL, PAYLOAD_UNDECODABLE, CallModelParams, CallModelResult
from milepost.domain.errors import MilepostError
from milepost.domain.turns import TurnState
from milepost.ports.sandbox import Outcome
from milepost.services.dispatch import Dispatcher
from milepost.temporal.client import TemporalAddress, connect
from milepost.temporal.codec import KEY_ID, EncryptionCodec, unreadable
from milepost.temporal.converter import DATA_CONVERTER, encrypting
from milepost.temporal.starter import TemporalStarter
from tests.histories.bounds import oversize
from tests.histories.doubles import Script, answer, serving, start
from tests.histories.scenarios import SCENARIOS, Scenario, Step, call, play, stack_of
from tests.security.dumps import histories
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack
from workers.process import WorkerProcess, embedded_queues
from workers.runtime import WORKFLOWS, QueuePlan, WorkerSettings, runner

OLD, NEW = secrets.token_bytes(32), secrets.token_bytes(32)
ONE = {"old": OLD}
BOTH = {"old": OLD, "new": NEW}


def converter(keys: Mapping[str, bytes], current: str) -> DataConverter:
    return encrypting(EncryptionCodec(keys, current)) if keys else DATA_CONVERTER


async def speaking(stack: Stack, address: TemporalAddress, data_converter: DataConverter) -> Stack:
    """The stack with another way to make payloads, as a process with another configuration has it."""
    stack.client = await connect(address, data_converter)
    stack.starter = TemporalStarter(stack.client, stack.parts.ledger.instance_id)
    return stack


@asynccontextmanager
async def serving_turns(
    stack: Stack, client: Client | None = None, queues: QueuePlan | None = None
) -> AsyncIterator[None]:
    """A worker process that leaves at once, whatever is at work."""
    settings = WorkerSettings(graceful_shutdown=timedelta(milliseconds=100))
    process = WorkerProcess(
        stack.parts, client or stack.client, stack.starter, queues or embedded_queues(), settings, reconcile_seconds=0.5
    )
    await process.start()
    try:
        yield
    finally:
        await process.stop()


async def replay(history: WorkflowHistory, data_converter: DataConverter) -> WorkflowReplayResult:
    replayer = Replayer(
        workflows=list(WORKFLOWS),
        workflow_runner=runner(),
        data_converter=data_converter,
        workflow_failure_exception_types=[MilepostError],
    )
    return await replayer.replay_workflow(history, raise_on_replay_failure=False)


def keys_of(history: WorkflowHistory) -> set[str]:
    """The names of the keys that the payloads of a history name."""
    text = b"".join(event.SerializeToString() for event in history.events)
    return {name for name in BOTH if KEY_ID.encode() + b"\x12" + bytes([len(name)]) + name.encode() in text}


PLAYED = ("failed", "stopped", "retried_model_call", "approved_and_rejected")


@pytest.mark.parametrize("scenario", [each for each in SCENARIOS if each.name in PLAYED], ids=lambda each: each.name)
async def test_a_history_tells_nothing_and_replays(
    scenario: Scenario, sqlite_url: str, tmp_path: Path, temporal_address: TemporalAddress
) -> None:
    sealed = converter(BOTH, "new")
    opened = stack_of(scenario.steps, sqlite_url, tmp_path / "blobs", temporal_address, asks=bool(scenario.answers))
    async with opened as (stack, sandboxes):
        turn = await play(scenario, await speaking(stack, temporal_address, sealed), sandboxes, tmp_path)
        history = await stack.client.get_workflow_handle(turn.workflow_id).fetch_history()
        stored = (await histories(stack.client))[f"workflow {turn.workflow_id}"]
        effects = await stack.history.effects(turn.session_id)
        title = (await stack.sessions.get(turn.session_id)).title
    # Temporal knows a workflow by its id, which is made of the turn's.
    stored = stored.replace(turn.workflow_id.encode(), b"")
    readable = {"turn": turn.turn_id, "session": turn.session_id, "title": f"Turn of {title}"}
    readable |= {
        "summary": "claim the turn",
        "instance": '"instance_id"',
        "message": "no such model",
        "state": '"state"',
    }
    readable |= {f"effect {number}": effect.spec.effect_id for number, effect in enumerate(effects)}
    found = [name for name, text in readable.items() if text.encode() in stored]
    assert found == []
    assert keys_of(history) == {"new"}
    assert oversize(history) == []
    assert (await replay(history, sealed)).replay_failure is None


async def test_the_control_reads_all_of_it_without_encryption(
    sqlite_url: str, tmp_path: Path, temporal_address: TemporalAddress
) -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == "failed")
    async with stack_of(scenario.steps, sqlite_url, tmp_path / "blobs", temporal_address) as (stack, sandboxes):
        turn = await play(scenario, stack, sandboxes, tmp_path)
        stored = (await histories(stack.client))[f"workflow {turn.workflow_id}"]
    assert {each.name for each in SCENARIOS} >= set(PLAYED)
    for text in (turn.session_id, "claim the turn", '"instance_id"', "no such model"):
        assert text.encode() in stored


@asynccontextmanager
async def waiting_turn(
    keys: Mapping[str, bytes], url: str, folder: Path, address: TemporalAddress
) -> AsyncIterator[tuple[Stack, MemorySandboxes, str, str]]:
    """A turn in the middle of a command, begun with these keys, that no worker serves: (…, turn id, workflow id)."""
    steps = (Step(calls=(call("bash", command="hang on"),)), Step("Done."))
    async with stack_of(steps, url, folder / "blobs", address) as (stack, sandboxes):
        await speaking(stack, address, converter(keys, "old"))
        session = await stack.open(folder)
        async with serving_turns(stack):
            begun = await stack.send(session)
            async with asyncio.timeout(30):
                while not (session in sandboxes.by_session and sandboxes.by_session[session].commands()):
                    await asyncio.sleep(0.02)
        yield stack, sandboxes, begun.turn.turn_id, begun.turn.workflow_id


async def finish(stack: Stack, sandboxes: MemorySandboxes, turn_id: str) -> None:
    """Let the turn's command end, and see that it ran once and the turn completes."""
    session = (await stack.turns.get(turn_id)).turn.session_id
    async with asyncio.timeout(60):
        while not (session in sandboxes.by_session and sandboxes.by_session[session].commands()):
            await asyncio.sleep(0.02)
    sandbox = sandboxes.by_session[session]
    for outcome in sandbox.outcomes.values():
        if not outcome.done():
            outcome.set_result(Outcome(exit_code=0, stdout=b"finished\n"))
    turn = await stack.ended(turn_id)
    assert turn.state is TurnState.COMPLETED, turn.error_message
    assert sandbox.commands() == ["hang on"]


async def test_a_key_is_changed_while_a_turn_runs(
    sqlite_url: str, tmp_path: Path, temporal_address: TemporalAddress
) -> None:
    async with waiting_turn(ONE, sqlite_url, tmp_path, temporal_address) as (stack, sandboxes, turn_id, workflow_id):
        await speaking(stack, temporal_address, converter(BOTH, "new"))
        async with serving_turns(stack):
            await finish(stack, sandboxes, turn_id)
        history = await stack.client.get_workflow_handle(workflow_id).fetch_history()
    assert keys_of(history) == {"old", "new"}
    assert (await replay(history, converter(BOTH, "new"))).replay_failure is None
    failure = (await replay(history, converter({"new": NEW}, "new"))).replay_failure
    assert failure is not None, "without the old key the beginning cannot be read"


async def test_encryption_is_switched_on_while_a_turn_runs(
    sqlite_url: str, tmp_path: Path, temporal_address: TemporalAddress
) -> None:
    async with waiting_turn({}, sqlite_url, tmp_path, temporal_address) as (stack, sandboxes, turn_id, workflow_id):
        await speaking(stack, temporal_address, converter(BOTH, "new"))
        async with serving_turns(stack):
            await finish(stack, sandboxes, turn_id)
        history = await stack.client.get_workflow_handle(workflow_id).fetch_history()
    assert keys_of(history) == {"new"}


KEYLESS = {
    "another key": (converter({"new": NEW}, "new"), "encrypted with the key 'old', which this process does not have"),
    "no encryption": (DATA_CONVERTER, "encrypted with the key 'old', which this process does not have"),
}


@pytest.mark.parametrize("case", KEYLESS)
async def test_a_worker_without_the_key_fails_clearly_and_loses_nothing(
    case: str,
    sqlite_url: str,
    tmp_path: Path,
    temporal_address: TemporalAddress,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A turn that waits for its first step, and one in the middle of a command."""
    keyless, said = KEYLESS[case]
    async with waiting_turn(ONE, sqlite_url, tmp_path, temporal_address) as (stack, sandboxes, turn_id, _):
        waiting = await stack.send(await stack.open(tmp_path))
        await Dispatcher(stack.parts.ledger, stack.starter, stack.parts.clock, "test").run_once()
        before = [(await stack.turns.get(each)).turn for each in (turn_id, waiting.turn.turn_id)]
        await speaking(stack, temporal_address, keyless)
        async with serving_turns(stack), asyncio.timeout(60):
            while caplog.text.count(said) < 2:
                await asyncio.sleep(0.1)
        assert [(await stack.turns.get(each)).turn for each in (turn_id, waiting.turn.turn_id)] == before
        await speaking(stack, temporal_address, converter(ONE, "old"))
        async with serving_turns(stack):
            await finish(stack, sandboxes, turn_id)
            await finish(stack, sandboxes, waiting.turn.turn_id)
    handle = stack.client.get_workflow_handle(waiting.turn.workflow_id)
    events = [event.event_type async for event in handle.fetch_history_events()]
    assert events.count(EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED) == 1, "Temporal does not fill the history with it"


async def test_steps_taken_by_a_worker_without_the_key_are_given_to_the_next(
    sqlite_url: str, tmp_path: Path, temporal_address: TemporalAddress, caplog: pytest.LogCaptureFixture
) -> None:
    async with stack_of((Step("Done."),), sqlite_url, tmp_path / "blobs", temporal_address) as (stack, _):
        await speaking(stack, temporal_address, converter(ONE, "old"))
        keyless = await connect(temporal_address, converter({"new": NEW}, "new"))
        session = await stack.open(tmp_path)
        turns, models = (QueuePlan("turns", "models", "sandbox", frozenset({kind})) for kind in ("turns", "models"))
        async with serving_turns(stack, stack.client, turns):
            async with serving_turns(stack, keyless, models):
                begun = await stack.send(session)
                async with asyncio.timeout(60):
                    while "Failed decoding arguments" not in caplog.text:
                        await asyncio.sleep(0.1)
            async with serving_turns(stack, stack.client, models):
                turn = await stack.ended(begun.turn.turn_id, 90)
    assert turn.state is TurnState.COMPLETED
    assert "encrypted with the key 'old', which this process does not have" in caplog.text


async def test_a_step_that_nobody_could_read_is_offered_again_when_its_attempts_are_used_up(
    time_skipping: Client,
) -> None:
    """What the SDK makes of a payload that its codec refuses: a failure of the attempt, with the codec's as cause."""
    attempts = 0
    (payload,) = await EncryptionCodec(ONE, "old").encode(await DATA_CONVERTER.encode(["x"]))

    async def model(_: CallModelParams) -> CallModelResult:
        nonlocal attempts
        attempts += 1
        if attempts <= 2 * CALL_MODEL.retry.maximum_attempts:
            raise ApplicationError("Failed decoding arguments") from unreadable(payload)
        return answer()

    script = Script(model=model)
    async with serving(time_skipping, script, "turns"):
        handle = await start(time_skipping, "turns")
        await handle.result()
    assert script.ended() == (TurnState.COMPLETED, None)
    assert attempts == 2 * CALL_MODEL.retry.maximum_attempts + 1


async def test_other_failures_are_not_offered_again(time_skipping: Client) -> None:
    async def model(_: CallModelParams) -> CallModelResult:
        raise ApplicationError("Failed decoding arguments") from ValueError("something else")

    script = Script(model=model)
    async with serving(time_skipping, script, "turns"):
        await (await start(time_skipping, "turns")).result()
    assert script.ended()[0] is TurnState.FAILED
    assert script.begun("model") == CALL_MODEL.retry.maximum_attempts
    assert PAYLOAD_UNDECODABLE not in str(script.end)
