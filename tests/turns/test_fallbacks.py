"""A model call that fails goes on with the agent's fallbacks, and the ledger tells each step."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from milepost.domain.agents import AgentConfig
from milepost.domain.errors import SecretMissing
from milepost.domain.events import AgentStarted, ModelCalled, ModelFailed, ModelRetried
from milepost.domain.messages import Sampling
from milepost.domain.providers import EndpointProfile, OpenAICompatibleProvider, Route, ScriptedProvider
from milepost.domain.turns import Turn, TurnState
from milepost.providers.gateway import Gateway
from milepost.storage import FileBlobStore
from milepost.temporal.client import TemporalAddress
from tests.support.databases import OpenLedger
from tests.support.openai_server import OpenAIServer, Reply
from tests.support.temporal import Stack, build_stack
from tests.turns.test_turns import events_of

NEVER = "http://127.0.0.1:1/v1"
NO_TEMPERATURE = EndpointProfile(unsupported=frozenset({"temperature"}))
ROUTES = (Route("second", "fake-large"), Route("third", "demo"))


class Secrets:
    def resolve(self, reference: str) -> str:
        raise SecretMissing(f"The secret reference '{reference}' has no value.", field=reference)


Make = Callable[..., Awaitable[Stack]]


@pytest.fixture
async def make_stack(
    opened: OpenLedger, model_server: OpenAIServer, temporal_address: TemporalAddress, tmp_path: Path
) -> AsyncIterator[Make]:
    gateways: list[Gateway] = []

    async def make(fallbacks: tuple[Route, ...] = ROUTES, key: str | None = None) -> Stack:
        url = model_server.base_url
        third = "responses: [{text: From the script.}, {text: Again.}]"
        gateway = Gateway(
            {
                "first": OpenAICompatibleProvider("first", url, "fake-small", api_key=key),
                "second": OpenAICompatibleProvider(
                    "second", model_server.base_url, "fake-large", profile=NO_TEMPERATURE
                ),
                "third": ScriptedProvider("third", "demo", third),
            },
            Secrets(),
        )
        gateways.append(gateway)
        gateway.validate = lambda *args: None  # type: ignore[method-assign]
        sampling = Sampling(temperature=0.3)
        agent = AgentConfig("default", "first", "fake-small", tools=(), sampling=sampling, fallbacks=fallbacks)
        blobs = FileBlobStore(tmp_path / "blobs")
        return await build_stack(
            opened.ledger, opened.notifier, blobs, gateway, None, temporal_address, {"default": agent}
        )

    yield make
    for gateway in gateways:
        await gateway.close()


async def played(stack: Stack, folder: Path) -> tuple[Turn, str]:
    session = await stack.open(folder)
    async with stack.worker():
        begun = await stack.send(session)
        return await stack.ended(begun.turn.turn_id), session


async def test_the_next_route_answers_and_the_earlier_failure_is_told(
    make_stack: Make, model_server: OpenAIServer, tmp_path: Path
) -> None:
    # Half an answer, then a fault: the text of the second route replaces it.
    model_server.plan(Reply(text="half of an answer", fault="rst"), Reply(text="From the second."))
    stack = await make_stack()
    turn, session = await played(stack, tmp_path)
    assert turn.state is TurnState.COMPLETED
    events = await events_of(stack, session)
    (started,) = [event for event in events if isinstance(event, AgentStarted)]
    assert started.fallbacks == ROUTES
    (retried,) = [event for event in events if isinstance(event, ModelRetried)]
    assert (retried.route, retried.next_route, retried.final) == (0, 1, False)
    assert retried.error_code == "model_incomplete" and not retried.usage.complete
    (called,) = [event for event in events if isinstance(event, ModelCalled)]
    assert (called.provider, called.model, called.route, called.attempt) == ("second", "fake-large", 1, 2)
    assert called.message.text == "From the second."
    assert [seen.body["model"] for seen in model_server.chats] == ["fake-small", "fake-large"]
    # The cost of both is kept: what the first used is unknown, so the sum is a subtotal.
    assert turn.usage.output_tokens == called.usage.output_tokens > 0 and not turn.usage.complete
    entry = await stack.history.entry(turn.turn_id)
    note, left_out = entry.agents[0].notes
    assert "'temperature'" in left_out, "what this route does not take is recorded"
    assert [seen.body.get("temperature") for seen in model_server.chats] == [0.3, None]
    assert "first/fake-small failed (model_incomplete" in note and note.endswith("went on with second/fake-large.")


async def test_a_refused_request_goes_on_and_the_turn_stays_on_the_route_that_answered(
    make_stack: Make, model_server: OpenAIServer, tmp_path: Path
) -> None:
    call = {"name": "read_file", "arguments": "{}"}
    model_server.plan(Reply(status=401, body="bad key"), Reply(status=404, body="no such model"))
    stack = await make_stack((*ROUTES[:1], Route("second", "fake-small")))
    model_server.plan(Reply(text="I look.", calls=[call]), Reply(text="Done."))
    turn, session = await played(stack, tmp_path)
    assert turn.state is TurnState.COMPLETED
    events = await events_of(stack, session)
    retried = [event for event in events if isinstance(event, ModelRetried)]
    assert [(event.route, event.next_route, event.final) for event in retried] == [(0, 1, True), (1, 2, True)]
    called = [event for event in events if isinstance(event, ModelCalled)]
    assert [event.route for event in called] == [2, 2], "the second round begins where the first one ended"
    assert turn.usage.complete, "a refused request costs nothing"


@pytest.mark.slow
async def test_when_every_route_refuses_the_turn_fails_with_the_last_reason(
    make_stack: Make, model_server: OpenAIServer, tmp_path: Path
) -> None:
    # The first has no key; the second's server refuses.
    model_server.plan(Reply(status=400, body="it will not"))
    stack = await make_stack(ROUTES[:1], key="env:NONE")
    turn, session = await played(stack, tmp_path)
    assert (turn.state, turn.error_code) == (TurnState.FAILED, "model_request_rejected")
    events = await events_of(stack, session)
    (retried,) = [event for event in events if isinstance(event, ModelRetried)]
    assert (retried.error_code, retried.final) == ("secret_missing", True)
    (failed,) = [event for event in events if isinstance(event, ModelFailed)]
    assert failed.route == 1


@pytest.mark.slow
async def test_a_route_named_for_the_turn_has_no_fallback(
    make_stack: Make, model_server: OpenAIServer, tmp_path: Path
) -> None:
    model_server.plan(Reply(status=400, body="it will not"))
    stack = await make_stack()
    session = await stack.open(tmp_path)
    async with stack.worker():
        begun = await stack.send(session, provider="first", model="fake-small")
        turn = await stack.ended(begun.turn.turn_id)
    assert turn.state is TurnState.FAILED
    assert len(model_server.chats) == 1
