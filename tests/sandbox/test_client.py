"""The worker's side of the protocol against a supervisor that misbehaves, restarts or falls silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from milepost.domain.errors import SandboxLost, SandboxUnavailable
from milepost.ports.sandbox import Exec
from milepost.sandboxes import client as clients
from milepost.sandboxes.client import LinkDown, SandboxGone, SupervisorClient
from milepost.sandboxes.supervisor import wire

Answer = Callable[["Peer", dict[str, Any]], None]
CUT = object()


class Peer:
    """One link to a made-up supervisor: greets, then answers each request as the test says."""

    def __init__(self, boot: str, answer: Answer, protocol: int = wire.PROTOCOL) -> None:
        self._answer = answer
        self._decoder = wire.Decoder()
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        self.requests: list[dict[str, Any]] = []
        self.say({"t": "hello", "protocol": protocol, "boot": boot, "facts": {}})

    def say(self, head: dict[str, Any], body: bytes = b"") -> None:
        self._queue.put_nowait(wire.encode(head, body))

    def cut(self) -> None:
        self._queue.put_nowait(b"")

    async def receive(self) -> bytes:
        return await self._queue.get()

    async def send(self, data: bytes) -> None:
        for head, _ in self._decoder.feed(data):
            self.requests.append(head)
            self._answer(self, head)

    async def close(self) -> None:
        self.cut()


class Supervisors:
    """Hands out peers in turn, or raises what stands in their place."""

    def __init__(self, *peers: Peer | Exception) -> None:
        self.peers = list(peers)
        self.connected = 0

    async def connect(self) -> Peer:
        found = self.peers[min(self.connected, len(self.peers) - 1)]
        self.connected += 1
        if isinstance(found, Exception):
            raise found
        return found


def done(peer: Peer, head: dict[str, Any], **fields: Any) -> None:
    peer.say({"t": "ack", "rid": head["rid"], "attached": False})
    peer.say({"t": "done", "rid": head["rid"], "exit_code": 0, **fields})


def cut(peer: Peer, _head: dict[str, Any]) -> None:
    peer.cut()


def unknown(peer: Peer, head: dict[str, Any]) -> None:
    peer.say({"t": "unknown", "rid": head["rid"], "evicted": False})


def client_of(*peers: Peer | Exception, seconds: float = 0.3) -> tuple[SupervisorClient, Supervisors]:
    supervisors = Supervisors(*peers)
    return SupervisorClient(supervisors.connect, reconnect_seconds=seconds), supervisors


async def test_a_request_that_never_arrived_is_sent_again_to_the_same_supervisor() -> None:
    first, second = (
        Peer("boot", cut),
        Peer("boot", lambda peer, head: (done if head["t"] == "run" else unknown)(peer, head)),
    )
    client, _ = client_of(first, second)
    outcome = await client.perform("e", Exec("x"))
    assert (outcome.exit_code, outcome.attached) == (0, False)
    assert [head["t"] for head in (*first.requests, *second.requests)] == ["run", "attach", "run"]
    await client.close()


async def test_a_restarted_supervisor_is_never_asked_to_run_it_again() -> None:
    second = Peer("another boot", done)
    client, _ = client_of(Peer("boot", cut), second)
    with pytest.raises(SandboxLost, match="restarted"):
        await client.perform("e", Exec("x"))
    assert second.requests == []
    await client.close()


async def test_nothing_is_taken_from_another_supervisor_than_the_first() -> None:
    """Neither a new operation nor the word that something is dead; and its link is not kept."""
    client, _ = client_of(Peer("boot", cut), *(Peer("another boot", done) for _ in range(3)))
    with pytest.raises(SandboxLost):
        await client.perform("e", Exec("x"))
    with pytest.raises(SandboxUnavailable, match="nothing was done"):
        await client.perform("f", Exec("x"))
    with pytest.raises(SandboxUnavailable, match="another supervisor"):
        await client.kill("e")
    assert (client.replaced, client.connected, client.boot) == (True, False, "boot")


async def test_after_the_hand_over_silence_is_loss_and_before_it_is_unavailability() -> None:
    client, _ = client_of(Peer("boot", cut), LinkDown("refused"))
    with pytest.raises(SandboxLost, match="unknown"):
        await client.perform("e", Exec("x"))
    client, _ = client_of(LinkDown("refused"))
    with pytest.raises(SandboxUnavailable):
        await client.perform("e", Exec("x"))
    with pytest.raises(SandboxLost):
        await client.attach("e")


async def test_a_container_that_is_gone_is_told_at_once() -> None:
    client, supervisors = client_of(SandboxGone("It was removed."), seconds=60)
    with pytest.raises(SandboxUnavailable, match="removed"):
        await client.perform("e", Exec("x"))
    with pytest.raises(SandboxLost, match="removed"):
        await client.attach("e")
    await client.kill("e")
    assert supervisors.connected == 3


@pytest.mark.parametrize("answer", ["refused", "unknown"])
async def test_only_a_confirmed_kill_is_a_kill(answer: str) -> None:
    client, _ = client_of(Peer("boot", lambda peer, head: peer.say({"t": answer, "rid": head["rid"]})))
    with pytest.raises(SandboxUnavailable, match="not confirm"):
        await client.kill("e")
    await client.close()


async def test_an_outcome_no_longer_kept_is_a_loss_not_a_second_run() -> None:
    peer = Peer("boot", lambda peer, head: peer.say({"t": "unknown", "rid": head["rid"], "evicted": True}))
    client, _ = client_of(peer)
    with pytest.raises(SandboxLost, match="no longer kept"):
        await client.perform("e", Exec("x"))
    assert len(peer.requests) == 1
    await client.close()


async def test_another_protocol_is_refused() -> None:
    client, _ = client_of(Peer("boot", done, protocol=99))
    with pytest.raises(LinkDown, match="protocol 99"):
        await client.hello()


async def test_a_failing_listener_does_not_harm_the_command() -> None:
    def answer(peer: Peer, head: dict[str, Any]) -> None:
        for piece in (b"a", b"b"):
            peer.say({"t": "out", "rid": head["rid"], "s": "stdout"}, piece)
        done(peer, head)

    calls: list[bytes] = []

    def listener(_stream: str, data: bytes) -> None:
        calls.append(data)
        raise RuntimeError("full")

    client, _ = client_of(Peer("boot", answer))
    assert (await client.perform("e", Exec("x"), listener)).stdout == b"ab"
    assert calls == [b"a"]
    await client.close()


async def test_output_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forged stream costs bounded memory and a bounded number of tries, then the outcome is unknown."""
    monkeypatch.setattr(clients, "MAX_OUTPUT", 1000)
    monkeypatch.setattr(clients, "MAX_LINKS", 3)

    def flood(peer: Peer, head: dict[str, Any]) -> None:
        for _ in range(20):
            peer.say({"t": "out", "rid": head["rid"], "s": "stdout"}, bytes(100))

    client, _ = client_of(*(Peer("boot", flood) for _ in range(3)))
    with pytest.raises(SandboxLost, match="3 times"):
        await client.perform("e", Exec("x"))
    await client.close()


