"""Cassettes: recorded once, replayed without the source."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from milepost.domain.content import Content
from milepost.domain.errors import CassetteMiss, InvalidInput, MilepostError, ModelUnavailable, StorageUnavailable
from milepost.domain.messages import Message, Sampling, ToolMessage
from milepost.domain.providers import CassetteMode, OpenAICompatibleProvider, RecordedProvider
from milepost.providers.gateway import Gateway
from milepost.providers.recorded import cassette
from tests.providers.conftest import KEY, READ, Heard, Make, hear, request, user
from tests.support.openai_server import OpenAIServer, Reply


def content(tape: Path) -> str:
    return tape.read_text()


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    return tmp_path / "tapes" / "one.jsonl"


def recorder(tape: Path, mode: CassetteMode, source: str | None = "fake") -> RecordedProvider:
    return RecordedProvider("tape", str(tape), source, mode)


def live(server: OpenAIServer, **changes: Any) -> OpenAICompatibleProvider:
    return OpenAICompatibleProvider("fake", server.base_url, "fake-small", **changes)


async def turn(gateway: Gateway, **changes: Any) -> list[Heard]:
    """Two rounds: a call, its result, an answer."""
    messages: list[Message] = [user("hello")]
    first = await hear(gateway, request("tape", messages=messages, tools=(READ,), **changes))
    messages.append(first.done.message)
    messages.extend(ToolMessage(call.call_id, call.tool, Content("text ü")) for call in first.done.message.calls)
    second = await hear(gateway, request("tape", messages=messages, tools=(READ,), call_number=2, **changes))
    return [first, second]


CALLS = [{"name": "read_file", "arguments": '{"path":  "a"}'}]


async def test_a_recorded_turn_replays_without_its_source(
    make_gateway: Make, model_server: OpenAIServer, tape: Path
) -> None:
    model_server.plan(Reply(reasoning="thought", text="Grüße ", calls=CALLS, ids="none"), Reply(text="done"))
    recorded = await turn(make_gateway(recorder(tape, CassetteMode.RECORD), live(model_server)))
    assert len(model_server.chats) == 2
    replayed = await turn(
        make_gateway(recorder(tape, CassetteMode.REPLAY, None)), attempt=3, idempotency_key="another turn"
    )
    for ours, theirs in zip(replayed, recorded, strict=True):
        assert (ours.text, ours.reasoning, ours.done) == (theirs.text, theirs.reasoning, theirs.done)
    assert len(replayed[0].items) >= 3
    assert replayed[0].done.provider == "tape"
    assert len(model_server.chats) == 2


async def test_the_file_is_private_and_holds_no_secret(
    make_gateway: Make, model_server: OpenAIServer, tape: Path
) -> None:
    model_server.key = KEY
    model_server.plan(Reply(text=f"your key is {KEY}", calls=CALLS), Reply(text="done"))
    source = live(model_server, api_key="env:KEY", headers={"X-Team": "a-header-value"})
    gateway = make_gateway(recorder(tape, CassetteMode.RECORD), source)
    await turn(gateway)
    text = content(tape)
    assert KEY not in text and "a-header-value" not in text and "authorization" not in text.lower()
    assert stat.S_IMODE(os.stat(tape).st_mode) == 0o600  # noqa: PTH116
    assert os.listdir(tape.parent) == ["one.jsonl"], "no temporary file is left"  # noqa: PTH208
    replayed = await turn(make_gateway(recorder(tape, CassetteMode.REPLAY, None)))
    assert replayed[0].text == "your key is [hidden]"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"messages": [user("good bye")]}, "message 1 (user) is 'good bye', recorded was 'hello'"),
        ({"messages": [user("hello"), user("more")]}, "has 2 messages, the nearest recorded one 1"),
        ({"tools": (READ,)}, "the tools are ['read_file'], recorded were []"),
        ({"model": "fake-large"}, "'model' is 'fake-large', recorded was 'fake-small'"),
        ({"sampling": Sampling(temperature=1.0)}, "'sampling' is"),
        ({"system_prompt": "Other."}, "'system_prompt' is 'Other.', recorded was 'You are a test.'"),
    ],
)
async def test_a_miss_names_the_difference(
    make_gateway: Make, model_server: OpenAIServer, tape: Path, changes: dict[str, Any], says: str
) -> None:
    await hear(make_gateway(recorder(tape, CassetteMode.RECORD), live(model_server)), request("tape"))
    with pytest.raises(CassetteMiss) as caught:
        await hear(make_gateway(recorder(tape, CassetteMode.REPLAY)), request("tape", **changes))
    assert says in caught.value.message
    assert not caught.value.retryable


async def test_record_replaces_and_auto_fills_gaps(make_gateway: Make, model_server: OpenAIServer, tape: Path) -> None:
    record = make_gateway(recorder(tape, CassetteMode.RECORD), live(model_server))
    auto = make_gateway(recorder(tape, CassetteMode.AUTO), live(model_server))
    model_server.plan(Reply(text="first"), Reply(text="second"), Reply(text="gap"))
    await hear(record, request("tape"))
    assert (await hear(record, request("tape"))).text == "second"
    assert (await hear(auto, request("tape"))).text == "second"
    assert (await hear(auto, request("tape", system_prompt="new"))).text == "gap"
    assert (await hear(auto, request("tape", system_prompt="new"))).text == "gap"
    assert len(model_server.chats) == 3
    assert len(cassette.load(tape)) == 2


async def test_failures_are_not_recorded(make_gateway: Make, model_server: OpenAIServer, tape: Path) -> None:
    gateway = make_gateway(recorder(tape, CassetteMode.RECORD), live(model_server))
    model_server.plan(Reply(status=503, body="loading"))
    with pytest.raises(ModelUnavailable):
        await hear(gateway, request("tape"))
    with pytest.raises(FileNotFoundError):
        cassette.load(tape)
    await hear(gateway, request("tape"))
    assert len(cassette.load(tape)) == 1


async def test_calls_at_the_same_time_are_all_recorded(
    make_gateway: Make, model_server: OpenAIServer, tape: Path
) -> None:
    gateway = make_gateway(recorder(tape, CassetteMode.RECORD), live(model_server))
    await asyncio.gather(*(hear(gateway, request("tape", system_prompt=str(number))) for number in range(8)))
    assert len(cassette.load(tape)) == 8


async def test_a_missing_cassette_is_said(make_gateway: Make, tape: Path) -> None:
    gateway = make_gateway(recorder(tape, CassetteMode.REPLAY))
    with pytest.raises(InvalidInput, match="does not exist"):
        await hear(gateway, request("tape"))
    assert not (await gateway.check("tape")).ok


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("", CassetteMiss, "empty"),
        ("{}", InvalidInput, "line 1,"),
        ('{"format":"milepost-cassette","version":1}\n{"digest":1}', InvalidInput, "line 2,"),
        ('{"format":"milepost-cassette","version":2}', InvalidInput, "line 1,"),
    ],
)
async def test_a_damaged_cassette_is_said(
    make_gateway: Make, tmp_path: Path, text: str, error: type[MilepostError], says: str
) -> None:
    (tmp_path / "tape").write_text(text)
    with pytest.raises(error, match=says):
        await hear(make_gateway(recorder(tmp_path / "tape", CassetteMode.REPLAY)), request("tape"))


async def test_a_folder_that_cannot_be_written(make_gateway: Make, model_server: OpenAIServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    gateway = make_gateway(recorder(tmp_path / "file" / "tape", CassetteMode.RECORD), live(model_server))
    with pytest.raises(StorageUnavailable):
        await hear(gateway, request("tape"))


async def test_health(make_gateway: Make, model_server: OpenAIServer, tape: Path) -> None:
    record = make_gateway(recorder(tape, CassetteMode.RECORD), live(model_server))
    assert (await record.check("tape")).ok
    await hear(record, request("tape"))
    health = await make_gateway(recorder(tape, CassetteMode.REPLAY)).check("tape")
    assert health.ok and "1 exchange" in health.detail
    assert json.loads(content(tape).splitlines()[0]) == {"format": "milepost-cassette", "version": 1}
