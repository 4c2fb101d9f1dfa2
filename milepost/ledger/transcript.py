"""From events to the conversation a model gets. Pure; always valid: every call has exactly one result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from milepost.domain.content import Content
from milepost.domain.events import ContextCompacted, Event, ModelCalled, ToolFinished, TurnBegun
from milepost.domain.memory_events import MemoryRecalled
from milepost.domain.messages import AssistantMessage, Message, ToolMessage, UserMessage
from milepost.domain.outputs import OutputRef
from milepost.domain.team_events import AgentBriefed
from milepost.domain.teams import is_worker

TRANSCRIPT_EVENTS = (
    TurnBegun.TYPE,
    MemoryRecalled.TYPE,
    AgentBriefed.TYPE,
    ModelCalled.TYPE,
    ToolFinished.TYPE,
    ContextCompacted.TYPE,
)

PROJECTION = 2
"""Counts up with each change of what `turn_messages` makes of the same events: older checkpoints are not read then."""

NO_RESULT = "The call was cancelled before it had a result."
SHORTENED = "[shortened; read_output has all of it under ref {ref}]"


@dataclass(frozen=True, slots=True)
class Part:
    """What belongs together of a conversation: a turn's request (round 0), or a model round with its results.

    `turns` counts the live turns from it to the turn whose conversation this is, `number` is its own turn's.
    """

    turns: int
    number: int
    round: int
    messages: tuple[Message, ...]


def turn_messages(events: Iterable[Event], agent: str, *, readable: bool = False) -> list[Message]:
    """The messages of one turn as one agent sees them, results in the order of the calls.

    A call without a recorded result (a turn that was stopped or interrupted) gets a synthetic error result, so that
    every provider accepts the next request. A worker sees its subtasks instead of the person's request. With
    `readable`, a result that is not the whole output says where that is.
    """
    relevant = list(events)
    number = next((event.number for event in relevant if isinstance(event, TurnBegun)), 0)
    # By place, not by id: ids are the provider's, and nothing here rests on their being unique.
    results = {
        (event.round, event.index): ToolMessage(
            event.call_id, event.tool, _shown(event, number if readable else 0), event.is_error
        )
        for event in relevant
        if isinstance(event, ToolFinished) and event.agent == agent
    }
    reminders = (event.text for event in relevant if isinstance(event, MemoryRecalled) and event.agent == agent)
    before = next(reminders, "")
    briefs = [event for event in relevant if isinstance(event, AgentBriefed) and event.agent == agent]
    after = briefs[-1].text.text if briefs else ""
    messages: list[Message] = []
    for event in relevant:
        match event:
            case TurnBegun() if not is_worker(agent):
                files = event.request.attachments
                messages.append(UserMessage(event.request.text, before=before, files=files, after=after))
            case AgentBriefed() if event.agent == agent and is_worker(agent):
                messages.append(UserMessage(event.text, before=before))
                before = ""
            case ModelCalled() if event.agent == agent:
                messages.append(event.message)
                for index, call in enumerate(event.message.calls):
                    missing = ToolMessage(call.call_id, call.tool, Content(NO_RESULT), is_error=True)
                    messages.append(results.get((event.round, index), missing))
            case _:
                pass
    return messages


def parts_of(messages: Iterable[Message], number: int, turns: int) -> list[Part]:
    """The messages of a turn by round: each answer of the model begins one."""
    groups: list[list[Message]] = [[]]
    for message in messages:
        if isinstance(message, AssistantMessage):
            groups.append([])
        groups[-1].append(message)
    return [Part(turns, number, round_, tuple(group)) for round_, group in enumerate(groups) if group]


def _shown(event: ToolFinished, turn: int) -> Content:
    """What the model gets of a result; `turn` 0: nothing is said of the rest."""
    if not turn or (event.full_output is None and event.output.blob is None):
        return event.output
    ref = OutputRef(turn, event.round, event.index + 1)
    return replace(event.output, text=f"{event.output.text}\n{SHORTENED.format(ref=ref)}")


def omission(number: int) -> UserMessage:
    """What a model is told in place of the turns that did not fit, up to one."""
    return UserMessage(
        Content(
            f"[Note from Milepost: the conversation is longer than what you are given. Turns up to number {number} are "
            "left out here; what follows are the newest ones, whole.]"
        )
    )


def unanswered_calls(events: Sequence[Event]) -> list[tuple[ModelCalled, int]]:
    """Calls of a turn that have no `tool.finished` event, as (the model's event, index of the call)."""
    done = {(event.agent, event.round, event.index) for event in events if isinstance(event, ToolFinished)}
    return [
        (event, index)
        for event in events
        if isinstance(event, ModelCalled)
        for index in range(len(event.message.calls))
        if (event.agent, event.round, index) not in done
    ]
