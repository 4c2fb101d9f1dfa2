"""The models a provider lists: bounded in number, size and time, and never taken for more than they are."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from milepost.domain.errors import (
    ModelAnswerMalformed,
    ModelAnswerTooLarge,
    ModelError,
    ModelTimedOut,
    ModelUnauthorized,
    ModelUnavailable,
)
from milepost.providers import health
from milepost.providers.gateway import Gateway
from tests.providers.conftest import KEY
from tests.providers.wires import WIRES, Wire
from tests.support.openai_server import OpenAIServer, Reply

Endpoint = Callable[..., Gateway]


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: str(wire.name))
async def test_every_type_lists_its_models_and_finds_its_own(wire: Wire, make_gateway: Callable[..., Gateway]) -> None:
    server = wire.server(key=KEY).start()
    try:
        gateway = make_gateway(wire.made(server, api_key="env:KEY"))
        found = await gateway.models("fake")
        assert found is not None and [info.model_id for info in found] == ["fake-small", "fake-large"]
        assert (await gateway.check("fake", "fake-large")).ok
        missing = await gateway.check("fake", "fake-larg")
        assert not missing.ok and "fake-large" in str(missing.fix)
        refused = make_gateway(wire.made(server))
        with pytest.raises(ModelUnauthorized):
            await refused.models("fake")
        assert not server.chats, "a list costs nothing"
    finally:
        server.close()


async def test_a_long_list_is_cut_and_hides_secrets(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    model_server.models = (f"has-{KEY}", *(f"m{number}" for number in range(5_000)))
    found = await endpoint(api_key="env:KEY").models("fake")
    assert found is not None and len(found) == health.MAX_LISTED
    assert KEY not in found[0].model_id and found[1].model_id == "m0"


async def test_a_list_of_megabytes_is_not_read_to_its_end(
    endpoint: Endpoint, model_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "MAX_LIST_BYTES", 10_000)
    model_server.models = tuple(f"m{number}" for number in range(5_000))
    with pytest.raises(ModelAnswerTooLarge, match="10000 bytes"):
        await endpoint().models("fake")


async def test_a_server_without_a_list_has_none(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    model_server.plan(Reply(status=404, body="no such route"))
    assert await endpoint().models("fake") is None


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(status=500, body="broken"), ModelUnavailable),
        (Reply(status=203, body="[]"), ModelError),
    ],
)
async def test_a_refusal_is_an_error_by_its_class(
    endpoint: Endpoint, model_server: OpenAIServer, reply: Reply, kind: type[ModelError]
) -> None:
    model_server.plan(reply)
    with pytest.raises(kind):
        await endpoint().models("fake")


@pytest.mark.parametrize("body", ["<html>", "[]", json.dumps({"data": 7}), json.dumps({"data": [7]}), "[" * 100_000])
async def test_what_is_no_list_is_said(
    endpoint: Endpoint, model_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    async def fetch(*_: object) -> tuple[int, bytes]:
        return 200, body.encode()

    monkeypatch.setattr(health, "_fetch", fetch)
    with pytest.raises(ModelAnswerMalformed, match="not with a list"):
        await endpoint().models("fake")
    # Health is of the endpoint: one that answers can be used.
    assert (await endpoint().check("fake")).ok


async def test_a_list_that_never_comes_is_timed(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fetch(*_: object) -> tuple[int, bytes]:
        raise TimeoutError

    monkeypatch.setattr(health, "_fetch", fetch)
    with pytest.raises(ModelTimedOut):
        await endpoint().models("fake")


async def test_names_are_one_line_and_windows_are_numbers_of_tokens(
    make_gateway: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [
        {"name": "models/a\nok   other (openai): 9 models listed.", "inputTokenLimit": True},
        {"name": "models/b\x1b[31m", "inputTokenLimit": -5},
        {"name": "models/c", "inputTokenLimit": 10**300},
        {"name": "models/d", "inputTokenLimit": 8_192},
    ]
    wire = next(wire for wire in WIRES if wire.name == "gemini")
    monkeypatch.setattr(wire.server, "listed", lambda self: {"models": entries})
    server = wire.server().start()
    try:
        found = await make_gateway(wire.made(server)).models("fake")
    finally:
        server.close()
    assert found is not None
    assert [info.model_id for info in found] == ["a ok other (openai): 9 models listed.", "b [31m", "c", "d"]
    assert [info.context_tokens for info in found] == [None, None, None, 8_192]
