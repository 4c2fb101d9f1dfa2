"""Memory of forks and imports, and memory made anew: from the ledger alone, and nothing of the past runs again."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from milepost.bootstrap.system import UuidIds
from milepost.domain.errors import MemoryUnavailable
from milepost.domain.events import StreamKind
from milepost.domain.memory import DEFAULT_BLOCKS, Scope
from milepost.domain.memory_events import MemoryForgotten, MemoryRecalled
from milepost.embedders.lexical import LexicalHash
from milepost.memory.places import Places
from milepost.memory.semantic import IndexedMemory
from milepost.ports.ledger import NewEvent
from milepost.services import remembering
from milepost.services.blocks import Author
from milepost.services.exporting.service import ExportFormat, ExportService
from milepost.services.forks import ForkFrom, ForkService
from milepost.services.importing.service import ImportOptions, ImportService
from milepost.services.memory import MemoryService
from milepost.services.memory_rebuild import MemoryRebuild
from milepost.services.rewinds import RewindService, RewindTo
from milepost.storage.semantic_files import FileSemanticStore
from milepost.temporal.client import TemporalAddress
from tests.memory.turning import GIVEN, TEAM, Turning, agent, ledger_url, turning
from tests.support.databases import OpenLedger
from tests.support.semantic import WordMemory
from tests.turns.test_turns import call

__all__ = ["ledger_url"]

AGENT = "coder"
WRITTEN = (("human", "one"), ("team", "t"))


@pytest.fixture
async def made(opened: OpenLedger, temporal_address: TemporalAddress, tmp_path: Path) -> AsyncIterator[Turning]:
    agents = [agent(AGENT, [*DEFAULT_BLOCKS, TEAM, GIVEN])]
    async with turning(opened, temporal_address, tmp_path, WordMemory(), *agents) as found:
        yield found


def service(made: Turning) -> MemoryService:
    parts = made.stack.parts
    return MemoryService(parts.ledger, parts.clock, UuidIds(), parts.agents, made.stores)


async def course(made: Turning) -> str:
    """Two turns that write blocks, a person's edits around them, a forgotten record, and a turn that was rewound."""
    memory = service(made)
    session = await made.open(AGENT)
    await memory.write(session, AGENT, "given", "Before all.", "kim")
    await made.turn(
        session,
        "The cat is Mia.",
        {"calls": [call("core_memory_set", block=block, value=value) for block, value in WRITTEN]},
        {"text": "Noted."},
    )
    await made.remembered()
    await memory.write(session, AGENT, "given", "After the first.", "kim")
    await made.turn(
        session,
        "The dog is Rex.",
        {"calls": [call("core_memory_append", block="human", text="two"), call("forget", id="t1.answer")]},
        {"text": "Noted too."},
    )
    await made.remembered()
    await made.turn(
        session, "Gone.", {"calls": [call("core_memory_set", block="human", value="x")]}, {"text": "Gone too."}
    )
    await made.remembered()
    parts = made.stack.parts
    rewinds = RewindService(parts.ledger, parts.clock, UuidIds(), None)
    await rewinds.rewind(RewindTo(session, "kim", number=2))
    return session


async def state(made: Turning, session: str) -> dict[str, Any]:
    """What a person finds."""
    memory = service(made)
    values = {block.spec.label: block.value for block in await memory.blocks(session, AGENT)}
    log = [dated.entry.text for dated in await memory.log(session, AGENT, None, None) if not dated.superseded]
    records = await memory.records(session, AGENT, before=None, limit=100)
    return {"values": values, "log": log, "records": sorted(record.text for record in records)}


WHOLE = {
    "values": {"persona": "", "human": "one\ntwo", "project": "", "team": "t", "given": "After the first."},
    "log": ["The cat is Mia.", "Noted.", "The dog is Rex.", "Noted too."],
    "records": ["Noted too.", "The cat is Mia.", "The dog is Rex."],
}


async def test_memory_is_made_anew_from_the_ledger(made: Turning) -> None:
    session = await course(made)
    assert await state(made, session) == WHOLE
    shutil.rmtree(made.folder / "memory" / "core" / "v1")
    shutil.rmtree(made.folder / "memory" / "daily_log")
    await made.stores.semantic.delete(Scope.agent(session, AGENT))
    await service(made).rebuild(session)
    await made.remembered()
    assert await state(made, session) == WHOLE
    history = (await service(made).block(session, AGENT, "human")).history
    assert [(version.number, version.value, hidden) for version, hidden in history] == [
        (3, "x", True),
        (2, "one\ntwo", False),
        (1, "one", False),
    ]
    await service(made).rebuild(session)
    await made.remembered()
    assert await state(made, session) == WHOLE
    before = made.gateway.requests[-2].system_prompt
    await made.turn(session, "And now?", {"text": "ok"})
    assert made.last.system_prompt == before


