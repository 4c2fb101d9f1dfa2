"""Images in, and answers as JSON, on an OpenAI-compatible endpoint."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from milepost.domain.content import BlobRef, Content
from milepost.domain.messages import ImagePart, ResponseFormat, Sampling, UserMessage
from milepost.domain.providers import EndpointProfile
from milepost.ledger.codec import decode, encode
from milepost.providers.gateway import Gateway
from tests.providers.conftest import READ, hear, request, user
from tests.support.openai_server import OpenAIServer, Reply
from tests.support.validators import formats, validate

Endpoint = Callable[..., Gateway]
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
IMAGE = ImagePart(BlobRef("0" * 64, 8, "image/png"), "plan.png", PNG)
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


async def test_images_go_out_beside_the_text_and_survive_joining(
    endpoint: Endpoint, model_server: OpenAIServer
) -> None:
    messages = [UserMessage(Content("look"), (IMAGE,)), user("and say"), UserMessage(Content(""), (IMAGE,))]
    await hear(endpoint(), request(messages=messages))
    sent = model_server.chats[0].body["messages"][1]["content"]
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    assert sent == [{"type": "text", "text": "look\n\nand say"}, image, image]


async def test_an_endpoint_without_images_is_told_what_is_missing(
    endpoint: Endpoint, model_server: OpenAIServer
) -> None:
    gateway = endpoint(profile=EndpointProfile(supports_images=False))
    heard = await hear(gateway, request(messages=[UserMessage(Content("look"), (IMAGE,))]))
    assert model_server.chats[0].body["messages"][1]["content"] == "look\n[Image plan.png was left out.]"
    assert any("no images" in line for line in heard.done.diagnostics)


@pytest.mark.parametrize(
    ("wanted", "how", "sent", "said"),
    [
        (ResponseFormat(SCHEMA, "sum"), "schema", {"name": "sum", "schema": SCHEMA, "strict": True}, ()),
        (ResponseFormat(), "schema", None, ()),
        (ResponseFormat(SCHEMA), "object", None, ("no JSON schema",)),
        (ResponseFormat(SCHEMA), "none", ..., ("'response_format'",)),
    ],
)
async def test_a_json_format_goes_out_as_far_as_the_endpoint_takes_it(
    endpoint: Endpoint,
    model_server: OpenAIServer,
    wanted: ResponseFormat,
    how: Any,
    sent: Any,
    said: tuple[str, ...],
) -> None:
    gateway = endpoint(profile=EndpointProfile(json_output=how))
    heard = await hear(gateway, request(sampling=Sampling(response_format=wanted)))
    body = model_server.chats[0].body
    if sent is ...:
        assert "response_format" not in body
    elif sent is None:
        assert body["response_format"] == {"type": "json_object"}
    else:
        assert body["response_format"] == {"type": "json_schema", "json_schema": sent}
    # The last line says that the fake's answer is no JSON.
    assert [word in line for word, line in zip(said, heard.done.diagnostics[:-1], strict=True)] == [True] * len(said)


def test_a_message_with_images_survives_the_codec() -> None:
    message = UserMessage(Content("look"), (IMAGE,))
    assert decode(encode(message), UserMessage) == message


def test_the_validators_are_found_by_format() -> None:
    assert "openai_chat" in formats()
    assert validate("openai_chat", '{"model": "m", "messages": [{"role": "user", "content": "a"}]}') == []
    bad = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:text/html;base64,AA"}}]}
    assert validate("openai_chat", {"model": "m", "messages": [bad]})


@pytest.mark.parametrize(
    ("text", "wanted", "said"),
    [
        ('{"a": 1}', ResponseFormat(SCHEMA), None),
        ('{"a": "x"}', ResponseFormat(SCHEMA), "a: 'x' is not of type 'integer'"),
        ("{}", ResponseFormat(SCHEMA), "'a' is a required property"),
        ("Sure! {}", ResponseFormat(SCHEMA), "no JSON"),
        ("{}", ResponseFormat(), None),
        ("[]", ResponseFormat(), "no object"),
    ],
)
async def test_an_answer_without_its_format_is_kept_and_said(
    endpoint: Endpoint, model_server: OpenAIServer, text: str, wanted: ResponseFormat, said: str | None
) -> None:
    model_server.plan(Reply(text=text))
    done = (await hear(endpoint(), request(sampling=Sampling(response_format=wanted)))).done
    assert done.message.text == text
    assert (said is None and done.diagnostics == ()) or (said is not None and said in done.diagnostics[0])


async def test_only_a_last_word_is_judged(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    call = {"name": "read_file", "arguments": "{}"}
    model_server.plan(Reply(text="I look.", calls=[call]), Reply(text='{"a', finish="length"))
    for _ in range(2):
        asked = request(tools=(READ,), sampling=Sampling(response_format=ResponseFormat(SCHEMA)))
        assert (await hear(endpoint(), asked)).done.diagnostics == ()
