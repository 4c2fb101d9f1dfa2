"""Faults in the middle of a step, of the ledger and of adapters: work goes on, and nothing false is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import TypeVar

from milepost.domain.effects import EffectState
from milepost.domain.errors import StorageUnavailable
from milepost.domain.events import ModelFailed, ModelRetried, ToolFinished
from milepost.domain.turns import TurnState
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.ports.models import ModelItem, ModelRequest
from milepost.ports.sandbox import Outcome
from milepost.providers.gateway import Gateway
from milepost.storage import FileBlobStore
from milepost.temporal.client import TemporalAddress
from tests.support.databases import OpenLedger
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack, build_stack
from tests.turns.test_turns import call, events_of, script

T = TypeVar("T")


class Outage:
    """A ledger whose reads fail while `down` is set; everything else is the real one's."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.down = False
        self.refused = 0

    @property
    def instance_id(self) -> str:
        return self._ledger.instance_id

    async def read(self, body: Callable[[LedgerTx], T]) -> T:
        if self.down:
            self.refused += 1
            raise StorageUnavailable("The database is restarting.")
        return await self._ledger.read(body)

    async def write(self, body: Callable[[LedgerTx], T]) -> T:
        return await self._ledger.write(body)

    async def check(self) -> None:
        await self._ledger.check()

    async def close(self) -> None:
        await self._ledger.close()


async def test_an_outage_while_a_command_runs_does_not_end_the_command(
    opened: OpenLedger,
    gateway: Gateway,
    sandboxes: MemorySandboxes,
    temporal_address: TemporalAddress,
    tmp_path: Path,
) -> None:
    ledger = Outage(opened.ledger)
    blobs = FileBlobStore(tmp_path / "blobs")
    stack = await build_stack(ledger, opened.notifier, blobs, gateway, sandboxes, temporal_address)
    session = await stack.open(tmp_path)
    responses = script({"calls": [call("bash", command="hang on")]}, {"text": "Done."})
    async with stack.worker():
        begun = await stack.send(session, script=responses)
        async with asyncio.timeout(30):
            while not (session in sandboxes.by_session and sandboxes.by_session[session].commands()):
                await asyncio.sleep(0.02)
            ledger.down = True
            while ledger.refused < 3:
                await asyncio.sleep(0.02)
            ledger.down = False
        (outcome,) = sandboxes.by_session[session].outcomes.values()
        outcome.set_result(Outcome(exit_code=0, stdout=b"whole\n"))
        turn = await stack.ended(begun.turn.turn_id)
    assert turn.state is TurnState.COMPLETED
    (finished,) = [event for event in await events_of(stack, session) if isinstance(event, ToolFinished)]
    assert (finished.state, finished.attempt) == (EffectState.SUCCEEDED, 1)
    assert "whole" in finished.output.text


async def test_a_stop_is_noticed_after_an_outage(
    opened: OpenLedger, gateway: Gateway, temporal_address: TemporalAddress, tmp_path: Path
) -> None:
    ledger = Outage(opened.ledger)
    blobs = FileBlobStore(tmp_path / "blobs")
    stack = await build_stack(ledger, opened.notifier, blobs, gateway, None, temporal_address)
    turn = (await stack.send(await stack.open(tmp_path))).turn
    with stack.stops.watch(turn.turn_id) as signal:
        waiting = asyncio.create_task(signal.wait())
        ledger.down = True
        async with asyncio.timeout(30):
            while ledger.refused < 2:
                await asyncio.sleep(0.02)
            assert not waiting.done()
            ledger.down = False
            await stack.turns.stop(turn.turn_id, actor="test")
            await waiting


class Broken:
    """A gateway with a bug: an error nobody foresaw, for the first attempts."""

    def __init__(self, gateway: Gateway, failures: int) -> None:
        self._gateway = gateway
        self._failures = failures
        self.validate = gateway.validate
        self.check = gateway.check
        self.close = gateway.close

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelItem, None]:
        if request.attempt <= self._failures:
            raise KeyError("choices")
        async for item in self._gateway.stream(request):
            yield item


async def test_an_error_nobody_foresaw_is_recorded_as_what_it_is(
    opened: OpenLedger, gateway: Gateway, temporal_address: TemporalAddress, tmp_path: Path
) -> None:
    blobs = FileBlobStore(tmp_path / "blobs")
    broken = Broken(gateway, failures=1)
    stack: Stack = await build_stack(opened.ledger, opened.notifier, blobs, broken, None, temporal_address)
    session = await stack.open(tmp_path)
    async with stack.worker():
        begun = await stack.send(session, script=script({"text": "Here I am."}))
        turn = await stack.ended(begun.turn.turn_id)
    assert turn.state is TurnState.COMPLETED
    said = [event for event in await events_of(stack, session) if isinstance(event, ModelRetried | ModelFailed)]
    assert [(event.error_code, event.error_message) for event in said] == [("model_fault", "KeyError: 'choices'")]
