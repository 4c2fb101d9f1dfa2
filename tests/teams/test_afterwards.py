"""What comes after a turn of several agents: rewind, retry, fork, and the memory of workers."""

from __future__ import annotations

import pytest

from activities.conversation import Conversations
from milepost.bootstrap.system import UuidIds
from milepost.domain.events import ModelCalled
from milepost.domain.messages import Message
from milepost.domain.team_events import AgentBriefed, GoalDecomposed
from milepost.domain.turns import TurnState
from milepost.services.forks import ForkFrom, ForkService
from milepost.services.rewinds import RewindService, RewindTo
from milepost.services.turns import RetryTurn
from tests.support.temporal import Stack
from tests.teams.conftest import OpenTeam, events_of, plan, script, subtask

pytestmark = pytest.mark.slow


def job(number: int) -> str:
    return script(
        {
            "lead:plan": [plan(subtask(f"job {number}", tools=("write_file",)))],
            "lead/coder": [f"I did job {number}."],
            "lead": [f"Answer {number}."],
        }
    )


def said(messages: tuple[Message, ...]) -> str:
    texts = [getattr(message, "text", "") for message in messages]
    return "\n".join(text if isinstance(text, str) else text.text for text in texts)


async def shown(stack: Stack, turn_id: str, part: str) -> str:
    context = await Conversations(stack.parts.ledger, stack.parts.contents).whole(turn_id, part, 9)
    return said(context.messages)


async def test_a_rewind_hides_what_workers_did_and_a_retry_plans_anew(stack: Stack, open_team: OpenTeam) -> None:
    session = await open_team("lead")
    rewinds = RewindService(stack.parts.ledger, stack.parts.clock, UuidIds(), None, networked=False)
    async with stack.worker():
        for number in (1, 2):
            first = await stack.ended((await stack.send(session, f"request {number}", job(number))).turn.turn_id)
        await rewinds.rewind(RewindTo(session, "test", number=1))
        third = await stack.ended((await stack.send(session, "request 3", job(3))).turn.turn_id)
        again = await stack.turns.retry(RetryTurn(third.turn_id))
        fourth = await stack.ended(again.turn.turn_id)
    assert (first.state, third.state, fourth.state) == (TurnState.COMPLETED,) * 3
    for part in ("lead:plan", "lead/coder"):
        text = await shown(stack, third.turn_id, part)
        assert "1" in text and "job 2" not in text and "Answer 2" not in text
    assert len(await events_of(stack, session, GoalDecomposed)) == 4
    assert "I did job 3." in await shown(stack, fourth.turn_id, "lead/coder")


async def test_a_fork_goes_on_with_the_workers_conversations(stack: Stack, open_team: OpenTeam) -> None:
    session = await open_team("lead")
    forks = ForkService(stack.parts.ledger, stack.parts.clock, UuidIds(), None, lambda path: path)
    async with stack.worker():
        await stack.ended((await stack.send(session, "request 1", job(1))).turn.turn_id)
        fork = await forks.fork(ForkFrom(session, "test"))
        copy = fork.session.session_id
        turn = await stack.ended((await stack.send(copy, "request 2", job(2))).turn.turn_id)
    assert turn.state is TurnState.COMPLETED
    text = await shown(stack, turn.turn_id, "lead/coder")
    assert "I did job 1." in text and "Your task: job 2" in text
    own = [event for event in await events_of(stack, copy, AgentBriefed, ModelCalled) if event.turn_id == turn.turn_id]
    assert {event.agent for event in own} == {"lead:plan", "lead/coder", "lead"}
