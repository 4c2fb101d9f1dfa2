"""The conversation a model gets is valid whatever was recorded, and loses nothing that was."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.domain.content import Content
from milepost.domain.effects import EffectState
from milepost.domain.events import Event, ModelCalled, ToolFinished
from milepost.domain.messages import AssistantMessage, Message, ToolCallPart, ToolMessage, UserMessage
from milepost.ledger.transcript import NO_RESULT, turn_messages, unanswered_calls
from tests.unit.streams import AGENTS, TURN, turns


def require_valid(messages: Sequence[Message]) -> None:
    """Each call has exactly one result, in call order, before anything else is said; nothing else is a result."""
    index = 0
    while index < len(messages):
        message = messages[index]
        assert not isinstance(message, ToolMessage), "a result that answers no call"
        index += 1
        if isinstance(message, AssistantMessage):
            results = messages[index : index + len(message.calls)]
            assert [getattr(result, "call_id", None) for result in results] == [call.call_id for call in message.calls]
            assert [getattr(result, "tool", None) for result in results] == [call.tool for call in message.calls]
            index += len(message.calls)


@given(turns(), st.sampled_from(AGENTS))
def test_every_call_has_exactly_one_result_in_order(events: list[Event], agent: str) -> None:
    messages = turn_messages(events, agent)
    require_valid(messages)
    assert isinstance(messages[0], UserMessage)
    said = [event.message for event in events if isinstance(event, ModelCalled) and event.agent == agent]
    assert [message for message in messages if isinstance(message, AssistantMessage)] == said


@given(turns(), st.sampled_from(AGENTS))
def test_a_recorded_result_is_the_one_that_is_sent(events: list[Event], agent: str) -> None:
    recorded = {
        (event.round, event.index): event
        for event in events
        if isinstance(event, ToolFinished) and event.agent == agent
    }
    calls = [event for event in events if isinstance(event, ModelCalled) and event.agent == agent]
    places = [(called.round, index) for called in calls for index in range(len(called.message.calls))]
    results = [message for message in turn_messages(events, agent) if isinstance(message, ToolMessage)]
    assert len(results) == len(places)
    for place, result in zip(places, results, strict=True):
        end = recorded.get(place)
        if end is None:
            assert result.text == Content(NO_RESULT) and result.is_error
        else:
            assert (result.text, result.is_error) == (end.output, end.is_error)


@given(turns())
def test_closing_what_is_unanswered_leaves_nothing_open_and_changes_no_result(events: list[Event]) -> None:
    closing: list[Event] = [
        ToolFinished(
            turn_id=TURN,
            agent=called.agent,
            effect_id="",
            attempt=0,
            round=called.round,
            index=index,
            call_id=called.message.calls[index].call_id,
            tool=called.message.calls[index].tool,
            state=EffectState.CANCELLED,
            output=Content(NO_RESULT),
            is_error=True,
            detail={},
        )
        for called, index in unanswered_calls(events)
    ]
    closed = [*events, *closing]
    assert unanswered_calls(closed) == []
    for agent in AGENTS:
        assert turn_messages(closed, agent) == turn_messages(events, agent)


def test_the_control_knows_a_broken_conversation() -> None:
    asked = AssistantMessage((ToolCallPart("a", "bash", Content("{}")), ToolCallPart("b", "bash", Content("{}"))))
    first, second = ToolMessage("a", "bash", Content("")), ToolMessage("b", "bash", Content(""))
    require_valid([asked, first, second])
    broken: tuple[list[Message], ...] = (
        [first],
        [asked, first],
        [asked, second, first],
        [asked, first, second, second],
        [asked, first, UserMessage(Content("x")), second],
    )
    for messages in broken:
        with pytest.raises(AssertionError):
            require_valid(messages)
