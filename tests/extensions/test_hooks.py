"""Asking hooks: what a peer is sent, how its answer is read, what a package returns, and every way to fail."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from milepost.domain.errors import HookFailed, HookUnavailable
from milepost.domain.extensions import HOOKS_GROUP, HttpHook, HttpPeer, PythonHook
from milepost.domain.hooks import HookRule, HookVerdict, HookWhen
from milepost.extensions.hooks import ConfiguredHooks
from milepost.extensions.http import PeerClient
from milepost.ports.hooks import ALLOW, Decision, HookCall
from tests.extensions import hook_packages, packages
from tests.extensions.conftest import SECRET
from tests.support.peer import Peer


def asked(when: HookWhen = HookWhen.BEFORE, **arguments: Any) -> HookCall:
    result = ("42\n", False) if when is HookWhen.AFTER else (None, None)
    return HookCall("h", when, "bash", arguments, "key-1", "ses_1", "trn_1", "coder", "call-1", *result)


async def answered(peer: Peer, client: PeerClient, answer: object, when: HookWhen = HookWhen.BEFORE) -> Decision:
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    peer.respond = lambda request: (200, body)
    hooks = over(peer, client, "/hook")
    return await hooks.ask(asked(when, command="ls"), 5)


def over(peer: Peer, client: PeerClient, path: str) -> ConfiguredHooks:
    target = HttpPeer(peer.url + path, secret_headers={"Authorization": "env:TOKEN"})
    hooks = ConfiguredHooks({"h": HttpHook(HookRule("h", HookWhen.BEFORE), target)}, client)
    hooks.load()
    return hooks


async def test_what_a_peer_is_sent(peer: Peer, client: PeerClient) -> None:
    await answered(peer, client, {"decision": "allow"}, HookWhen.AFTER)
    await answered(peer, client, b"")
    after, before = peer.requests
    common = {
        "version": 1,
        "hook": "h",
        "session_id": "ses_1",
        "turn_id": "trn_1",
        "agent": "coder",
        "call_id": "call-1",
        "tool": "bash",
        "arguments": {"command": "ls"},
    }
    assert before.json == {**common, "when": "before"}
    assert after.json == {**common, "when": "after", "output": "42\n", "is_error": False}
    assert peer.keys() == ["key-1", "key-1"] and before.headers["authorization"] == SECRET


DECISIONS: list[tuple[object, HookWhen, Decision]] = [
    (b"  ", HookWhen.BEFORE, ALLOW),
    ({"decision": "allow", "reason": "fine"}, HookWhen.BEFORE, Decision(reason="fine")),
    ({"decision": "deny", "reason": "no"}, HookWhen.BEFORE, Decision(HookVerdict.DENY, "no")),
    ({"decision": "deny"}, HookWhen.AFTER, Decision(HookVerdict.DENY)),
    (
        {"decision": "rewrite", "arguments": {"command": "x"}, "output": "not asked for"},
        HookWhen.BEFORE,
        Decision(HookVerdict.REWRITE, arguments={"command": "x"}),
    ),
    ({"decision": "rewrite", "output": ""}, HookWhen.AFTER, Decision(HookVerdict.REWRITE, output="")),
]


@pytest.mark.parametrize(("answer", "when", "decision"), DECISIONS)
async def test_how_an_answer_is_read(
    peer: Peer, client: PeerClient, answer: object, when: HookWhen, decision: Decision
) -> None:
    assert await answered(peer, client, answer, when) == decision


@pytest.mark.parametrize(
    ("answer", "when"),
    [
        (b"not json", HookWhen.BEFORE),
        (b"[]", HookWhen.BEFORE),
        ({"verdict": "allow"}, HookWhen.BEFORE),
        ({"decision": "maybe"}, HookWhen.BEFORE),
        ({"decision": "rewrite"}, HookWhen.BEFORE),
        ({"decision": "rewrite", "arguments": "x"}, HookWhen.BEFORE),
        ({"decision": "rewrite", "arguments": {}}, HookWhen.AFTER),
        ({"decision": "deny", "reason": 7}, HookWhen.BEFORE),
        (b"[" * 100_000, HookWhen.BEFORE),
        (b"x" * (18 * 1024 * 1024), HookWhen.BEFORE),
    ],
)
async def test_an_answer_that_says_nothing_clear_is_a_failure(
    peer: Peer, client: PeerClient, answer: object, when: HookWhen
) -> None:
    with pytest.raises(HookFailed):
        await answered(peer, client, answer, when)


@pytest.mark.parametrize(
    ("path", "said", "again"),
    [
        ("/status/500", "status 500", False),
        ("/status/503", "status 503", True),
        ("/redirect", "status 302", False),
        ("/drop", "broke off", True),
        ("/gzip", "without a 'decision'", False),
        ("/slow", "did not answer", False),
    ],
)
async def test_how_a_peer_fails(peer: Peer, client: PeerClient, path: str, said: str, again: bool) -> None:
    with pytest.raises(HookFailed, match=said) as caught:
        await over(peer, client, path).ask(asked(command="ls"), 0.5)
    assert caught.value.retryable_now is again and len(peer.requests) == 1


@pytest.fixture
def package_hooks(client: PeerClient, monkeypatch: pytest.MonkeyPatch) -> ConfiguredHooks:
    names = ("audit", "guard", "limit", "scrub", "fail", "slow", "number", "empty", "word", "maybe", "nothing_said")
    packages.announce(monkeypatch, HOOKS_GROUP, *names, module=hook_packages.__name__)
    configs: Mapping[str, Any] = {
        name: PythonHook(HookRule(name, HookWhen.BEFORE), name) for name in (*names, "broken", "nothing")
    }
    hooks = ConfiguredHooks(configs, client)
    hooks.load()
    return hooks


def named(name: str, when: HookWhen = HookWhen.BEFORE, **arguments: Any) -> HookCall:
    call = asked(when, **arguments)
    return HookCall(name, *(getattr(call, field) for field in call.__slots__[1:]))


async def test_what_packages_return(package_hooks: ConfiguredHooks) -> None:
    assert await package_hooks.ask(named("audit", command="ls"), 5) == ALLOW
    assert hook_packages.calls[-1].idempotency_key == "key-1"
    denied = await package_hooks.ask(named("guard", command="push --force"), 5)
    assert (denied.verdict, denied.reason) == (HookVerdict.DENY, "no force")
    denied = await package_hooks.ask(named("word", command="ls"), 5)
    assert denied.verdict is HookVerdict.DENY, "the word alone must not pass for something else than a denial"
    assert (await package_hooks.ask(named("limit", command="ls"), 5)).arguments == {"command": "ls", "timeout": 5}
    assert (await package_hooks.ask(named("scrub", HookWhen.AFTER, command="ls"), 5)).output == "42\n"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fail", "no such list"),
        ("slow", "did not return"),
        ("number", "returned int"),
        ("empty", "gives no"),
        ("maybe", "decided 'maybe'"),
        ("nothing_said", "decided 'None'"),
    ],
)
async def test_how_packages_fail(package_hooks: ConfiguredHooks, name: str, said: str) -> None:
    with pytest.raises(HookFailed, match=said):
        await package_hooks.ask(named(name, command="ls"), 0.3)


async def test_what_cannot_be_had(package_hooks: ConfiguredHooks) -> None:
    assert sorted(package_hooks.problems()) == ["broken", "nothing"]
    package_hooks.require(["audit"])
    for name in ("broken", "nothing", "never_configured"):
        with pytest.raises(HookUnavailable):
            package_hooks.require([name])
        with pytest.raises(HookUnavailable):
            await package_hooks.ask(named(name), 1)
