"""What one turn changes of its agent, and turns without a state."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.schemas.turns import TurnBegin
from cli.overrides import override_body
from milepost.domain.agents import AgentConfig
from milepost.domain.errors import InvalidInput
from milepost.domain.events import AgentStarted
from milepost.domain.messages import ResponseFormat, Sampling
from milepost.domain.turns import Overrides
from milepost.engine.overrides import overridden
from milepost.services.turns import BeginTurn, RetryTurn
from tests.context.plays import Model, driven, events_of, sent_text
from tests.support.driven import Driver

AGENT = AgentConfig("default", "instant", "instant", tools=("read_file", "grep", "bash"), max_rounds=9)


def test_what_is_not_named_is_the_agents() -> None:
    assert overridden(AGENT, None) is AGENT
    assert overridden(AGENT, Overrides()) == AGENT
    own = AgentConfig("a", "p", "m", sampling=Sampling(0.5, 0.9, 100, "low", ("x",), ResponseFormat()))
    changed = overridden(own, Overrides(Sampling(temperature=0.0, max_tokens=5), max_rounds=2))
    assert changed.sampling == Sampling(0.0, 0.9, 5, "low", ("x",), ResponseFormat())
    assert changed.max_rounds == 2
    assert overridden(AGENT, Overrides(tools=("bash", "read_file"))).tools == ("read_file", "bash")
    assert overridden(AGENT, Overrides(tools=())).tools == ()


def test_a_tool_that_the_agent_does_not_have_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidInput) as refused:
        overridden(AGENT, Overrides(tools=("red_file",)))
    assert refused.value.fix == "Did you mean 'read_file'?"
    for rounds in (0, 10_001):
        with pytest.raises(InvalidInput, match="max_rounds"):
            overridden(AGENT, Overrides(max_rounds=rounds))


async def begin(driver: Driver, session: str, text: str, overrides: Overrides | None = None) -> str:
    turn = (await driver.turns.begin(BeginTurn(session, text, overrides=overrides))).turn.turn_id
    await driver.prepare(session, turn)
    return turn


async def test_overrides_hold_for_their_turn_and_its_retry(sqlite_url: str, tmp_path: Path) -> None:
    model = Model(lambda request: ("Done.", []))
    async with driven(sqlite_url, tmp_path, model) as driver:
        session = await driver.open()
        chosen = Overrides(Sampling(temperature=0.25), max_rounds=3, tools=("bash",))
        turn = await begin(driver, session, "One.", chosen)
        await driver.call_model(session, turn, 1)
        await driver.finish(session, turn, 1)
        again = (await driver.turns.retry(RetryTurn(turn))).turn.turn_id
        await driver.prepare(session, again)
        await driver.finish(session, again, 1)
        plain = await begin(driver, session, "Two.")
        await driver.call_model(session, plain, 1)
        started = [event for event in await events_of(driver, session) if isinstance(event, AgentStarted)]
        assert [(each.max_rounds, len(each.tools)) for each in started[:2]] == [(3, 1), (3, 1)]
        assert started[2].max_rounds == 64 and len(started[2].tools) > 1
        sent = model.requests
        assert (sent[0].sampling.temperature, [tool.name for tool in sent[0].tools]) == (0.25, ["bash"])
        assert sent[1].sampling.temperature is None
        with pytest.raises(InvalidInput):
            await driver.turns.begin(BeginTurn(session, "Three.", overrides=Overrides(tools=("nothing",))))


async def test_a_stateless_turn_gets_nothing_and_leaves_nothing(sqlite_url: str, tmp_path: Path) -> None:
    def answer(request: object) -> tuple[str, list[tuple[str, dict[str, object]]]]:
        if len(model.requests) == 2:
            return "", [("bash", {"command": "make"})]
        return "Done.", []

    model = Model(answer)
    async with driven(sqlite_url, tmp_path, model) as driver:
        session = await driver.open()
        await driver.play(session, "The first secret.")
        alone = await begin(driver, session, "Alone with it.", Overrides(stateless=True))
        for round_ in (1, 2):
            called = await driver.call_model(session, alone, round_)
            await driver.run_calls(session, alone, round_, called)
        await driver.finish(session, alone, 2)
        sent = [sent_text(request.messages) for request in model.requests]
        assert "The first secret." not in sent[1] + sent[2] and "Alone with it." in sent[2] and "make" in sent[2]
        await driver.play(session, "The last.")
        last = sent_text(model.requests[-1].messages)
        assert "The first secret." in last and "Alone with it." not in last and "make" not in last
        entry = await driver.history.entry(alone)
        assert entry.turn.request.options.stateless and entry.output.text == "Done."


def test_a_request_body_says_what_it_changes() -> None:
    body = TurnBegin.model_validate(
        {
            "text": "x",
            "sampling": {"temperature": 0, "stop": ["END"], "response_format": {"json_schema": {"type": "object"}}},
            "max_rounds": 2,
            "tools": ["bash"],
            "stateless": True,
        }
    )
    sampling = Sampling(0.0, stop=("END",), response_format=ResponseFormat({"type": "object"}))
    assert body.command("ses_1", None).overrides == Overrides(sampling, 2, ("bash",), True)
    assert TurnBegin(text="x").command("ses_1", None).overrides is None
    with pytest.raises(InvalidInput, match="schema"):
        schema = {"$ref": "https://elsewhere.example/schema.json"}
        TurnBegin.model_validate({"text": "x", "sampling": {"response_format": {"json_schema": schema}}}).command(
            "ses_1", None
        )
    assert override_body(["max_rounds=2", "tools=[bash]", "sampling.temperature=0"], stateless=True) == {
        "max_rounds": 2,
        "tools": ["bash"],
        "sampling": {"temperature": 0},
        "stateless": True,
    }
    with pytest.raises(InvalidInput, match="cannot be changed for one turn"):
        override_body(["system_prompt=x"], stateless=False)
