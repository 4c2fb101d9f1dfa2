"""Dispatch, validation, health and loading, and what all provider types have in common."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from milepost.domain.content import Content
from milepost.domain.errors import InvalidInput, ProviderUnknown, SecretMissing
from milepost.domain.messages import FinishReason, ReasoningPart, TextPart, ToolCallPart
from milepost.domain.providers import (
    CassetteMode,
    EndpointProfile,
    OpenAICompatibleProvider,
    ProviderConfig,
    RecordedProvider,
    ScriptedProvider,
)
from milepost.domain.usage import Usage
from milepost.ports.models import ModelCompleted, ModelGateway, ModelRequest
from milepost.providers.gateway import Gateway
from tests.providers.conftest import KEY, READ, Make, Secrets, hear, request
from tests.support.openai_server import OpenAIServer, Reply

SCRIPT = """
responses:
  - reasoning: thought
    text: I look at it now.
    calls: [{tool: read_file, args: '{"path":  "a"}'}]
    usage: {input: 11, output: 7}
"""


@pytest.fixture(params=["scripted", "openai_compatible", "recorded", "replayed"])
async def any_provider(
    request: pytest.FixtureRequest, make_gateway: Make, model_server: OpenAIServer, tmp_path: Path
) -> Gateway:
    """A gateway whose provider 'p' is about to give the answer of SCRIPT."""
    scripted = ScriptedProvider("s", script=SCRIPT)
    tape = str(tmp_path / "tape.jsonl")
    match request.param:
        case "scripted":
            return make_gateway(ScriptedProvider("p", script=SCRIPT))
        case "openai_compatible":
            calls = [{"name": "read_file", "arguments": '{"path":  "a"}'}]
            model_server.plan(*(Reply(reasoning="thought", text="I look at it now.", calls=calls) for _ in range(2)))
            return make_gateway(OpenAICompatibleProvider("p", model_server.base_url, "m", profile=EndpointProfile()))
        case "recorded":
            return make_gateway(RecordedProvider("p", tape, "s", CassetteMode.RECORD), scripted)
    await hear(make_gateway(RecordedProvider("p", tape, "s", CassetteMode.RECORD), scripted), asked())
    return make_gateway(RecordedProvider("p", tape))


def asked() -> ModelRequest:
    return request("p", tools=(READ,), model="m")


async def test_every_type_streams_the_same_answer(any_provider: Gateway) -> None:
    gateway: ModelGateway = any_provider
    heard = await hear(any_provider, asked())
    done = heard.done
    assert (heard.reasoning, heard.text) == ("thought", "I look at it now.")
    assert len(heard.items) >= 4
    (call,) = done.message.calls
    assert done.message.parts == (
        ReasoningPart("thought"),
        TextPart("I look at it now."),
        ToolCallPart(call.call_id, "read_file", Content('{"path":  "a"}')),
    )
    assert (done.finish, done.provider, done.model) == (FinishReason.TOOL_CALLS, "p", "m")
    assert done.usage == Usage(input_tokens=11, output_tokens=7)
    assert call.call_id
    gateway.validate("p", "m")
    assert (await gateway.check("p")).provider == "p"


async def test_every_type_can_be_closed_early_and_used_again(any_provider: Gateway) -> None:
    stream = any_provider.stream(asked())
    first = await anext(stream)
    assert not isinstance(first, ModelCompleted)
    await stream.aclose()
    assert (await hear(any_provider, asked())).text == "I look at it now."
    await any_provider.close()


async def test_every_type_takes_calls_at_the_same_time(make_gateway: Make, model_server: OpenAIServer) -> None:
    gateway = make_gateway(ScriptedProvider("s", script=SCRIPT), endpoint_of(model_server))
    model_server.plan(*(Reply(text=str(number) * 50) for number in range(8)))
    heard = await asyncio.gather(*(hear(gateway, request("fake")) for _ in range(8)))
    assert sorted(one.text for one in heard) == sorted(str(number) * 50 for number in range(8))


def endpoint_of(server: OpenAIServer, **changes: object) -> OpenAICompatibleProvider:
    values = {"name": "fake", "base_url": server.base_url, "default_model": "fake-small", **changes}
    return OpenAICompatibleProvider(**values)  # type: ignore[arg-type]


async def test_an_unknown_provider_is_named_with_its_nearest(make_gateway: Make) -> None:
    gateway = make_gateway(ScriptedProvider("scripted"))
    with pytest.raises(ProviderUnknown) as caught:
        gateway.validate("scriptd", "")
    assert "Did you mean 'scripted'?" in str(caught.value)
    with pytest.raises(ProviderUnknown):
        await hear(gateway, request("scriptd"))
    with pytest.raises(ProviderUnknown):
        await gateway.check("scriptd")


async def test_a_missing_key_is_said_before_any_call(make_gateway: Make, model_server: OpenAIServer) -> None:
    config = endpoint_of(model_server, api_key="env:NONE")
    gateway = make_gateway(config, RecordedProvider("tape", "/tmp/none", "fake", CassetteMode.RECORD))
    for provider in ("fake", "tape"):
        with pytest.raises(SecretMissing, match="env:NONE"):
            gateway.validate(provider, "m")
    with pytest.raises(SecretMissing):
        await hear(gateway, request())
    assert not model_server.requests
    health = await gateway.check("fake")
    assert not health.ok and "env:NONE" in health.detail


@pytest.mark.parametrize(
    "config",
    [
        OpenAICompatibleProvider("p", "127.0.0.1:8000/v1", "m"),
        OpenAICompatibleProvider("p", "ftp://127.0.0.1/v1", "m"),
        OpenAICompatibleProvider("p", "http://", "m"),
        OpenAICompatibleProvider("p", "http://[::1", "m"),
        OpenAICompatibleProvider("p", f"http://me:{KEY}@127.0.0.1/v1", "m"),
        OpenAICompatibleProvider("p", f"http://127.0.0.1/v1?key={KEY}", "m"),
        OpenAICompatibleProvider("p", "http://127.0.0.1/v1"),
        RecordedProvider("p", "/tmp/none", None, CassetteMode.RECORD),
        RecordedProvider("p", "/tmp/none", "p", CassetteMode.RECORD),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(config: ProviderConfig) -> None:
    with pytest.raises(InvalidInput) as caught:
        Gateway({"p": config}, Secrets()).validate("p", "")
    assert KEY not in str(caught.value)
    assert "'p'" in caught.value.message


async def test_the_default_model_is_used_also_through_a_cassette(
    make_gateway: Make, model_server: OpenAIServer, tmp_path: Path
) -> None:
    tape = RecordedProvider("tape", str(tmp_path / "t"), "fake", CassetteMode.RECORD)
    gateway = make_gateway(tape, endpoint_of(model_server))
    await hear(gateway, request("fake", model=""))
    await hear(gateway, request("tape", model=""))
    assert [seen.body["model"] for seen in model_server.chats] == ["fake-small", "fake-small"]


async def test_health_tells_what_is_wrong(make_gateway: Make, model_server: OpenAIServer) -> None:
    model_server.key = KEY

    async def health(**changes: object) -> tuple[bool, str]:
        found = await make_gateway(endpoint_of(model_server, **changes)).check("fake")
        return found.ok, f"{found.detail} {found.fix}"

    assert (await health(api_key="env:KEY"))[0]
    ok, text = await health()
    assert not ok and "401" in text
    ok, text = await health(api_key="env:KEY", default_model="fake-smal")
    assert not ok and "fake-small" in text
    ok, text = await health(base_url="http://127.0.0.1:1/v1")
    assert not ok and "Cannot be reached" in text
    for reply, expected in (
        (Reply(status=404, body="no such route"), True),
        (Reply(status=503, body='{"error": {"message": "Loading model"}}'), False),
        (Reply(status=500, body=f"<html>{KEY}" + "x" * 1_000_000), False),
    ):
        model_server.plan(reply)
        ok, text = await health(api_key="env:KEY")
        assert ok is expected
        assert KEY not in text and len(text) < 8192


async def test_a_stalled_endpoint_does_not_hold_up_its_health(
    make_gateway: Make, model_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milepost.providers.health.CHECK_SECONDS", 0.2)
    model_server.plan(Reply(fault="stall", fault_after=0))
    health = await make_gateway(endpoint_of(model_server)).check("fake")
    assert not health.ok


def test_only_a_process_that_calls_models_loads_their_libraries() -> None:
    code = (
        "import sys, milepost.providers.gateway, milepost.ports.models\n"
        "print(sorted({'pydantic', 'pydantic_ai', 'openai', 'httpx2', 'ruamel'} & "
        "{name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_fake_server_serves_other_processes() -> None:
    command = [sys.executable, "-m", "tests.support.model_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        base_url = server.stdout.readline().strip()
        control = base_url.removesuffix("/v1") + "/control"
        httpx.post(f"{control}/plan", json=[{"text": "planned from outside"}]).raise_for_status()
        gateway = Gateway({"fake": OpenAICompatibleProvider("fake", base_url, "fake-small")}, Secrets())
        assert asyncio.run(hear(gateway, request())).text == "planned from outside"
        (seen,) = httpx.get(f"{control}/log").json()["requests"]
        assert seen["body"]["model"] == "fake-small"
        server.stdin.close()
        assert server.wait(10) == 0
