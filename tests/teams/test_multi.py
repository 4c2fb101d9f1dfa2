"""Several agents of one Session: order, one sandbox, failures."""

from __future__ import annotations

import asyncio

import pytest

from milepost.bootstrap.system import UuidIds
from milepost.domain.approvals import ApprovalState
from milepost.domain.errors import InvalidInput
from milepost.domain.events import AgentOutput, ToolFinished, ToolStarted
from milepost.domain.sessions import SessionMode
from milepost.domain.team_events import AgentBriefed, AgentEnded
from milepost.domain.turns import TurnState
from milepost.services.approvals import ApprovalService
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack
from tests.teams.conftest import OpenTeam, events_of, script
from tests.turns.test_approvals import YES

REFUSED = {"fail": {"status": 400, "times": 9}}


def bash(command: str) -> dict[str, object]:
    return {"calls": [{"tool": "bash", "args": {"command": command}}]}


async def test_each_agent_begins_when_what_it_depends_on_has_ended_and_sees_it(
    stack: Stack, open_team: OpenTeam
) -> None:
    session = await open_team("scout", "writer", "critic", "editor")
    assert (await stack.sessions.get(session)).mode is SessionMode.MULTI
    text = script(
        {
            "scout": ["Found three files."],
            "writer": [{"text": "Draft.", "delay": 0.02}],
            "critic": ["Too long."],
            "editor": ["Final."],
        }
    )
    async with stack.worker():
        turn = await stack.ended((await stack.send(session, "write it", text)).turn.turn_id)
    assert (turn.state, turn.error_message) == (TurnState.COMPLETED, None)
    briefs = {event.agent: event.text.text for event in await events_of(stack, session, AgentBriefed)}
    assert "scout" not in briefs
    assert "Found three files." in briefs["writer"] and "Found three files." in briefs["critic"]
    assert "Draft." in briefs["editor"] and "Too long." in briefs["editor"]
    outputs = [(event.agent, event.text.text) for event in await events_of(stack, session, AgentOutput)]
    assert outputs[0] == ("scout", "Found three files.") and outputs[-1] == ("editor", "Final.")
    assert len(outputs) == 4
    entry = (await stack.history.page(session)).entries[0]
    assert entry.output.text == "Final."
    assert {agent.agent for agent in entry.agents} == {"scout", "writer", "critic", "editor"}


async def test_after_a_failure_nothing_new_begins_and_the_turn_says_who_failed(
    stack: Stack, open_team: OpenTeam
) -> None:
    session = await open_team("scout", "writer", "optional")
    text = script({"scout": [REFUSED], "writer": ["never"], "optional": ["Mine is done."]})
    async with stack.worker():
        turn = await stack.ended((await stack.send(session, "go", text)).turn.turn_id)
    assert turn.state is TurnState.FAILED and "Agent 'scout' failed" in (turn.error_message or "")
    outputs = [(event.agent, event.text.text) for event in await events_of(stack, session, AgentOutput)]
    assert outputs == [("optional", "Mine is done.")]


async def test_an_agent_that_may_be_missing_does_not_fail_the_turn(stack: Stack, open_team: OpenTeam) -> None:
    session = await open_team("optional", "scout")
    text = script({"optional": [REFUSED], "scout": ["Found."]})
    async with stack.worker():
        turn = await stack.ended((await stack.send(session, "go", text)).turn.turn_id)
    assert turn.state is TurnState.COMPLETED
    ends = {event.agent: event.state for event in await events_of(stack, session, AgentEnded)}
    assert ends == {"optional": TurnState.FAILED, "scout": TurnState.COMPLETED}


async def test_a_command_that_must_be_alone_waits_for_other_agents_calls(
    stack: Stack, open_team: OpenTeam, sandboxes: MemorySandboxes
) -> None:
    session = await open_team("shell", "runner")
    text = script({"shell": [bash("hang here"), "done"], "runner": [bash("make"), "done"]})
    async with stack.worker():
        turn_id = (await stack.send(session, "go", text)).turn.turn_id
        async with asyncio.timeout(30):
            while not (session in sandboxes.by_session and sandboxes.by_session[session].commands()):
                await asyncio.sleep(0.02)
            sandbox = sandboxes.by_session[session]
            if sandbox.commands() == ["hang here"]:
                # The other one has called its model and waits.
                await asyncio.sleep(1)
                assert sandbox.commands() == ["hang here"]
                await sandbox.kill(sandbox.journal[0][0])
        async with asyncio.timeout(30):
            while len(sandbox.commands()) < 2:
                await asyncio.sleep(0.02)
        if sandbox.commands()[1] == "hang here":
            await sandbox.kill(sandbox.journal[1][0])
        await stack.ended(turn_id)
    places = [(event.TYPE, event.agent) for event in await events_of(stack, session, ToolStarted, ToolFinished)]
    first = places[0][1]
    assert places[1] == ("tool.finished", first)


async def test_an_answer_reaches_the_agent_that_waits_for_it(stack: Stack, open_team: OpenTeam) -> None:
    session = await open_team("asker", "scout")
    service = ApprovalService(stack.parts.ledger, stack.parts.clock, UuidIds())
    text = script({"asker": [bash("deploy"), "Deployed."], "scout": ["Found."]})
    async with stack.worker():
        turn_id = (await stack.send(session, "go", text)).turn.turn_id
        async with asyncio.timeout(30):
            while not (waiting := await service.page(session_id=session, state=ApprovalState.PENDING)):
                await asyncio.sleep(0.05)
        await service.answer(waiting[0].approval_id, YES)
        turn = await stack.ended(turn_id, 20)
    assert turn.state is TurnState.COMPLETED
    outputs = {event.agent: event.text.text for event in await events_of(stack, session, AgentOutput)}
    assert outputs["asker"] == "Deployed."


@pytest.mark.parametrize(
    ("agents", "words"),
    [
        (("writer",), None),
        (("scout", "scout"), "different agents"),
        (("writer", "editor"), "depends on"),
    ],
)
async def test_a_session_whose_agents_do_not_fit_is_refused(
    open_team: OpenTeam, agents: tuple[str, ...], words: str | None
) -> None:
    if words is None:
        assert await open_team(*agents)
        return
    with pytest.raises(InvalidInput, match=words):
        await open_team(*agents)
