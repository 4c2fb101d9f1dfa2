"""Turns of several agents in which something goes wrong."""

from __future__ import annotations

import asyncio

from milepost.domain.events import ModelCalled, ModelFailed
from milepost.domain.team_events import AgentBriefed, SubtaskEnded
from milepost.domain.teams import SubtaskState
from milepost.domain.turns import TurnState
from milepost.domain.usage import Usage
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack
from tests.teams.conftest import OpenTeam, events_of, plan, script, subtask

REFUSED = {"fail": {"status": 400, "times": 9}}


async def test_a_worker_whose_subtask_failed_before_it_said_a_word_is_asked_the_next_one(
    stack: Stack, open_team: OpenTeam
) -> None:
    session = await open_team("lead")
    text = script(
        {
            "lead:plan": [plan(subtask("first", tools=("write_file",)), subtask("second", tools=("write_file",)))],
            "lead/coder": [REFUSED],
        }
    )
    async with stack.worker():
        await stack.ended((await stack.send(session, "go", text)).turn.turn_id)
    asked = [e.text.text[:18] for e in await events_of(stack, session, AgentBriefed) if e.agent == "lead/coder"]
    assert asked == ["Your task: first\n\n", "Your task: second\n"]
    failed = [e.effect_id for e in await events_of(stack, session, ModelFailed) if e.agent == "lead/coder"]
    assert len(set(failed)) == 2


async def test_a_coordinator_sees_what_the_agents_it_depends_on_left(stack: Stack, open_team: OpenTeam) -> None:
    session = await open_team("scout", "heir")
    text = script(
        {
            "scout": ["Found three files."],
            "heir:plan": [plan(subtask("write", tools=("write_file",)))],
            "heir/coder": ["Written."],
            "heir": ["Done."],
        }
    )
    async with stack.worker():
        turn = await stack.ended((await stack.send(session, "go", text)).turn.turn_id)
    assert (turn.state, turn.error_message) == (TurnState.COMPLETED, None)
    briefs = {event.agent: event.text.text for event in await events_of(stack, session, AgentBriefed)}
    assert "Found three files." in briefs["heir:plan"]
    assert "Found three files." in briefs["heir"] and "Written." in briefs["heir"]


async def test_when_all_subtasks_fail_the_turn_says_why(stack: Stack, open_team: OpenTeam) -> None:
    session = await open_team("lead")
    text = script({"lead:plan": [plan(subtask("write", tools=("write_file",)))], "lead/coder": [REFUSED]})
    async with stack.worker():
        turn = await stack.ended((await stack.send(session, "go", text)).turn.turn_id)
    (ended,) = await events_of(stack, session, SubtaskEnded)
    assert turn.error_code == "subtasks_failed" and ended.error_message
    assert f"All 1 subtasks failed. The first: {ended.error_message}" in (turn.error_message or "")


async def test_a_worker_whose_workflow_somebody_ended_in_temporal_is_told_as_failed(
    stack: Stack, open_team: OpenTeam, sandboxes: MemorySandboxes
) -> None:
    session = await open_team("lead")
    text = script(
        {
            "lead:plan": [plan(subtask("hang", tools=("bash",)), subtask("write", tools=("write_file",)))],
            "lead/runner": [{"calls": [{"tool": "bash", "args": {"command": "hang on"}}]}, "never"],
            "lead/coder": ["Written."],
            "lead": ["Half of it."],
        }
    )
    async with stack.worker():
        turn = (await stack.send(session, "go", text)).turn
        async with asyncio.timeout(30):
            while not (session in sandboxes.by_session and sandboxes.by_session[session].commands()):
                await asyncio.sleep(0.05)
        await stack.client.get_workflow_handle(f"{turn.workflow_id}/lead/runner/1").terminate("by hand")
        ended = await stack.ended(turn.turn_id)
    assert ended.state is TurnState.COMPLETED
    ends = {event.subtask: event.state for event in await events_of(stack, session, SubtaskEnded)}
    assert ends == {1: SubtaskState.FAILED, 2: SubtaskState.SUCCEEDED}
    sandbox = sandboxes.by_session[session]
    assert sandbox.journal[0][0] in sandbox.killed, "what it ran was left running"


async def test_what_workers_use_counts_for_their_coordinators_turn(stack: Stack, open_team: OpenTeam) -> None:
    session = await open_team("poor")
    text = script(
        {
            "poor:plan": [plan(subtask("write", tools=("write_file",)))],
            "poor/coder": ["Written."],
            "poor": ["It may not say this any more."],
        }
    )
    async with stack.worker():
        turn = await stack.ended((await stack.send(session, "go", text)).turn.turn_id)
    assert (turn.state, turn.error_code) == (TurnState.FAILED, "budget_exceeded")
    calls = await events_of(stack, session, ModelCalled)
    assert [event.agent for event in calls] == ["poor:plan", "poor/coder"]
    entry = (await stack.history.page(session)).entries[0]
    parts = sum((agent.usage for agent in entry.agents), Usage())
    spent = (await stack.history.usage(session)).spending.usage
    assert turn.usage.total_tokens == parts.total_tokens == spent.total_tokens > 0
