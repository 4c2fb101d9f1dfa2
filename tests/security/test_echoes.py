"""A provider that sends our keys back, everywhere it can: nothing of them reaches whoever called it."""

from __future__ import annotations

import base64
import json
import logging
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from milepost.config.secrets import ReferenceSecrets
from milepost.domain.content import Content
from milepost.domain.errors import ModelError
from milepost.domain.messages import Sampling, UserMessage
from milepost.domain.providers import CassetteMode, OpenAICompatibleProvider, ProviderConfig, RecordedProvider
from milepost.ledger.codec import canonical_bytes, to_json
from milepost.ports.models import ModelCompleted, ModelItem, ModelRequest, ReasoningDelta, TextDelta
from milepost.providers.gateway import Gateway
from tests.security.canaries import canary, leaks
from tests.support.openai_server import OpenAIServer, Reply

KEY, HEADER, CREDENTIALS = canary("key"), canary("header"), canary("password")
CANARIES = {"key": KEY, "header": HEADER, "credentials": CREDENTIALS}

Open = Callable[..., Gateway]


@pytest.fixture
async def opened(model_server: OpenAIServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Open]:
    """A gateway whose key comes from the environment and whose header from a file, on the echoing server."""
    monkeypatch.setenv("ECHO_KEY", KEY)
    (tmp_path / "header").write_text(HEADER + "\n")
    basic = base64.b64encode(f"somebody:{CREDENTIALS}".encode()).decode()
    (tmp_path / "credentials").write_text(f"Basic {basic}\n")
    made: list[Gateway] = []

    def make(*more: ProviderConfig) -> Gateway:
        endpoint = OpenAICompatibleProvider(
            name="echo",
            base_url=model_server.base_url,
            default_model="fake-small",
            api_key="env:ECHO_KEY",
            secret_headers={"X-Team-Token": "file:header", "Proxy-Authorization": "file:credentials"},
        )
        providers = {provider.name: provider for provider in (endpoint, *more)}
        made.append(Gateway(providers, ReferenceSecrets(tmp_path)))
        return made[-1]

    yield make
    for gateway in made:
        await gateway.close()


def asked(provider: str = "echo") -> ModelRequest:
    message = UserMessage(Content("hello"))
    return ModelRequest(provider, "fake-small", "default", "Be.", (message,), (), Sampling(), 1, 1, "idempotency")


async def heard(gateway: Gateway, provider: str = "echo") -> list[ModelItem]:
    return [item async for item in gateway.stream(asked(provider))]


def shown(items: list[ModelItem]) -> dict[str, bytes]:
    """All that a consumer gets, each delta alone, and the deltas of a channel as one text."""
    texts = ["".join(item.text for item in items if isinstance(item, kind)) for kind in (TextDelta, ReasoningDelta)]
    return {
        "items": canonical_bytes([to_json(item) for item in items]),
        "text": texts[0].encode(),
        "reasoning": texts[1].encode(),
    }


def echoes() -> str:
    """Every canary in every encoding."""
    found = []
    for value in CANARIES.values():
        encoded = value.encode()
        found += [value, quote(value, safe=""), json.dumps(value), encoded.hex()]
        found += [base64.b64encode(b"a" * place + encoded).decode() for place in range(3)]
    return " and ".join(found)


