"""Coordinators on a real Temporal server and a real ledger."""

from __future__ import annotations

import asyncio

import pytest

from milepost.domain.events import AgentOutput, AgentStarted, ModelCalled
from milepost.domain.team_events import AgentBriefed, GoalDecomposed, SubtaskEnded, SubtasksAwarded
from milepost.domain.teams import SubtaskState
from milepost.domain.turns import TurnState
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack
from tests.teams.conftest import OpenTeam, events_of, plan, script, subtask


def call(tool: str, **args: object) -> dict[str, object]:
    return {"calls": [{"tool": tool, "args": args}]}


async def test_subtasks_go_to_workers_that_have_the_tools_and_their_results_become_one_answer(
    stack: Stack, open_team: OpenTeam, sandboxes: MemorySandboxes
) -> None:
    session = await open_team("lead")
    text = script(
        {
            "lead:plan": [
                "<think>two steps {not json}</think>Here:\n```json\n"
                + plan(subtask("write", tools=("write_file",)), subtask("check", tools=("bash",), after=("write",)))
                + "\n```"
            ],
            "lead/coder": [call("write_file", path="a.txt", content="x"), "The file is written."],
            "lead/runner": [call("bash", command="make test"), "All tests pass."],
            "lead": ["Written and tested."],
        }
    )
    async with stack.worker():
        turn = await stack.ended((await stack.send(session, "write and test", text)).turn.turn_id)
    assert (turn.state, turn.error_message) == (TurnState.COMPLETED, None)
    assert sandboxes.by_session[session].commands() == ["make test"]
    (planned,) = await events_of(stack, session, GoalDecomposed)
    assert [(each.name, each.depends_on) for each in planned.subtasks] == [("write", ()), ("check", (1,))]
    awards = [each for event in await events_of(stack, session, SubtasksAwarded) for each in event.awards]
    assert [(each.subtask, each.worker) for each in awards] == [(1, "coder"), (2, "runner")]
    assert {each.worker: each.millionths for each in awards[0].bids} == {"coder": 1_000_000, "runner": 0}
    ends = await events_of(stack, session, SubtaskEnded)
    assert [(each.state, each.output.text) for each in ends] == [
        (SubtaskState.SUCCEEDED, "The file is written."),
        (SubtaskState.SUCCEEDED, "All tests pass."),
    ]
    briefs = {event.agent: event.text.text for event in await events_of(stack, session, AgentBriefed)}
    assert "The file is written." in briefs["lead/runner"] and "write and test" in briefs["lead/runner"]
    assert "All tests pass." in briefs["lead"]
    outputs = {event.agent: event.text.text for event in await events_of(stack, session, AgentOutput)}
    assert outputs["lead"] == "Written and tested."
    entry = (await stack.history.page(session)).entries[0]
    assert entry.output.text == "Written and tested."


async def test_without_a_fitting_worker_an_ephemeral_one_has_exactly_the_tools(
    stack: Stack, open_team: OpenTeam
) -> None:
    session = await open_team("alone")
    text = script(
        {
            "alone:plan": [plan(subtask("look", tools=("read_file", "bash", "teleport")))],
            "alone/+1": ["I looked."],
            "alone": ["Done."],
        }
    )
    async with stack.worker():
        turn = await stack.ended((await stack.send(session, "look", text)).turn.turn_id)
    assert turn.state is TurnState.COMPLETED
    started = {event.agent: event for event in await events_of(stack, session, AgentStarted)}
    assert [tool.name for tool in started["alone/+1"].tools] == ["read_file", "bash"]
    (planned,) = await events_of(stack, session, GoalDecomposed)
    assert planned.notes == ("'look' asked for tools that there are not: teleport.",)


