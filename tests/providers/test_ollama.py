"""What is Ollama's own: options, thinking, calls written as text, models that load."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.domain.content import BlobRef, Content
from milepost.domain.errors import ModelUnavailable
from milepost.domain.messages import FinishReason, ImagePart, ResponseFormat, Sampling, TextPart, UserMessage
from milepost.domain.providers import OllamaProfile, OllamaProvider
from milepost.domain.usage import Usage
from milepost.providers.gateway import Gateway
from milepost.providers.ollama.recovery import MAX_RECOVERED, MAX_TEXT, written_calls
from milepost.providers.raw_json import raw_at
from tests.providers.conftest import READ, Make, hear, request
from tests.providers.test_conformance import CALLS, chat
from tests.support.ollama_server import OllamaServer
from tests.support.wire_server import Reply

Endpoint = Callable[..., Gateway]
CALL = '{"name": "read_file", "arguments": {"path": "a.txt",  "n": 1.0}}'
RAW = '{"path": "a.txt",  "n": 1.0}'


@pytest.fixture
def server() -> Iterator[OllamaServer]:
    made = OllamaServer().start()
    yield made
    made.close()


@pytest.fixture
def ollama(make_gateway: Make, server: OllamaServer) -> Endpoint:
    def make(**changes: Any) -> Gateway:
        values = {"name": "fake", "base_url": server.base_url, "default_model": "fake-small"}
        return make_gateway(OllamaProvider(**{**values, **changes}))

    return make


async def test_options_images_and_formats_go_out(ollama: Endpoint, server: OllamaServer) -> None:
    profile = OllamaProfile(num_ctx=32768, keep_alive="10m", think="switch", options={"seed": 7})
    image = ImagePart(BlobRef("0" * 64, 4, "image/png"), "a.png", "iVBORw==")
    sampling = Sampling(
        temperature=0.5,
        top_p=0.9,
        max_tokens=9,
        stop=("END",),
        reasoning_effort="low",
        response_format=ResponseFormat(),
    )
    asked = request(tools=(READ,), sampling=sampling, messages=[UserMessage(Content("look"), (image,))])
    server.plan(Reply(text="{}"))
    heard = await hear(ollama(profile=profile), asked)
    assert server.chats[0].body == {
        "model": "fake-small",
        "stream": True,
        "think": True,
        "options": {
            "temperature": 0.5, "top_p": 0.9, "num_predict": 9, "stop": ["END"], "num_ctx": 32768, "seed": 7
        },
        "keep_alive": "10m",
        "format": "json",
        "tools": [
            {
                "type": "function",
                "function": {"name": "read_file", "description": "Read a file.", "parameters": READ.parameters},
            }
        ],
        "messages": [
            {"role": "system", "content": "You are a test."},
            {"role": "user", "content": "look", "images": ["iVBORw=="]},
        ],
    }  # fmt: skip
    assert heard.done.diagnostics == ()


@pytest.mark.parametrize(
    ("think", "effort", "sent"),
    [
        ("default", None, None),
        ("default", "low", None),
        ("switch", "none", False),
        ("switch", "high", True),
        ("levels", "high", "high"),
        ("off", "high", False),
    ],
)
async def test_thinking_is_told_as_the_profile_says(
    ollama: Endpoint, server: OllamaServer, think: Any, effort: str | None, sent: object
) -> None:
    gateway = ollama(profile=OllamaProfile(think=think))
    heard = await hear(gateway, request(sampling=Sampling(reasoning_effort=effort)))
    assert server.chats[0].body.get("think") == sent
    assert bool(heard.done.diagnostics) == (think == "default" and effort is not None)


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        f"```json\n{CALL}\n```",
        f"<tool_call>\n{CALL}\n</tool_call>",
        f'{{"function": {CALL}}}',
        '{"name": "read_file", "parameters": ' + RAW + "}",
        '{"tool": "read_file", "args": ' + RAW + "}",
    ],
)
async def test_a_call_written_as_text_is_recovered_and_marked(
    ollama: Endpoint, server: OllamaServer, text: str
) -> None:
    gateway = ollama()
    server.plan(Reply(reasoning="hm", text=text))
    done = (await hear(gateway, request(tools=(READ,)))).done
    (call,) = done.message.calls
    assert (call.tool, call.arguments.text, call.recovered) == ("read_file", RAW, True)
    assert done.finish is FinishReason.TOOL_CALLS and done.message.text == ""
    assert any("recovered" in line for line in done.diagnostics)
    await hear(gateway, request(tools=(READ,), messages=chat(done.message)))
    assert server.chats[1].body["messages"][2]["tool_calls"][0]["function"]["name"] == "read_file"


@pytest.mark.parametrize(
    "text",
    [
        f"I call {CALL}",
        f"{CALL}\nand wait",
        '{"name": "rm_rf", "arguments": {}}',
        '{"name": "read_file", "arguments": [1]}',
        '{"name": "read_file", "arguments": {"path": ',
        f"<tool_call>{CALL}</tool_call> then <tool_call>nonsense</tool_call>",
        f"<tool_call>{CALL}</tool_call>" * (MAX_RECOVERED + 1),
        '{"name": "read_file", "arguments": {"path": "' + "x" * MAX_TEXT + '"}}',
        '{"path": "a.txt"}',
    ],
)
async def test_any_other_text_stays_text(ollama: Endpoint, server: OllamaServer, text: str) -> None:
    server.plan(Reply(text=text, piece=4000))
    done = (await hear(ollama(), request(tools=(READ,)))).done
    assert (done.message.text, done.message.calls) == (text, ())


async def test_recovery_is_for_offered_tools_whole_answers_and_by_setting(
    ollama: Endpoint, server: OllamaServer
) -> None:
    off = OllamaProfile(recover_calls=False)
    for gateway, tools, finish in (
        (ollama(), (), "stop"),
        (ollama(), (READ,), "length"),
        (ollama(profile=off), (READ,), "stop"),
    ):
        server.plan(Reply(text=CALL, finish=finish))
        done = (await hear(gateway, request(tools=tools))).done
        assert done.message.parts == (TextPart(CALL),)
    # Real calls beside such a text: the text is an answer.
    server.plan(Reply(text=CALL, calls=CALLS))
    done = (await hear(ollama(), request(tools=(READ,)))).done
    assert done.message.text == CALL and not any(call.recovered for call in done.message.calls)


async def test_several_calls_in_tags_are_recovered_in_order(ollama: Endpoint, server: OllamaServer) -> None:
    server.plan(Reply(text=f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL.replace('a.txt', 'b.txt')}"))
    done = (await hear(ollama(), request(tools=(READ,)))).done
    assert [call.arguments.text for call in done.message.calls] == [RAW, RAW.replace("a.txt", "b.txt")]
    assert len({call.call_id for call in done.message.calls}) == 2


async def test_all_calls_of_a_large_event_are_read_in_one_go(
    ollama: Endpoint, server: OllamaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def counted(text: str, *path: str | int) -> str | None:
        read.append(len(text))
        return raw_at(text, *path)

    monkeypatch.setattr("milepost.providers.ollama.answer.raw_at", counted)
    calls = [{"function": {"name": "read_file", "arguments": {"path": f"{at}"}}} for at in range(1_000)]
    event = {"message": {"content": "", "tool_calls": calls}, "done": True, "prompt_eval_count": 1, "eval_count": 1}
    server.plan(Reply(events=[event]))
    done = (await hear(ollama(), request(tools=(READ,)))).done
    assert [call.arguments.text for call in done.message.calls] == [f'{{"path": "{at}"}}' for at in range(1_000)]
    # The whole event once, and each call once.
    assert sum(read) < 3 * len(json.dumps(event))


@given(st.text(max_size=200) | st.text(st.sampled_from('{}[]":,`<>/_ntoolcal \n\\'), max_size=60))
def test_no_text_breaks_the_search_for_calls(text: str) -> None:
    for call in written_calls(text, {"read_file"}):
        assert call.tool == "read_file"


async def test_a_server_that_loads_is_unavailable_for_now(ollama: Endpoint, server: OllamaServer) -> None:
    gateway = ollama()
    server.plan(Reply(status=503, body='{"error": "server busy, please try again"}'))
    with pytest.raises(ModelUnavailable, match="server busy"):
        await hear(gateway, request())
    server.plan(Reply(finish="load"))
    with pytest.raises(ModelUnavailable, match="loaded the model"):
        await hear(gateway, request())


async def test_a_count_that_is_missing_is_unknown(ollama: Endpoint, server: OllamaServer) -> None:
    end = {"model": "m", "message": {"content": "x"}, "done": True, "done_reason": "stop", "eval_count": 3}
    server.plan(Reply(events=[end]))
    assert (await hear(ollama(), request())).done.usage == Usage(output_tokens=3, complete=False)


@pytest.mark.parametrize("model", ["fake-small", "fake-small:latest"])
async def test_a_check_tells_what_the_model_can_and_how_much_it_reads(
    ollama: Endpoint, server: OllamaServer, model: str
) -> None:
    health = await ollama().check("fake", model)
    assert health.ok and "takes tools" in health.detail and "32,768" in health.detail
    assert health.fix is not None and "num_ctx" in health.fix
    health = await ollama(profile=OllamaProfile(num_ctx=8192)).check("fake", model)
    assert health.ok and health.fix is None
    missing = await ollama().check("fake", "fake-smal")
    assert not missing.ok and "fake-small" in str(missing.fix)
