"""Memory in the loop: what an agent is reminded of, its tools, and what is written after a turn."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from milepost.domain.effects import EffectClass
from milepost.domain.events import ToolFinished
from milepost.domain.memory import DEFAULT_BLOCKS, Scope
from milepost.domain.memory_events import BlockWritten, MemoryForgotten, MemoryRecalled, MemoryWritten
from milepost.domain.turns import TurnState
from milepost.services.blocks import Author, BlockService, set_to
from milepost.services.rewinds import RewindService, RewindTo
from milepost.temporal.client import TemporalAddress
from tests.memory.turning import GIVEN, TEAM, Turning, agent, ledger_url, turning
from tests.support.databases import OpenLedger
from tests.support.driven import short_memory
from tests.support.semantic import WordMemory
from tests.turns.test_turns import call

__all__ = ["ledger_url"]

MEMORY_TOOL_NAMES = [
    "core_memory_append",
    "core_memory_replace",
    "core_memory_set",
    "recall_search",
    "recall_timeframe",
    "forget",
]


@pytest.fixture
def semantic() -> WordMemory:
    return WordMemory()


@pytest.fixture
async def made(
    opened: OpenLedger, temporal_address: TemporalAddress, tmp_path: Path, semantic: WordMemory
) -> AsyncIterator[Turning]:
    agents = [agent("coder", [*DEFAULT_BLOCKS, TEAM, GIVEN]), agent("reviewer", [TEAM])]
    async with turning(opened, temporal_address, tmp_path, semantic, *agents) as found:
        yield found


async def results(made: Turning, session: str) -> list[ToolFinished]:
    return [event for event in await made.events(session) if isinstance(event, ToolFinished)]


async def test_core_blocks_follow_the_system_prompt_and_changes_come_with_the_next_request(made: Turning) -> None:
    session = await made.open("coder")
    await made.turn(
        session,
        "I am Kim.",
        {"calls": [call("core_memory_append", block="human", text="Name: Kim.")]},
        {"text": "Hello Kim."},
    )
    first = made.last
    assert '<persona about="Who you are in this Session and how you work." characters="0/2000"/>' in first.system_prompt
    assert (
        '<given about="What a person wrote." characters="9/2000" read_only>\nBe brief.\n</given>' in first.system_prompt
    )
    assert [tool.name for tool in first.tools][-6:] == MEMORY_TOOL_NAMES
    assert made.asked() == "I am Kim."
    await made.turn(session, "And now?", {"text": "Still Kim."})
    second = made.last
    assert second.system_prompt == first.system_prompt
    assert second.messages[: len(first.messages)] == first.messages
    told = '<core_memory_changed>\n<human characters="10/2000">\nName: Kim.\n</human>\n</core_memory_changed>'
    assert made.asked() == f"{told}\n\nAnd now?"
    await made.turn(session, "Third.", {"text": "Yes."})
    third = made.last
    assert third.messages[: len(second.messages)] == second.messages
    assert made.asked() == "Third."
    recalled = [event for event in await made.events(session) if isinstance(event, MemoryRecalled)]
    assert [event.changed for event in recalled] == [(), ("human",), ()]
    assert [bool(event.base) for event in recalled] == [True, False, False]
    assert {event.base_turn_id for event in recalled} == {recalled[0].turn_id}


async def test_a_shared_block_is_one_for_both_agents_and_a_private_one_is_not(made: Turning) -> None:
    session = await made.open("coder")
    await made.turn(
        session,
        "go",
        {"calls": [call("core_memory_append", block="team", text="Tests run with make.")]},
        {"calls": [call("core_memory_append", block="project", text="Secret of the coder.")]},
        {"text": "ok"},
    )
    other = await made.open("reviewer")
    await made.turn(other, "go", {"text": "ok"}, agent="reviewer")
    assert "Tests run with make." in made.last.system_prompt
    assert "Secret" not in made.last.system_prompt
    assert [tool.name for tool in made.last.tools][-6:] == MEMORY_TOOL_NAMES
    # Both see a version that is at least what was written when their next turn begins.
    await made.turn(
        other,
        "more",
        {"calls": [call("core_memory_append", block="team", text="And fast.")]},
        {"text": "ok"},
        agent="reviewer",
    )
    await made.turn(session, "again", {"text": "ok"})
    assert "Tests run with make.\nAnd fast." in made.asked()


async def test_refused_edits_tell_the_model_why(made: Turning) -> None:
    session = await made.open("coder")
    asked = [
        call("core_memory_set", block="human", value="x" * 2001),
        call("core_memory_set", block="given", value="x"),
        call("core_memory_set", block="nothing", value="x"),
        call("core_memory_replace", block="human", old="absent", new="x"),
        call("recall_timeframe", **{"from": "2026-01-01", "to": "2026-03-01"}),
        call("recall_timeframe", **{"from": "yesterday", "to": "today"}),
        call("recall_search", query="x", k=21),
        call("forget", id="t9.request"),
    ]
    turn = await made.turn(session, "go", {"calls": asked}, {"text": "ok"})
    assert turn.state is TurnState.COMPLETED
    found = {event.index: event for event in await results(made, session)}
    assert all(event.is_error for event in found.values())
    for index, words in enumerate(
        [
            "would have 2001 characters; its limit is 2000",
            "read-only",
            "Your blocks: persona, human, project, team, given",
            "'old' is not in the block 'human'",
            "longer than 31 days",
            "'from' is no date or time: 'yesterday'",
            "'k' is 21; the maximum is 20",
            "no record 't9.request'",
        ]
    ):
        assert words in found[index].output.text, words


async def test_turns_are_written_after_their_end_and_can_be_found(made: Turning, semantic: WordMemory) -> None:
    session = await made.open("coder")
    first = await made.turn(session, "The cat is called Mia.", {"text": "Noted: Mia."})
    await made.remembered()
    asked = [
        call("recall_search", query="cat called"),
        call("recall_timeframe", **{"from": "2020-01-01", "to": "2020-01-02"}),
    ]
    day = "2026-11-30" if first.created_at is None else _day(first.created_at)
    await made.turn(
        session,
        "Who?",
        {"calls": [*asked, call("recall_timeframe", **{"from": day, "to": _day(first.created_at + 86_400_000_000)})]},
        {"calls": [call("forget", id="t1.request")]},
        {"calls": [call("recall_search", query="cat called")]},
        {"text": "Mia"},
    )
    await made.remembered()
    found = await results(made, session)
    by_place = {(event.round, event.index): event.output.text for event in found}
    assert by_place[1, 0].startswith("- [t1.request: turn 1, 20") and "score 1.00] user: The cat" in by_place[1, 0]
    assert by_place[1, 1] == "[nothing was said in that time]"
    assert "user: The cat is called Mia." in by_place[1, 2] and "coder: Noted: Mia." in by_place[1, 2]
    assert by_place[2, 0] == "Forgotten: t1.request."
    assert "t1.request" not in by_place[3, 0]
    events = await made.events(session)
    written = [event for event in events if isinstance(event, MemoryWritten)]
    assert [[entry.id for entry in event.entries] for event in written] == [
        ["t1.request", "t1.answer"],
        ["t2.request", "t2.answer"],
    ]
    (forgotten,) = [event for event in events if isinstance(event, MemoryForgotten)]
    assert (forgotten.ids, forgotten.by) == (("t1.request",), "agent:coder")
    kept = semantic.kept[f"{session}:coder"]
    assert {entry.id: (entry.text, entry.speaker) for entry in kept.values()} == {
        "t1.answer": ("Noted: Mia.", "coder"),
        "t2.request": ("Who?", "user"),
        "t2.answer": ("Mia", "coder"),
    }
    classes = {effect.spec.operation: effect.spec.effect_class for effect in await made.stack.history.effects(session)}
    assert classes["tool:forget"] is EffectClass.INTERNAL_STATE
    assert classes["tool:recall_search"] is EffectClass.OBSERVE


def _day(at: int) -> str:
    from milepost.engine.reminders import day_and_time

    return day_and_time(at)[:10]


async def test_what_is_not_shown_any_more_is_recalled_with_the_request(made: Turning, semantic: WordMemory) -> None:
    session = await made.open("coder")
    with short_memory(2):
        await made.turn(session, "The cat is called Mia.", {"text": "Noted."})
        for number in range(2):
            await made.turn(session, f"Filler {number}", {"text": "ok"})
            assert semantic.searched == [], "all is shown, so nothing is looked for"
        await made.remembered()
        await made.turn(session, "Which cat?", {"text": "Mia"})
        # 'cat' is one of the two words.
        assert made.asked().startswith(
            "<recalled>\nFrom earlier in this Session, for this request:\n- [t1.request: turn 1,"
        )
        assert "score 0.50] user: The cat is called Mia.\n</recalled>\n\nWhich cat?" in made.asked()
        before = made.last
        await made.turn(session, "Quite different", {"text": "ok"})
    sent = [message.text.text for message in made.last.messages if message.kind == "user"]
    assert made.asked() == "Quite different"
    assert [text for text in sent if "<recalled>" in text] == [before.messages[-1].text.text]  # type: ignore[union-attr]
    recalled = [event for event in await made.events(session) if isinstance(event, MemoryRecalled)]
    assert [len(event.items) for event in recalled] == [0, 0, 0, 1, 0]
    assert (recalled[3].items[0].score, recalled[3].items[0].turn_number) == (500_000, 1)
    # The base of turn 1 is not shown any more, so the blocks were told anew.
    assert [event.base_turn_id == event.turn_id for event in recalled] == [True, False, False, True, False]


async def test_a_rewind_hides_what_its_turns_wrote(made: Turning, semantic: WordMemory) -> None:
    session = await made.open("coder")
    await made.turn(session, "one", {"text": "ok"})
    await made.turn(
        session,
        "The cat is Mia.",
        {
            "calls": [
                call("core_memory_set", block="human", value="Has a cat."),
                call("core_memory_set", block="team", value="All."),
            ]
        },
        {"text": "ok"},
    )
    await made.remembered()
    parts = made.stack.parts
    await RewindService(parts.ledger, parts.clock, made.stack.sessions._ids, None).rewind(
        RewindTo(session, "test", number=1)
    )
    await made.turn(session, "cat?", {"calls": [call("recall_search", query="cat")]}, {"text": "?"})
    (found,) = [event for event in await results(made, session) if event.tool == "recall_search"]
    assert found.output.text == "[nothing fits]"
    assert made.asked().endswith("cat?") and "<human" not in made.asked(), "a private block is as it was"
    assert "<team characters" in made.asked(), "a shared one stays"


async def test_broken_memory_fails_no_turn_and_is_told(made: Turning, semantic: WordMemory) -> None:
    session = await made.open("coder")
    await made.turn(session, "The cat is Mia.", {"text": "ok"})
    await made.remembered()
    assert not _files(made.folder)
    semantic.failing = True
    with short_memory(0):
        asked = [call("recall_search", query="cat"), call("core_memory_append", block="human", text="x")]
        turn = await made.turn(session, "cat?", {"calls": asked}, {"text": "?"})
    assert turn.state is TurnState.COMPLETED
    recalled = [event for event in await made.events(session) if isinstance(event, MemoryRecalled)]
    assert recalled[-1].notes == ("Nothing was recalled: The semantic memory is down.",)
    found = {event.tool: event for event in await results(made, session)}
    assert found["recall_search"].is_error and "down" in found["recall_search"].output.text
    assert not found["core_memory_append"].is_error
    tasks = await made.stack.parts.ledger.read(lambda tx: tx.memory_tasks.of_session(session))
    assert [task.subject for task in tasks] == [turn.turn_id]
    # Blocks that cannot be read leave the prompt as it was.
    (path,) = _files(made.folder)
    _write(path, b"{")
    await made.turn(session, "again", {"text": "?"})
    recalled = [event for event in await made.events(session) if isinstance(event, MemoryRecalled)]
    assert recalled[-1].notes[0].startswith("Core memory could not be read: The core blocks in")
    assert made.last.system_prompt == made.gateway.requests[-2].system_prompt
    # Nor does what nobody has foreseen.
    wrong = {"number": 1, "value": 5, "at": 1, "by": "?", "key": "k"}
    file = {"format": "milepost.core", "version": 1, "owner": f"{session}:coder", "blocks": {"human": [wrong]}}
    _write(path, json.dumps(file).encode())
    with short_memory(0), pytest.MonkeyPatch.context() as patch:
        patch.setattr(semantic, "search", _broken)
        turn = await made.turn(session, "cat once more", {"text": "?"})
    assert turn.state is TurnState.COMPLETED
    recalled = [event for event in await made.events(session) if isinstance(event, MemoryRecalled)]
    assert [note.split(":")[0] for note in recalled[-1].notes] == [
        "Core memory could not be read",
        "Nothing was recalled",
    ]
    semantic.failing = False
    await made.remembered()
    assert len([event for event in await made.events(session) if isinstance(event, MemoryWritten)]) == 4


async def _broken(*_: object, **__: object) -> None:
    raise RuntimeError("an index")


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("memory/core/v1/*.json"))


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


async def test_a_stop_does_not_wait_for_memory(made: Turning, semantic: WordMemory) -> None:
    session = await made.open("coder")
    await made.turn(session, "The cat is Mia.", {"text": "ok"})
    await made.remembered()
    semantic.hang = True
    with short_memory(0):
        begun = await made.stack.send(session, "cat?")
        while not semantic.searched:
            await made.stack.parts.notifier.subscribe("x").wait(0.02)
        await made.stack.turns.stop(begun.turn.turn_id, actor="person")
        turn = await made.stack.ended(begun.turn.turn_id)
    assert turn.state is TurnState.STOPPED
    assert len(made.gateway.requests) == 1
    semantic.hang = False


async def test_what_a_person_writes_is_told_with_the_next_request(made: Turning) -> None:
    session = await made.open("coder")
    await made.turn(session, "one", {"text": "ok"})
    edits = made.stores.edits(made.stack.parts.ledger, made.stack.parts.clock)
    owner = Scope.agent(session, "coder")
    await edits.edit(session, owner, GIVEN, Author("person", "edt_1", 5), set_to("Be long."))
    await made.turn(session, "two", {"text": "ok"})
    assert "<given characters" in made.asked() and "Be long." in made.asked()
    (event,) = [event for event in await made.events(session) if isinstance(event, BlockWritten)]
    assert (event.label, event.value, event.by, event.turn_id) == ("given", "Be long.", "person", None)
    blocks = BlockService(made.stack.parts.ledger, made.stores.blocks)
    assert (await blocks.one(owner, GIVEN)).number == 1