async def test_a_failed_subtask_takes_those_that_need_it_along_and_not_the_others(
    stack: Stack, open_team: OpenTeam
) -> None:
    session = await open_team("lead")
    text = script(
        {
            "lead:plan": [
                plan(
                    subtask("a", tools=("write_file",)),
                    subtask("b", after=("a",)),
                    subtask("c", after=("b",)),
                    subtask("d", tools=("bash",)),
                )
            ],
            "lead/coder": [{"fail": {"status": 400, "times": 9}}],
            "lead/runner": ["Fine."],
            "lead": ["Part of it is done."],
        }
    )
    async with stack.worker():
        turn = await stack.ended((await stack.send(session, "go", text)).turn.turn_id)
    assert turn.state is TurnState.COMPLETED
    ends = {event.subtask: event.state for event in await events_of(stack, session, SubtaskEnded)}
    assert ends == {
        1: SubtaskState.FAILED,
        2: SubtaskState.SKIPPED,
        3: SubtaskState.SKIPPED,
        4: SubtaskState.SUCCEEDED,
    }
    (brief,) = [event for event in await events_of(stack, session, AgentBriefed) if event.agent == "lead"]
    assert "## d\nFine." in brief.text.text and "## a\n[no result: " in brief.text.text


async def test_when_all_subtasks_fail_the_turn_fails(stack: Stack, open_team: OpenTeam) -> None:
    session = await open_team("lead")
    refused = {"fail": {"status": 400, "times": 9}}
    text = script(
        {
            "lead:plan": [plan(subtask("write", tools=("write_file",)), subtask("more", after=("write",)))],
            "lead/coder": [refused],
            "lead": ["never said"],
        }
    )
    async with stack.worker():
        turn = await stack.ended((await stack.send(session, "go", text)).turn.turn_id)
    assert (turn.state, turn.error_code) == (TurnState.FAILED, "subtasks_failed")
    ends = {event.subtask: event.state for event in await events_of(stack, session, SubtaskEnded)}
    assert ends == {1: SubtaskState.FAILED, 2: SubtaskState.SKIPPED}


@pytest.mark.slow
async def test_a_coordinator_below_a_coordinator(stack: Stack, open_team: OpenTeam) -> None:
    session = await open_team("top")
    text = script(
        {
            "top:plan": [plan(subtask("all"))],
            "top/middle:plan": [plan(subtask("inner", tools=("write_file",)))],
            "top/middle/coder": [call("write_file", path="b", content="1"), "Inner done."],
            "top/middle": ["Middle done."],
            "top": ["Top done."],
        }
    )
    async with stack.worker():
        turn = await stack.ended((await stack.send(session, "nest", text)).turn.turn_id)
    assert (turn.state, turn.error_message) == (TurnState.COMPLETED, None)
    ends = [(e.agent, e.performer, e.output.text) for e in await events_of(stack, session, SubtaskEnded)]
    assert ends == [("top/middle", "top/middle/coder", "Inner done."), ("top", "top/middle", "Middle done.")]
    calls = await events_of(stack, session, ModelCalled)
    assert turn.usage.total_tokens == sum(event.usage.total_tokens for event in calls)


async def test_the_next_turn_sees_what_the_coordinator_said_and_a_worker_what_it_did(
    stack: Stack, open_team: OpenTeam
) -> None:
    session = await open_team("lead")
    for number in (1, 2):
        text = script(
            {
                "lead:plan": [plan(subtask(f"job {number}", tools=("write_file",)))],
                "lead/coder": [f"I did job {number}."],
                "lead": [f"Answer {number}."],
            }
        )
        async with stack.worker():
            turn = await stack.ended((await stack.send(session, f"request {number}", text)).turn.turn_id)
        assert turn.state is TurnState.COMPLETED
    from activities.conversation import Conversations

    conversations = Conversations(stack.parts.ledger, stack.parts.contents)
    seen = {
        part: [getattr(message, "text", "") for message in (await conversations.whole(turn.turn_id, part, 9)).messages]
        for part in ("lead:plan", "lead/coder")
    }
    texts = {part: [text if isinstance(text, str) else text.text for text in found] for part, found in seen.items()}
    assert texts["lead:plan"][0].startswith("request 1") and texts["lead:plan"][1] == "Answer 1."
    assert texts["lead:plan"][2].startswith("request 2\n\n[Do not work")
    assert texts["lead/coder"][0].startswith("Your task: job 1") and texts["lead/coder"][1] == "I did job 1."
    assert texts["lead/coder"][2].startswith("Your task: job 2")