@pytest.mark.parametrize(
    "answer",
    [
        {"t": "out", "s": "elsewhere"},
        {"t": "done", "exit_code": "seven"},
        {"t": "done", "detail": 7},
        {"t": []},
        {"t": "other"},
    ],
)
async def test_malformed_answers_end_in_a_clear_error(answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_LINKS", 2)
    peers = [Peer("boot", lambda peer, head: peer.say({**answer, "rid": head["rid"]})) for _ in range(2)]
    client, _ = client_of(*peers)
    async with asyncio.timeout(20):
        with pytest.raises((SandboxLost, SandboxUnavailable)):
            await client.perform("e", Exec("x"))
    await client.close()


async def test_forged_details_do_not_reach_the_ledger() -> None:
    detail = {"a": 1, "b": [1], "c": {"d": 1}, "e": "x" * 5000, "f": "fine"}
    client, _ = client_of(Peer("boot", lambda peer, head: done(peer, head, detail=detail, error="x" * 10**5)))
    outcome = await client.perform("e", Exec("x"))
    assert outcome.detail == {"a": 1, "f": "fine"}
    assert len(str(outcome.error)) < 20_000
    await client.close()


async def test_a_silent_peer_is_a_dead_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "PING_SECONDS", 0.02)
    monkeypatch.setattr(clients, "SILENCE_SECONDS", 0.1)
    silent = Peer("boot", lambda _peer, _head: None)
    client, _ = client_of(silent, LinkDown("down"))
    with pytest.raises(SandboxLost):
        await client.perform("e", Exec("x"))
    assert "ping" in [head["t"] for head in silent.requests]


async def test_many_callers_share_one_connection() -> None:
    client, supervisors = client_of(Peer("boot", done))
    await asyncio.gather(*(client.perform(f"e{number}", Exec("x")) for number in range(20)))
    assert supervisors.connected == 1
    await client.close()


async def test_with_a_boot_only_that_supervisor_starts_the_operation() -> None:
    other = Peer("other", unknown)
    client, _ = client_of(other)
    with pytest.raises(SandboxUnavailable, match="nothing was done"):
        await client.perform("e", Exec("x"), boot="boot")
    with pytest.raises(SandboxLost):
        await client.attach("e", operation=Exec("x"), boot="boot")
    assert [head["t"] for head in other.requests] == ["attach"]
    await client.close()


async def test_attaching_with_the_operation_starts_what_never_arrived() -> None:
    peer = Peer("boot", done)
    client, _ = client_of(peer)
    outcome = await client.attach("e", operation=Exec("x"), boot="boot")
    assert (outcome.exit_code, [head["t"] for head in peer.requests]) == (0, ["run"])
    await client.close()
