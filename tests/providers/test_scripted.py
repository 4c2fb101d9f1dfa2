"""The script format and what the scripted provider makes of it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from milepost.domain.content import Content
from milepost.domain.errors import (
    InvalidInput,
    ModelIncomplete,
    ModelRateLimited,
    ModelUnavailable,
    PayloadTooLarge,
    ScriptExhausted,
)
from milepost.domain.messages import FinishReason, ReasoningPart, TextPart
from milepost.domain.providers import ScriptedProvider
from milepost.domain.usage import Usage
from milepost.ports.models import ModelRequest
from milepost.providers.gateway import Gateway
from milepost.providers.scripted import nodes
from milepost.providers.scripted.script import parse_script
from tests.providers.conftest import READ, Heard, Make, hear, request, user


@pytest.fixture
def gateway(make_gateway: Make) -> Gateway:
    return make_gateway(ScriptedProvider("s"))


def play(script: str, **changes: Any) -> ModelRequest:
    return request("s", script=script, **changes)


async def test_an_answer_streams_in_small_pieces(gateway: Gateway) -> None:
    script = """
responses:
  - text: "Grüße, 世界!\\n\\n  Two  spaces and averyveryverylongwordwithoutanyspaces.\\n"
    reasoning: I think.
    calls:
      - tool: read_file
        args: {path: a.txt, n: 1, deep: {list: [1, 2.5, true, null, "ü"]}}
      - {tool: bash, args: '{"command": "cut'}
      - {tool: bash}
"""
    heard = await hear(gateway, play(script, tools=(READ,)))
    text = "Grüße, 世界!\n\n  Two  spaces and averyveryverylongwordwithoutanyspaces.\n"
    assert heard.text == text and len(heard.items) > 10
    assert heard.done.message.parts[:2] == (ReasoningPart("I think."), TextPart(text))
    raw = [call.arguments.text for call in heard.done.message.calls]
    assert json.loads(raw[0]) == {"path": "a.txt", "n": 1, "deep": {"list": [1, 2.5, True, None, "ü"]}}
    assert raw[1:] == ['{"command": "cut', "{}"]
    assert heard.done.finish is FinishReason.TOOL_CALLS


async def test_the_nth_call_gets_the_nth_response(gateway: Gateway) -> None:
    script = """
responses: [{text: one}, {text: two}]
agents:
  reviewer: [{text: mine}]
