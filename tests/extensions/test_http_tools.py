"""Tools that are requests to a peer: what is sent, how an answer is read, and how a failure is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from milepost.domain.effects import EffectClass
from milepost.domain.errors import OutcomeUnknown, ToolFailed, ToolUnavailable
from milepost.domain.extensions import HttpPeer
from milepost.extensions.http import PeerClient
from milepost.extensions.tools import ConfiguredTools
from milepost.ports.tools import Answer
from milepost.security.redaction import Redactor
from tests.extensions.conftest import SECRET, Secrets, http_tool, made
from tests.support.peer import Peer


async def called(peer: Peer, client: PeerClient, path: str, **more: Any) -> Answer:
    tools = ConfiguredTools({"t": http_tool("t", peer.url + path, **more)}, client)
    tools.load()
    return await tools.run(made("t", title="Grüße", count=2), 5)


async def test_what_the_peer_gets(peer: Peer, client: PeerClient) -> None:
    answer = await called(peer, client, "/ok", effect=EffectClass.KEYED)
    assert (answer.text, answer.is_error, answer.detail) == ("done", False, {"status": 200})
    (request,) = peer.requests
    assert request.json == {"title": "Grüße", "count": 2}
    assert request.headers["idempotency-key"] == "key-1"
    assert (request.headers["authorization"], request.headers["x-team"]) == (SECRET, "blue")
    assert (request.headers["content-type"], request.headers["user-agent"]) == ("application/json", "milepost")


@pytest.mark.parametrize("effect", [EffectClass.OBSERVE, EffectClass.IDEMPOTENT, EffectClass.AT_MOST_ONCE])
async def test_only_a_keyed_peer_gets_a_key(peer: Peer, client: PeerClient, effect: EffectClass) -> None:
    await called(peer, client, "/ok", effect=effect, method="GET")
    (request,) = peer.requests
    assert "idempotency-key" not in request.headers
    assert request.body == b"" and request.path == "/ok?title=Gr%C3%BC%C3%9Fe&count=2"


@pytest.mark.parametrize("status", [200, 500])
async def test_an_answer_is_not_cut_through_a_secret(peer: Peer, status: int) -> None:
    """Half a secret could not be found afterwards."""
    limit = 1000 if status == 200 else 4000
    half = len(SECRET) - 4
    peer.respond = lambda request: (status, b"x" * (limit - half) + SECRET.encode() + b"y" * 100)
    client = PeerClient(Secrets(), Redactor([SECRET]))
    try:
        more = {"response_bytes": limit} if status == 200 else {}
        text = (await called(peer, client, "/echoing", **more)).text
    except ToolFailed as error:
        text = str(error)
    finally:
        await client.close()
    assert text.count("x") >= limit - half and SECRET[:12] not in text and "[hidden]" in text


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("/ok?version=2", "/ok?version=2&title=Gr%C3%BC%C3%9Fe&count=2"),
        ("/ok/", "/ok/?title=Gr%C3%BC%C3%9Fe&count=2"),
        # What the model says replaces nothing but a parameter of the same name.
        ("/ok?count=1&team=a", "/ok?count=2&team=a&title=Gr%C3%BC%C3%9Fe"),
    ],
)
async def test_arguments_stand_beside_the_query_of_the_address(
    peer: Peer, client: PeerClient, path: str, sent: str
) -> None:
    await called(peer, client, path, method="GET")
    assert peer.requests[0].path == sent


async def test_a_header_is_sent_once_however_its_name_is_written(peer: Peer, client: PeerClient) -> None:
    tool = http_tool("t", f"{peer.url}/ok", EffectClass.KEYED)
    headers = {"user-agent": "ours", "content-type": "application/vnd.x+json", "idempotency-key": "always the same"}
    tools = ConfiguredTools({"t": replace(tool, peer=replace(tool.peer, headers=headers))}, client)
    tools.load()
    sent = client.request(replace(tool.peer, headers=headers), b"{}", None, "key-1").headers
    assert [sent.get_list(name) for name in ("user-agent", "content-type", "idempotency-key")] == [
        ["ours"],
        ["application/vnd.x+json"],
        ["key-1"],
    ]
    await tools.run(made("t"), 5)
    assert peer.keys() == ["key-1"]


async def test_the_header_of_the_key_can_be_named(peer: Peer, client: PeerClient) -> None:
    tool = http_tool("t", f"{peer.url}/ok", EffectClass.KEYED)
    tools = ConfiguredTools({"t": replace(tool, peer=replace(tool.peer, idempotency_header="X-Request-Id"))}, client)
    tools.load()
    await tools.run(made("t"), 5)
    assert peer.keys("x-request-id") == ["key-1"] and peer.keys() == [None]


async def test_an_answer_is_read_up_to_its_limit(peer: Peer, client: PeerClient) -> None:
    answer = await called(peer, client, "/big", response_bytes=1000)
    assert answer.text.startswith("x" * 1000 + "\n[") and len(answer.text) < 1100 and not answer.is_error
    assert "compressed" in (await called(peer, client, "/gzip")).text


@pytest.mark.parametrize(
    ("path", "error", "text", "again"),
    [
        ("/status/400", ToolFailed, "status 400: the peer says why", False),
        ("/status/500", ToolFailed, "status 500", False),
        ("/status/503", ToolFailed, "status 503", True),
        ("/status/429", ToolFailed, "status 429", True),
        ("/status/502", OutcomeUnknown, "status 502", False),
        ("/redirect", ToolFailed, "redirection (302), which is not followed", False),
        ("/drop", OutcomeUnknown, "broke off", False),
    ],
)
async def test_how_a_failure_is_told(
    peer: Peer, client: PeerClient, path: str, error: type[Exception], text: str, again: bool
) -> None:
    with pytest.raises(error) as caught:
        await called(peer, client, path)
    assert text in str(caught.value)
    assert getattr(caught.value, "retryable_now", False) is again
    assert len(peer.requests) == 1, "a redirection is not followed, and nothing is sent twice"


async def test_no_answer_in_time_leaves_the_outcome_open(peer: Peer, client: PeerClient) -> None:
    tools = ConfiguredTools({"t": http_tool("t", f"{peer.url}/slow")}, client)
    tools.load()
    with pytest.raises(OutcomeUnknown, match=r"within 0\.2 s"):
        await tools.run(made("t"), 0.2)


async def test_a_peer_that_is_not_there_was_sent_nothing(client: PeerClient) -> None:
    with Peer() as gone:
        url = gone.url
    tools = ConfiguredTools({"t": http_tool("t", url)}, client)
    tools.load()
    with pytest.raises(ToolFailed, match="cannot be reached") as caught:
        await tools.run(made("t"), 5)
    assert caught.value.retryable_now


async def test_a_secret_that_cannot_be_sent_is_not_repeated(peer: Peer) -> None:
    class Broken:
        def resolve(self, reference: str) -> str:
            return "line one\nline two"

    client = PeerClient(Broken())
    tools = ConfiguredTools({"t": http_tool("t", peer.url)}, client)
    tools.load()
    assert set(tools.problems()) == {"t"}
    with pytest.raises(ToolUnavailable) as caught:
        await tools.run(made("t"), 5)
    assert "line one" not in str(caught.value) and "env:TOKEN" in str(caught.value)
    assert peer.requests == []
    await client.close()


async def test_nothing_of_the_environment_counts(
    peer: Peer, client: PeerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Peer() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        fresh = PeerClient(client._secrets)
        tools = ConfiguredTools({"t": http_tool("t", f"{peer.url}/ok")}, fresh)
        tools.load()
        await tools.run(made("t"), 5)
        await fresh.close()
        assert proxy.requests == [] and len(peer.requests) == 1


def test_a_peer_is_what_the_configuration_says() -> None:
    assert HttpPeer("http://127.0.0.1:1").idempotency_header == "Idempotency-Key"