ANSWERS = {
    "text": Reply(text=f"Your key is {echoes()}, isn't it?"),
    "reasoning": Reply(text="Hm.", reasoning=f"They sent {echoes()}."),
    "thinking tags": Reply(text=f"<think>They sent {echoes()}.</think>Hm."),
    "text, character by character": Reply(text=echoes(), piece=1),
    "arguments": Reply(calls=[{"name": "bash", "arguments": json.dumps({"command": f"echo {echoes()}"})}]),
    "broken arguments": Reply(calls=[{"name": "bash", "arguments": '{"command": "' + KEY}]),
    "name and id of a call": Reply(calls=[{"name": KEY, "id": HEADER, "arguments": "{}"}]),
    "text around a call": Reply(
        events=[
            {"choices": [{"index": 0, "delta": {"content": KEY[:30]}}]},
            {"choices": [{"index": 0, "delta": {"tool_calls": [
                {"index": 0, "id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
            ]}}]},
            {"choices": [{"index": 0, "delta": {"content": KEY[30:]}, "finish_reason": "tool_calls"}]},
        ]
    ),
    "extra content": Reply(
        events=[
            {"choices": [{"index": 0, "delta": {"tool_calls": [
                {"index": 0, "id": "c1", "type": "function", "extra_content": {"google": {"signature": KEY}},
                 "function": {"name": "bash", "arguments": "{}"}}
            ]}, "finish_reason": "tool_calls"}]},
        ]
    ),
    "model's name": Reply(
        events=[{"model": f"m {KEY}", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}]
    ),
    "a long model's name": Reply(
        events=[
            {"model": "m" * 230 + KEY, "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}
        ]
    ),
    "finish reason": Reply(text="Hm.", finish=f"because of {KEY}"),
    "a long finish reason": Reply(text="Hm.", finish="b" * 50 + KEY),
    "refusal": Reply(refusal=f"Not with {KEY}"),
    "a long refusal": Reply(refusal="r" * 470 + KEY),
    "response headers": Reply(text="Hm.", headers={"X-Echo": KEY, "Set-Cookie": f"key={quote(KEY)}"}),
}  # fmt: skip

FAILURES = {
    "401": Reply(status=401, body=json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}})),
    "403 of a proxy": Reply(status=403, body=f"<html>{echoes()}</html>"),
    "400": Reply(status=400, body=json.dumps({"error": {"message": echoes()}})),
    "400, another shape": Reply(status=400, body=json.dumps({"detail": [{"input": {"headers": echoes()}}]})),
    "500": Reply(status=500, body=echoes()),
    "302": Reply(status=302, headers={"Location": f"http://127.0.0.1:9/{quote(KEY)}"}),
    "a body cut inside the key": Reply(status=500, body="x" * 1_970 + KEY),
    "a huge body cut inside the key": Reply(status=500, body="\x01" * 15_980 + KEY),
    "a body over the bound": Reply(status=500, body="\x01" * (64 * 1024 - 25) + KEY),
    "compressed": Reply(text="Hm.", headers={"Content-Encoding": KEY.lower()}),
    "an event": Reply(events=[{"error": {"message": f"bad header {KEY}", "code": 500}}]),
    "an event that is not JSON": Reply(events=[f"data: {KEY}\n\n"]),
    "broken off": Reply(text=f"Your key is {KEY}", fault="eof", fault_after=7),
    "reset": Reply(text=f"Your key is {KEY}", fault="rst", fault_after=6),
}


@pytest.mark.parametrize("place", ANSWERS)
async def test_an_answer(place: str, opened: Open, model_server: OpenAIServer) -> None:
    model_server.plan(ANSWERS[place])
    items = await heard(opened())
    assert leaks({"control": canonical_bytes(vars(ANSWERS[place]))}, CANARIES), "the server does send a canary"
    assert leaks(shown(items), CANARIES) == []
    done = items[-1]
    assert isinstance(done, ModelCompleted)
    assert "".join(item.text for item in items if isinstance(item, TextDelta)) == done.message.text


@pytest.mark.parametrize("place", FAILURES)
async def test_a_failure(
    place: str, opened: Open, model_server: OpenAIServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model_server.plan(FAILURES[place])
    items: list[ModelItem] = []
    with pytest.raises(ModelError) as failed:
        async for item in opened().stream(asked()):
            items.append(item)
    written = "".join(traceback.format_exception(failed.value))
    collected = shown(items) | {"exception": written.encode(), "log": caplog.text.encode()}
    assert leaks(collected, CANARIES) == []
    assert str(failed.value) in written


async def test_health(opened: Open, model_server: OpenAIServer) -> None:
    gateway = opened()
    for reply in (FAILURES["401"], FAILURES["500"], Reply(status=418, body=echoes())):
        model_server.plan(reply)
        health = await gateway.check("echo")
        assert not health.ok
        assert leaks({"health": repr(health).encode()}, CANARIES) == []
    model_server.models = (KEY, f"fake-{HEADER}")
    health = await gateway.check("echo")
    assert leaks({"health": repr(health).encode()}, CANARIES) == []


async def test_a_cassette_and_its_replay(opened: Open, model_server: OpenAIServer, tmp_path: Path) -> None:
    recorded = RecordedProvider("tape", str(tmp_path / "tape"), "echo", CassetteMode.RECORD)
    model_server.plan(*ANSWERS.values())
    gateway = opened(recorded)
    collected = {place: canonical_bytes(to_json((await heard(gateway, "tape"))[-1])) for place in ANSWERS}
    assert leaks(collected | {"cassette": (tmp_path / "tape").read_bytes()}, CANARIES) == []


async def test_a_key_that_changed_meanwhile_stays_hidden(
    opened: Open, model_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = opened()
    model_server.plan(Reply(text=f"first {KEY} then {KEY}", piece=6, delay=0.02))
    slow = gateway.stream(asked())
    items = [await anext(slow)]
    newer = canary("newer")
    monkeypatch.setenv("ECHO_KEY", newer)
    model_server.plan(Reply(status=500, body=f"{newer} is as bad as {KEY}"))
    with pytest.raises(ModelError) as failed:
        await heard(gateway)
    items += [item async for item in slow]
    collected: dict[str, bytes] = shown(items) | {"error": str(failed.value).encode()}
    assert leaks(collected, CANARIES | {"newer": newer}) == []


def test_the_control_sees_what_a_gateway_without_hiding_would_show() -> None:
    items: list[Any] = [TextDelta(KEY[:15]), TextDelta(KEY[15:])]
    assert leaks(shown(items), CANARIES) == ["text: key"]
