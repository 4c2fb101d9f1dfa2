"""From events to the conversation a model gets. Pure; always valid: every call has exactly one result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from milepost.domain.content import Content
from milepost.domain.events import Event, ModelCalled, ToolFinished, TurnBegun
from milepost.domain.messages import Message, ToolMessage, UserMessage

TRANSCRIPT_EVENTS = (TurnBegun.TYPE, ModelCalled.TYPE, ToolFinished.TYPE)

NO_RESULT = "The call was cancelled before it had a result."


def turn_messages(events: Iterable[Event], agent: str) -> list[Message]:
    """The messages of one turn as one agent sees them, results in the order of the calls.

    A call without a recorded result (a turn that was stopped or interrupted) gets a synthetic error result, so that
    every provider accepts the next request.
    """
    relevant = list(events)
    # By place, not by id: ids are the provider's, and nothing here rests on their being unique.
    results = {
        (event.round, event.index): ToolMessage(event.call_id, event.tool, event.output, event.is_error)
        for event in relevant
        if isinstance(event, ToolFinished) and event.agent == agent
    }
    messages: list[Message] = []
    for event in relevant:
        match event:
            case TurnBegun():
                messages.append(UserMessage(event.request.text))
            case ModelCalled() if event.agent == agent:
                messages.append(event.message)
                for index, call in enumerate(event.message.calls):
                    missing = ToolMessage(call.call_id, call.tool, Content(NO_RESULT), is_error=True)
                    messages.append(results.get((event.round, index), missing))
            case _:
                pass
    return messages


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