"""
    assert (await hear(gateway, play(script, call_number=1))).text == "one"
    assert (await hear(gateway, play(script, call_number=2, attempt=3))).text == "two"
    assert (await hear(gateway, play(script, agent="reviewer"))).text == "mine"
    with pytest.raises(ScriptExhausted) as caught:
        await hear(gateway, play(script, call_number=3))
    assert "2 response(s)" in caught.value.message and "number 3" in caught.value.message
    with pytest.raises(ScriptExhausted, match="reviewer"):
        await hear(gateway, play(script, agent="reviewer", call_number=2))


async def test_call_ids_are_stable(gateway: Gateway) -> None:
    script = "responses: [{calls: [{tool: a}, {tool: a}]}]"

    async def ids(**changes: Any) -> list[str]:
        return [call.call_id for call in (await hear(gateway, play(script, **changes))).done.message.calls]

    first = await ids()
    assert len(set(first)) == 2
    assert await ids(attempt=4) == first
    assert not set(await ids(idempotency_key="other")) & set(first)


async def test_usage_is_scripted_or_counted_by_the_stated_rule(gateway: Gateway) -> None:
    scripted = "responses: [{text: x, usage: {input: 1, cached_input_tokens: 2, output: 3, reasoning: 4}}]"
    assert (await hear(gateway, play(scripted))).done.usage == Usage(1, 2, 3, 4)
    unknown = "responses: [{text: x, usage: {input: 1, complete: false}}]"
    assert (await hear(gateway, play(unknown))).done.usage == Usage(1, complete=False)
    counted = await hear(gateway, play('responses: [{text: "ééé", reasoning: "12345"}]', system_prompt="1234"))
    # "1234" and "hello" are 9 bytes, three é are 6, the reasoning 5; four bytes a token, rounded up.
    assert counted.done.usage == Usage(3, 0, 2, 2)


async def test_the_first_attempts_fail_as_scripted(gateway: Gateway) -> None:
    script = "responses: [{text: at last, fail: {status: 429, retry_after: 1.5, times: 2}}]"
    for attempt in (1, 2):
        with pytest.raises(ModelRateLimited) as caught:
            await hear(gateway, play(script, attempt=attempt))
        assert caught.value.retry_after == 1.5
    assert (await hear(gateway, play(script, attempt=3))).text == "at last"
    with pytest.raises(ModelUnavailable):
        await hear(gateway, play("responses: [{text: x, fail: {status: 503}}]"))


async def test_a_disconnect_cuts_the_first_attempt(gateway: Gateway) -> None:
    script = "responses: [{text: one two three four five six seven eight, cut: disconnect}]"
    pieces: list[str] = []
    with pytest.raises(ModelIncomplete):
        async for item in gateway.stream(play(script)):
            pieces.append(getattr(item, "text", ""))
    assert 0 < len("".join(pieces)) < len("one two three four five six seven eight")
    assert (await hear(gateway, play(script, attempt=2))).text == "one two three four five six seven eight"
    always = "responses: [{text: one two, cut: {kind: disconnect, times: 9}}]"
    with pytest.raises(ModelIncomplete):
        await hear(gateway, play(always, attempt=9))


async def test_a_length_cut_leaves_arguments_that_do_not_parse(gateway: Gateway) -> None:
    script = "responses: [{text: abc, cut: length, calls: [{tool: a, args: {k: v}}, {tool: b, args: {k: v}}]}]"
    done = (await hear(gateway, play(script, attempt=5))).done
    assert done.finish is FinishReason.LENGTH
    assert json.loads(done.message.calls[0].arguments.text) == {"k": "v"}
    with pytest.raises(ValueError):
        json.loads(done.message.calls[1].arguments.text)


async def test_delay_lies_between_deltas_and_before_the_end(gateway: Gateway) -> None:
    began = time.monotonic()
    await hear(gateway, play("responses: [{text: one two three, delay: 0.05}]"))
    assert time.monotonic() - began >= 0.15
    began = time.monotonic()
    await hear(gateway, play("responses: [{calls: [{tool: a}], delay: 0.05}]"))
    assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize(
    ("script", "line", "says"),
    [
        ("responses:\n  - txt: hello\n", 2, "Did you mean 'text'?"),
        ("respnses: []\n", 1, "Did you mean 'responses'?"),
        ("responses:\n  - text: a\n  - text: b\n    call: []\n", 4, "Did you mean 'calls'?"),
        ("responses:\n  - calls:\n      - tool: a\n        arg: {}\n", 4, "Did you mean 'args'?"),
        ("responses:\n  - {}\n", 2, "needs `text`"),
        ("responses:\n  - calls: [{args: {}}]\n", 2, "needs `tool`"),
        ("responses:\n  - calls: [{tool: a, args: [1]}]\n", 2, "'args' must be a text"),
        ("responses:\n  - text: [a]\n", 2, "'text' must be a text, not a list"),
        ("responses:\n  - text: ~\n", 2, "'text' must be a text, not null"),
        ("responses:\n  text: a\n", 2, "'responses' must be a list"),
        ("responses:\n  - text: a\n    delay: soon\n", 3, "'delay' must be a number"),
        ("responses:\n  - text: a\n    delay: -1\n", 3, "'delay' must be a number"),
        ("responses:\n  - text: a\n    cut: short\n", 3, "length or disconnect"),
        ("responses:\n  - text: a\n    fail: {status: 200}\n", 3, "from 400 to 599"),
        ("responses:\n  - text: a\n    fail: {retry_after: 3}\n", 3, "needs `status`"),
        ("responses:\n  - text: a\n    usage: {inputs: 3}\n", 3, "Did you mean 'input'?"),
        ("responses:\n  - text: a\n    usage: {input: 3, input_tokens: 4}\n", 3, "twice"),
        ("responses:\n  - text: a\n    usage: {input: 1.5}\n", 3, "whole number"),
        ("responses:\n  - calls: [{tool: a, args: {n: .nan}}]\n", 2, "not a number JSON has"),
        ("responses:\n  - calls: [{tool: a, args: {n: 0x" + "F" * 5000 + "}}]\n", 2, "over 400 characters"),
        ("responses:\n  - calls: [{tool: a, args: {n: 0o" + "7" * 5000 + "}}]\n", 2, "over 400 characters"),
        ("responses:\n  - calls: [{tool: a, args: {n: " + "9" * 5000 + "}}]\n", 2, "over 400 characters"),
        ("responses:\n  - text: a\n    usage: {input: 0x" + "F" * 5000 + "}\n", 3, "over 400 characters"),
        ("responses:\n  - text: a\n    text: b\n", 3, "'text' twice"),
        ("responses: &x\n  - text: a\nagents: {b: *x}\n", 1, "aliases"),
        ("responses: [\n", 2, "not YAML"),
        ("responses:\n\t- text: a\n", 2, "not YAML"),
        ("- text: a\n", 1, "must be a mapping"),
        ("", 1, "empty"),
        ("{}", 1, "no responses"),
        ("\0", 1, "not YAML"),
        ("[" * 1000, 1, "not YAML"),
    ],
)
def test_a_malformed_script_is_refused_with_its_line(script: str, line: int, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_script(script)
    assert f"line {line}:" in caught.value.message
    assert says in str(caught.value)


def test_a_script_is_yaml_1_2() -> None:
    (response,) = parse_script(
        "responses: [{text: no, calls: [{tool: on, args: {yes: 12:30, d: 2026-01-01}}]}]"
    ).responses
    assert (response.text, response.calls[0].tool) == ("no", "on")
    assert json.loads(response.calls[0].arguments) == {"yes": "12:30", "d": "2026-01-01"}


def test_scripts_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "MAX_SCRIPT_BYTES", 1000)
    with pytest.raises(PayloadTooLarge, match="1000 bytes"):
        parse_script("responses: [{text: " + "x" * 1000 + "}]")


async def test_the_gateway_refuses_a_bad_script_before_any_call(gateway: Gateway) -> None:
    with pytest.raises(InvalidInput, match="line 1"):
        gateway.validate("s", "", "respnses: []")
    gateway.validate("s", "", "responses: [{text: a}]")


async def test_a_provider_may_have_its_own_script(make_gateway: Make) -> None:
    gateway = make_gateway(ScriptedProvider("s", script="responses: [{text: own}]"))
    assert (await hear(gateway, request("s"))).text == "own"
    assert (await hear(gateway, play("responses: [{text: of the turn}]"))).text == "of the turn"
    assert (await gateway.check("s")).ok
    broken = make_gateway(ScriptedProvider("s", script="x: 1"))
    health = await broken.check("s")
    assert not health.ok and "line 1" in health.detail


async def test_large_arguments_are_possible(gateway: Gateway) -> None:
    body = "x" * 2_000_000
    script = f"responses: [{{calls: [{{tool: write_file, args: {{path: a, content: {body}}}}}]}}]"
    done: Heard = await hear(gateway, play(script))
    assert json.loads(done.done.message.calls[0].arguments.text)["content"] == body


async def test_any_text_can_be_counted(gateway: Gateway) -> None:
    messages = [user("\ud800\0")]
    done = await hear(gateway, play("responses: [{text: a}]", messages=messages))
    assert done.done.usage.input_tokens > 0
    assert messages[0].text == Content("\ud800\0")