async def test_a_fork_remembers_what_was_known_at_its_point(made: Turning) -> None:
    session = await course(made)
    parts = made.stack.parts
    forks = ForkService(parts.ledger, parts.clock, UuidIds(), None, lambda path: path)
    calls = len(await made.stack.history.effects(session))
    for number, wanted in (
        (
            1,
            {
                "values": WHOLE["values"] | {"human": "one"},
                "log": ["The cat is Mia.", "Noted."],
                "records": ["Noted.", "The cat is Mia."],
            },
        ),
        (2, WHOLE),
    ):
        fork = (await forks.fork(ForkFrom(session, "kim", number=number))).session.session_id
        await made.remembered()
        assert await state(made, fork) == wanted
        again = (await forks.fork(ForkFrom(fork, "kim"))).session.session_id
        await made.remembered()
        assert await state(made, again) == wanted, "a fork of a fork knows the same"
        await made.turn(fork, "Go on.", {"text": "ok"})
        assert made.asked().endswith("Go on.")
    assert len(await made.stack.history.effects(session)) == calls
    assert await state(made, session) == WHOLE


async def test_a_rebuild_that_takes_long_is_finished_and_keeps_nobody_waiting(
    made: Turning, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than another task may take: its lease is renewed, it is done once, and other turns are written."""
    monkeypatch.setattr(remembering, "TASK_SECONDS", 1.0)
    monkeypatch.setattr(remembering, "RENEW_SECONDS", 0.1)
    monkeypatch.setattr(remembering, "LOOK_SECONDS", 0.1)
    session = await made.open(AGENT)
    await made.turn(session, "The cat is Mia.", {"text": "Noted."})
    await made.remembered()
    begun, go_on = [], asyncio.Event()
    drop, hold, held = made.stores.daily.drop, remembering.MemoryWriter._hold, list[bool]()

    def holding(*given: Any, **named: Any) -> None:
        held.append(hold(*given, **named))

    monkeypatch.setattr(remembering.MemoryWriter, "_hold", holding)

    async def slow(scope: Scope) -> None:
        begun.append(scope)
        await go_on.wait()
        await drop(scope)

    monkeypatch.setattr(made.stores.daily, "drop", slow)
    await service(made).rebuild(session)
    async with asyncio.timeout(60):
        while not begun:
            await asyncio.sleep(0.02)
    other = await made.open(AGENT)
    await made.turn(other, "The dog is Rex.", {"text": "Noted."})
    async with asyncio.timeout(60):
        while (await state(made, other))["records"] != ["Noted.", "The dog is Rex."]:
            await asyncio.sleep(0.02)
    async with asyncio.timeout(60):
        while len(held) < 20:
            await asyncio.sleep(0.02)
    go_on.set()
    await made.remembered()
    assert len(begun) == 1 and all(held)
    assert (await state(made, session))["records"] == ["Noted.", "The cat is Mia."]


async def test_forged_events_do_not_keep_memory_from_being_made(made: Turning, tmp_path: Path) -> None:
    semantic = IndexedMemory(FileSemanticStore(Places(tmp_path / "own").semantic), LexicalHash())
    ledger = made.stack.parts.ledger
    session = await made.open(AGENT)
    await made.turn(session, "The cat is Mia.", {"text": "Noted."})
    await made.remembered()
    events = [
        NewEvent(f"forged/{number}", MemoryForgotten(None, None, AGENT, (name,), "kim"), None)
        for number, name in enumerate(("a\0b", "\ud800", "x" * 5000))
    ]
    await ledger.write(lambda tx: tx.events.append(session, StreamKind.SESSION, events, 1))
    rebuild = MemoryRebuild(ledger, made.stack.parts.contents, made.stores.blocks, made.stores.daily, semantic)
    await rebuild.run(session)
    assert {record.id for record in await semantic.page(Scope.agent(session, AGENT))} == {"t1.request", "t1.answer"}
    await semantic.close()


async def test_a_fork_forgets_what_was_forgotten(made: Turning) -> None:
    """Also where its turns have other numbers, and what was forgotten after its point; what was said again stays."""
    memory, parts = service(made), made.stack.parts
    session = await made.open(AGENT)
    for text in ("The cat is Mia.", "Gone.", "Nothing."):
        await made.turn(session, text, {"text": f"Noted: {text}"})
    await made.remembered()
    await RewindService(parts.ledger, parts.clock, UuidIds(), None).rewind(RewindTo(session, "kim", number=1))
    await made.turn(session, "The key is 1234.", {"text": "Noted: 1234."})  # turn 4, the fork's second
    await made.remembered()
    await made.turn(session, "Forget it.", {"calls": [call("forget", id="t4.request")]}, {"text": "Done."})
    await made.remembered()
    assert await memory.forget(session, AGENT, ["t4.answer", "t1.answer"], "kim") == ["t4.answer", "t1.answer"]
    await made.turn(session, "The key is 1234.", {"text": "Again."})
    await made.remembered()
    left = ["Again.", "Done.", "Forget it.", "The cat is Mia.", "The key is 1234."]
    assert (await state(made, session))["records"] == left
    forks = ForkService(parts.ledger, parts.clock, UuidIds(), None, lambda path: path)
    fork = (await forks.fork(ForkFrom(session, "kim"))).session.session_id
    early = (await forks.fork(ForkFrom(session, "kim", number=1))).session.session_id
    again = (await forks.fork(ForkFrom(fork, "kim"))).session.session_id
    await made.remembered()
    assert (await state(made, fork))["records"] == left
    assert (await state(made, again))["records"] == left
    assert (await state(made, early))["records"] == ["The cat is Mia."]
    await memory.forget(fork, AGENT, ["t1.request"], "kim")
    assert "The cat is Mia." not in (await state(made, fork))["records"]
    assert (await state(made, session))["records"] == left, "what a fork forgets is the fork's alone"


async def test_what_was_forgotten_when_the_process_was_killed_does_not_come_back(
    made: Turning, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was done by then: erased and not told would bring it back when the memory is made anew."""
    session = await made.open(AGENT)
    await made.turn(session, "The key is 1234.", {"text": "Noted."})
    await made.remembered()
    edits, scope = made.stores.edits(made.stack.parts.ledger, made.stack.parts.clock), Scope.agent(session, AGENT)
    author = Author(by="person:kim", key="edt_1", at=1)

    async def killed(*_: object) -> list[str]:
        raise MemoryUnavailable("The process was killed.")

    with monkeypatch.context() as patch:
        patch.setattr(edits, "_tell", killed)
        with pytest.raises(MemoryUnavailable):
            await edits.forget(scope, ["t1.request"], author)
    assert (await state(made, session))["records"] == ["Noted.", "The key is 1234."], "neither told nor done"
    with monkeypatch.context() as patch:
        patch.setattr(made.stores.semantic, "forget", killed)
        with pytest.raises(MemoryUnavailable):
            await edits.forget(scope, ["t1.request"], author)
    assert await edits.forget(scope, ["t1.request"], author) == ["t1.request"], "the same call goes on"
    assert await edits.forget(scope, ["t1.request"], author) == ["t1.request"]
    await service(made).rebuild(session)
    await made.remembered()
    assert (await state(made, session))["records"] == ["Noted."]


async def test_an_import_remembers_what_was_exported(made: Turning) -> None:
    session = await course(made)
    parts = made.stack.parts
    exports = ExportService(parts.ledger, parts.contents, parts.clock, "0.1.0")
    with tempfile.TemporaryFile() as file:
        async for piece in await exports.export(session, ExportFormat.JSON):
            file.write(piece)
        file.seek(0)
        imports = ImportService(parts.ledger, parts.contents, parts.clock, UuidIds())
        done = await imports.load(file, ImportOptions(workspace=str(made.folder)))
    assert done.created and done.session_id != session
    requests = len(made.gateway.requests)
    await made.remembered()
    assert await state(made, done.session_id) == WHOLE
    assert len(made.gateway.requests) == requests, "nothing of the past ran again"
    await made.turn(done.session_id, "Go on.", {"text": "ok"})
    recalled = [event for event in await made.events(done.session_id) if isinstance(event, MemoryRecalled)]
    assert len({event.base_turn_id for event in recalled}) == 1, "the prompt goes on as it was"
    assert made.last.system_prompt.count("<core_memory>") == 1


async def test_markdown_and_html_tell_what_was_recalled(made: Turning) -> None:
    session = await course(made)
    await service(made).write(session, AGENT, "given", "Told again.", "kim")
    await made.turn(session, "And?", {"text": "ok"})
    parts = made.stack.parts
    exports = ExportService(parts.ledger, parts.contents, parts.clock, "0.1.0")
    for wanted in (ExportFormat.MARKDOWN, ExportFormat.HTML):
        text = b"".join([piece async for piece in await exports.export(session, wanted)]).decode()
        assert "Reminded of" in text and "Told again." in text
    entry = (await made.stack.history.page(session)).entries[0]
    reminder = entry.agents[0].reminder
    assert reminder is not None and reminder.changed == ("human", "given")
    await made.remembered()
    assert (await made.stack.history.page(session)).entries[0].agents[0].written