async def test_stop_ends_the_whole_tree(stack: Stack, open_team: OpenTeam, sandboxes: MemorySandboxes) -> None:
    session = await open_team("lead")
    text = script(
        {
            "lead:plan": [plan(subtask("hang", tools=("bash",)), subtask("write", tools=("write_file",)))],
            "lead/runner": [call("bash", command="hang on"), "never"],
            "lead/coder": [{"text": "slow " * 400, "delay": 0.5}],
            "lead": ["never"],
        }
    )
    async with stack.worker():
        turn_id = (await stack.send(session, "go", text)).turn.turn_id
        async with asyncio.timeout(30):
            while not (session in sandboxes.by_session and sandboxes.by_session[session].commands()):
                await asyncio.sleep(0.05)
        await stack.turns.stop(turn_id, actor="test")
        turn = await stack.ended(turn_id, 10)
    assert turn.state is TurnState.STOPPED
    events = await events_of(stack, session)
    assert events[-1].TYPE == "turn.stopped"
    assert not [event for event in events if isinstance(event, SubtaskEnded)]


@pytest.mark.parametrize(
    "kill_after", ["model.called", "coordination.planned", "coordination.awarded", "tool.finished"]
)
async def test_a_lost_worker_repeats_no_finished_step(
    stack: Stack, open_team: OpenTeam, sandboxes: MemorySandboxes, kill_after: str
) -> None:
    session = await open_team("lead")
    text = script(
        {
            "lead:plan": [plan(subtask("write", tools=("write_file",)), subtask("check", tools=("bash",)))],
            "lead/coder": [call("write_file", path="a.txt", content="x"), "Written."],
            "lead/runner": [call("bash", command="make test"), "Tested."],
            "lead": ["Both."],
        }
    )
    subscription = stack.parts.notifier.subscribe(session)
    try:
        async with stack.worker(grace=0):
            turn_id = (await stack.send(session, "go", text)).turn.turn_id
            async with asyncio.timeout(30):
                while kill_after not in {event.TYPE for event in await events_of(stack, session)}:
                    await subscription.wait(1)
    finally:
        subscription.close()
    async with stack.worker():
        turn = await stack.ended(turn_id)
    assert (turn.state, turn.error_message) == (TurnState.COMPLETED, None)
    assert sandboxes.by_session[session].commands() == ["make test"]
    events = await events_of(stack, session)
    assert len([event for event in events if isinstance(event, GoalDecomposed)]) == 1
    calls = [(event.agent, event.round) for event in events if isinstance(event, ModelCalled)]
    assert sorted(calls) == sorted(set(calls)) and len(calls) == 6


@pytest.mark.slow
async def test_stop_reaches_every_worker_three_levels_down(
    stack: Stack, open_team: OpenTeam, sandboxes: MemorySandboxes
) -> None:
    """Five coordinators with five workers each: all 25 are at work when the stop comes."""
    session = await open_team("tree")
    inner = [plan(*(subtask(f"t{n}", tools=("bash",)) for n in range(5)))]
    parts: dict[str, list[object]] = {"tree:plan": [plan(*(subtask(f"b{n}", tools=()) for n in range(5)))]}
    for branch in range(5):
        parts[f"tree/branch{branch}:plan"] = list(inner)
        for leaf in range(5):
            parts[f"tree/branch{branch}/leaf{leaf}"] = [{"text": "word " * 2000, "delay": 0.2}]
    async with stack.worker():
        turn_id = (await stack.send(session, "go", script(parts))).turn.turn_id
        async with asyncio.timeout(60):
            while True:
                open_ = await stack.parts.ledger.read(lambda tx: tx.effects.open_of_turn(turn_id))
                if sum(effect.spec.agent.count("/") == 2 for effect in open_) == 25:
                    break
                await asyncio.sleep(0.1)
        await stack.turns.stop(turn_id, actor="test")
        turn = await stack.ended(turn_id, 20)
        handle = stack.client.get_workflow_handle(turn.workflow_id)
        async with asyncio.timeout(20):
            await handle.result()
        children = [
            execution.id
            async for execution in stack.client.list_workflows(
                f"ExecutionStatus = 'Running' AND WorkflowId STARTS_WITH '{turn.workflow_id}'"
            )
        ]
    assert turn.state is TurnState.STOPPED
    assert children == []
    events = await events_of(stack, session)
    assert events[-1].TYPE == "turn.stopped"
    calls = [event for event in events if isinstance(event, ModelCalled) and event.agent.count("/") == 2]
    assert len(calls) == 25 and all(event.finish == "stopped" for event in calls)
