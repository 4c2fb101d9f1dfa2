"""History folds any recorded turn: nothing is lost, counted twice or out of bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from milepost.domain.effects import EffectState
from milepost.domain.events import (
    AgentOutput,
    AgentStarted,
    Event,
    ModelCalled,
    ModelFailed,
    ModelRetried,
    ToolFinished,
    ToolStarted,
)
from milepost.domain.turns import TurnState
from milepost.domain.usage import Usage
from milepost.ledger.history import CARD_PREVIEW_CHARACTERS, history_entry
from tests.unit.streams import turn, turns


@given(turns(), st.sampled_from(TurnState))
def test_each_agent_has_what_it_said_and_spent(events: list[Event], state: TurnState) -> None:
    entry = history_entry(turn(state), events)
    assert [agent.agent for agent in entry.agents] == [e.agent for e in events if isinstance(e, AgentStarted)]
    for agent in entry.agents:
        own = [event for event in events if getattr(event, "agent", None) == agent.agent]
        calls = [event for event in own if isinstance(event, ModelCalled)]
        charged = [event for event in own if isinstance(event, ModelCalled | ModelRetried | ModelFailed)]
        assert agent.rounds == len(calls)
        assert agent.calls == len({(event.effect_id, event.attempt) for event in charged})
        assert agent.retries == sum(isinstance(event, ModelRetried) for event in own)
        assert agent.usage == sum((event.usage for event in charged), Usage())
        output = next((event for event in own if isinstance(event, AgentOutput)), None)
        if output is not None:
            assert (agent.output, agent.partial) == (output.text, output.partial)
        else:
            assert agent.output.text == (calls[-1].message.text if calls else "")
            assert agent.partial is state.terminal
        notes = [note for call in calls for note in call.diagnostics]
        assert list(agent.notes)[-len(notes) or len(agent.notes) :] == notes


@given(turns())
def test_each_call_that_began_has_one_card_in_the_order_of_the_calls(events: list[Event]) -> None:
    entry = history_entry(turn(), events)
    begun = {
        (event.agent, event.round, event.index): event
        for event in events
        if isinstance(event, ToolStarted | ToolFinished)
    }
    agents = [agent.agent for agent in entry.agents]
    places = sorted(begun, key=lambda place: (agents.index(place[0]), *place))
    assert len(entry.tools) == len(places)
    for place, card in zip(places, entry.tools, strict=True):
        last = begun[place]
        assert (card.agent, card.call_id, card.tool, card.effect_id) == (
            last.agent,
            last.call_id,
            last.tool,
            last.effect_id,
        )
        ended = isinstance(last, ToolFinished)
        assert card.state is (last.state if isinstance(last, ToolFinished) else EffectState.DISPATCHED)
        assert card.is_error is (isinstance(last, ToolFinished) and last.is_error)
        assert len(card.preview) <= CARD_PREVIEW_CHARACTERS and len(card.arguments) <= CARD_PREVIEW_CHARACTERS
        assert ended or card.preview == ""
        if isinstance(last, ToolFinished):
            assert last.output.text.startswith(card.preview)
            assert card.truncated is (card.preview != last.output.text)


@given(turns(cut=False))
def test_the_order_in_which_parallel_calls_ended_does_not_show(events: list[Event]) -> None:
    # The ends of calls are put in call order; everything else stays in its place.
    ends = iter(sorted((e for e in events if isinstance(e, ToolFinished)), key=lambda e: (e.agent, e.round, e.index)))
    sorted_ends = [next(ends) if isinstance(event, ToolFinished) else event for event in events]
    first = history_entry(turn(TurnState.COMPLETED), events)
    second = history_entry(turn(TurnState.COMPLETED), sorted_ends)
    assert [card.call_id for card in first.tools] == [card.call_id for card in second.tools]


@given(turns())
def test_the_answer_of_the_turn_is_that_of_the_last_agent_that_has_one(events: list[Event]) -> None:
    entry = history_entry(turn(), events)
    answers = [agent.output for agent in entry.agents if agent.output.text]
    assert entry.output.text == (answers[-1].text if answers else "")
