"""Turns with hooks: allow, deny, rewrite and withhold; what is recorded, and what a lost worker or a stop leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milepost.domain.agents import AgentConfig
from milepost.domain.effects import EffectState
from milepost.domain.events import AgentStarted, HookDecided, ToolFinished
from milepost.domain.extensions import HttpHook, HttpPeer
from milepost.domain.hooks import HookRule, HookVerdict, HookWhen, OnFailure
from milepost.domain.tools import Approval
from milepost.domain.turns import TurnState
from milepost.extensions.hooks import ConfiguredHooks
from milepost.extensions.http import PeerClient
from milepost.ledger.codec import to_json
from milepost.providers.gateway import Gateway
from milepost.security.redaction import Redactor
from milepost.services.approvals import Answer
from milepost.storage import FileBlobStore
from milepost.temporal.client import TemporalAddress
from tests.extensions.conftest import SECRET, Secrets
from tests.support.databases import OpenLedger
from tests.support.peer import Peer, Request
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack, build_stack
from tests.turns.test_approvals import approvals, pending
from tests.turns.test_turns import call, events_of, script

Make = Callable[..., Awaitable[Stack]]
ONE = script({"calls": [call("bash", command="print 4711")]}, {"text": "Done."})


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.slow])])
def ledger_url(request: pytest.FixtureRequest) -> str:
    """What depends on the database is tested on both with the ledger; here the second one is for the slow run."""
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer() as peer:
        yield peer


@pytest.fixture
async def make(
    opened: OpenLedger,
    gateway: Gateway,
    sandboxes: MemorySandboxes,
    temporal_address: TemporalAddress,
    tmp_path: Path,
    peer: Peer,
) -> AsyncIterator[Make]:
    """A stack whose one agent has these hooks, all of them at the peer under their names."""
    client = PeerClient(Secrets())

    async def make(*rules: HookRule, path: str = "", approvals: dict[str, Approval] | None = None) -> Stack:
        targets = {rule.name: HttpPeer(f"{peer.url}{path or '/' + rule.name}") for rule in rules}
        hooks = ConfiguredHooks({rule.name: HttpHook(rule, targets[rule.name]) for rule in rules}, client)
        hooks.load()
        agent = AgentConfig("default", "scripted", "demo", hooks=rules, approvals=approvals or {})
        blobs = FileBlobStore(tmp_path / "blobs")
        ledger, notifier = opened.ledger, opened.notifier
        return await build_stack(
            ledger, notifier, blobs, gateway, sandboxes, temporal_address, {"default": agent}, hooks=hooks
        )

    yield make
    await client.close()


def says(**answers: dict[str, Any]) -> Callable[[Request], tuple[int, bytes]]:
    """A peer that answers each hook by its name; one without an answer fails."""

    def respond(request: Request) -> tuple[int, bytes]:
        answer = answers.get(request.path.strip("/"))
        return (500, b"") if answer is None else (200, json.dumps(answer).encode())

    return respond


async def played(stack: Stack, folder: Path, responses: str = ONE) -> str:
    """Run a turn to its end; the Session."""
    session = await stack.open(folder)
    async with stack.worker():
        begun = await stack.send(session, script=responses)
        assert (await stack.ended(begun.turn.turn_id)).state is TurnState.COMPLETED
    return session


async def of_type(stack: Stack, session: str, kind: type[Any]) -> list[Any]:
    return [event for event in await events_of(stack, session) if isinstance(event, kind)]


def before(name: str = "guard", **more: Any) -> HookRule:
    return HookRule(name, HookWhen.BEFORE, **more)


def after(name: str = "scrub", **more: Any) -> HookRule:
    return HookRule(name, HookWhen.AFTER, **more)


async def test_a_hook_that_allows_is_asked_once_and_recorded(
    make: Make, peer: Peer, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    peer.respond = says(guard={"decision": "allow", "reason": "on the list"})
    stack = await make(before(tools=("bash",)), before("other", tools=("grep",)))
    session = await played(stack, tmp_path)
    assert sandboxes.by_session[session].commands() == ["print 4711"]
    (decided,) = await of_type(stack, session, HookDecided)
    assert (decided.hook, decided.verdict, decided.reason, decided.tool) == ("guard", "allow", "on the list", "bash")
    effects = {effect.spec.operation: effect for effect in await stack.history.effects(session)}
    hook = effects["hook:guard"]
    assert (hook.state, hook.attempt, hook.spec.effect_id) == (EffectState.SUCCEEDED, 1, decided.effect_id)
    assert peer.keys() == [hook.spec.idempotency_key], "the hook for another tool is not asked"
    (started,) = await of_type(stack, session, AgentStarted)
    assert [rule.name for rule in started.hooks] == ["guard", "other"]


async def test_a_denial_leaves_a_row_that_names_the_hook(
    make: Make, peer: Peer, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    peer.respond = says(guard={"decision": "deny", "reason": "not on Fridays"}, second={"decision": "allow"})
    stack = await make(before(), before("second"))
    session = await played(stack, tmp_path)
    assert session not in sandboxes.by_session, "not even the sandbox is opened"
    (denied,) = await stack.history.effects(session, state=EffectState.DENIED)
    assert (denied.spec.operation, denied.error_code, denied.attempt) == ("tool:bash", "denied_by_hook", 0)
    assert "'guard'" in (denied.error_message or "") and "not on Fridays" in (denied.error_message or "")
    (finished,) = await of_type(stack, session, ToolFinished)
    assert (finished.state, finished.is_error) == (EffectState.DENIED, True)
    assert "not on Fridays" in finished.output.text
    assert len(peer.requests) == 1, "after a denial nobody else is asked"


async def test_rewritten_arguments_are_what_is_approved_and_run(
    make: Make, peer: Peer, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    peer.respond = says(
        guard={"decision": "rewrite", "arguments": {"command": "print 1"}, "reason": "less"},
        second={"decision": "rewrite", "arguments": {"command": "print 2"}},
    )
    stack = await make(before(), before("second"), approvals={"bash": Approval.ASK})
    session = await stack.open(tmp_path)
    async with stack.worker():
        begun = await stack.send(session, script=ONE)
        (approval,) = await pending(stack, session)
        assert "print 2" in approval.preview and "4711" not in approval.preview
        assert [request.json["arguments"]["command"] for request in peer.requests] == ["print 4711", "print 1"]
        await approvals(stack).answer(approval.approval_id, Answer(True, "anna"))
        assert (await stack.ended(begun.turn.turn_id)).state is TurnState.COMPLETED
    assert sandboxes.by_session[session].commands() == ["print 2"]
    assert len(peer.requests) == 2, "the answer does not make the hooks be asked again"
    (finished,) = await of_type(stack, session, ToolFinished)
    assert "'guard', 'second'" in finished.output.text and finished.detail["rewritten_by"] == ["guard", "second"]
    first = (await of_type(stack, session, HookDecided))[0]
    assert first.arguments is not None and "print 1" in first.arguments.text
    card = (await stack.history.entry(begun.turn.turn_id)).tools[0]
    assert "print 2" in card.arguments
    assert approval.input_digest == next(
        effect.spec.input_digest
        for effect in await stack.history.effects(session)
        if effect.spec.operation == "tool:bash"
    )
    events = await events_of(stack, session)
    assert any("4711" in json.dumps(to_json(event)) for event in events if event.TYPE == "model.called"), "kept"


@pytest.mark.parametrize("on_failure", list(OnFailure))
@pytest.mark.parametrize("answer", [None, {"decision": "rewrite", "arguments": {"comand": "x"}}])
async def test_a_hook_that_fails(
    make: Make,
    peer: Peer,
    sandboxes: MemorySandboxes,
    tmp_path: Path,
    on_failure: OnFailure,
    answer: dict[str, Any] | None,
) -> None:
    peer.respond = says() if answer is None else says(guard=answer)
    stack = await make(before(on_failure=on_failure))
    session = await played(stack, tmp_path)
    (decided,) = await of_type(stack, session, HookDecided)
    (hook,) = [each for each in await stack.history.effects(session) if each.spec.operation == "hook:guard"]
    assert decided.failed and (hook.state, hook.error_code) == (EffectState.FAILED, "hook_failed")
    # Arguments that do not fit deny in any case: the hook has not said that the model's are fine.
    if on_failure is OnFailure.ALLOW and answer is None:
        assert sandboxes.by_session[session].commands() == ["print 4711"]
        assert decided.verdict is HookVerdict.ALLOW
    else:
        assert session not in sandboxes.by_session
        (denied,) = await stack.history.effects(session, state=EffectState.DENIED)
        assert denied.error_code == "hook_failed" and "'guard'" in (denied.error_message or "")


async def test_a_secret_that_a_hook_puts_into_arguments_is_hidden_in_them(
    make: Make, peer: Peer, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    """A hook that echoes its own credentials must not bring them into ledger and model requests."""
    command = f"echo '{SECRET}'"
    peer.respond = says(guard={"decision": "rewrite", "arguments": {"command": command}, "reason": f"{SECRET}!"})
    stack = await make(before())
    stack = replace(stack, parts=replace(stack.parts, redactor=Redactor([SECRET])))
    session = await played(stack, tmp_path)
    assert sandboxes.by_session[session].commands() == ["echo '[hidden]'"]
    kept = json.dumps([to_json(event) for event in await events_of(stack, session)])
    assert SECRET not in kept and "[hidden]!" in kept
    assert not any(SECRET.encode() in (effect.result or b"") for effect in await stack.history.effects(session))


async def test_arguments_of_a_hook_that_are_nested_too_deeply_deny(
    make: Make, peer: Peer, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    deep = b'{"decision": "rewrite", "arguments": {"command": ' + b"[" * 900 + b"]" * 900 + b"}}"
    peer.respond = lambda request: (200, deep)
    session = await played(stack := await make(before(on_failure=OnFailure.ALLOW)), tmp_path)
    assert session not in sandboxes.by_session
    (denied,) = await stack.history.effects(session, state=EffectState.DENIED)
    assert denied.error_code == "hook_failed" and "nested too deeply" in (denied.error_message or "")


@pytest.mark.parametrize("keep", [False, True])
async def test_a_result_is_rewritten_before_anybody_gets_it(
    make: Make, peer: Peer, opened: OpenLedger, tmp_path: Path, keep: bool
) -> None:
    peer.respond = says(scrub={"decision": "rewrite", "output": "ran print ****"})
    stack = await make(after(keep_original=keep))
    # The command itself must not tell it.
    session = await played(stack, tmp_path, script({"calls": [call("bash", command="big 6")]}, {"text": "Done."}))
    (finished,) = await of_type(stack, session, ToolFinished)
    assert (finished.output.text, finished.state) == ("ran print ****", EffectState.SUCCEEDED)
    assert finished.detail["hooks"] == {"scrub": "rewrite"}
    (decided,) = await of_type(stack, session, HookDecided)
    assert decided.original_digest is not None and len(decided.original_digest) == 64
    assert peer.requests[0].json["output"] == "xxxxxx"
    if keep:
        assert finished.full_output is not None and finished.full_output.text == "xxxxxx"
    else:
        assert finished.full_output is None
        effects = await stack.history.effects(session)
        assert not any(b"xxxxxx" in (effect.result or b"") for effect in effects)
        assert "xxxxxx" not in json.dumps([to_json(event) for event in await events_of(stack, session)])


async def test_a_result_can_be_withheld(make: Make, peer: Peer, sandboxes: MemorySandboxes, tmp_path: Path) -> None:
    peer.respond = says(scrub={"decision": "deny", "reason": "personal data"})
    session = await played(stack := await make(after()), tmp_path)
    assert sandboxes.by_session[session].commands() == ["print 4711"]
    (finished,) = await of_type(stack, session, ToolFinished)
    assert finished.is_error and finished.state is EffectState.SUCCEEDED
    assert "has succeeded" in finished.output.text and "personal data" in finished.output.text
    assert "ran print" not in finished.output.text


@pytest.mark.parametrize("when", list(HookWhen))
async def test_a_worker_lost_while_a_hook_is_asked(
    make: Make, peer: Peer, sandboxes: MemorySandboxes, tmp_path: Path, when: HookWhen
) -> None:
    stack = await make(HookRule("guard", when), path="/slow")
    session = await stack.open(tmp_path)
    async with stack.worker(grace=0.1):
        begun = await stack.send(session, script=ONE)
        assert await asyncio.to_thread(peer.arrived)
    peer.respond = says(guard={"decision": "allow"})
    peer.released.set()
    async with stack.worker():
        # "done" is no decision, so the hook fails; what counts is who was asked, and how often.
        assert (await stack.ended(begun.turn.turn_id)).state is TurnState.COMPLETED
    assert len(peer.requests) == 2 and len(set(peer.keys())) == 1, "asked again with the same key"
    ran = sandboxes.by_session[session].commands() if session in sandboxes.by_session else []
    assert ran == (["print 4711"] if when is HookWhen.AFTER else [])


@pytest.mark.parametrize("keep", [False, True])
async def test_output_of_a_call_that_ended_is_not_shown_around_a_hook_that_was_lost_with_its_worker(
    make: Make, peer: Peer, sandboxes: MemorySandboxes, tmp_path: Path, keep: bool
) -> None:
    """The command has ended and the hook has not spoken when the worker is lost; then the turn is stopped."""
    stack = await make(after(keep_original=keep), path="/slow")
    session = await stack.open(tmp_path)
    async with stack.worker(grace=0.1):
        begun = await stack.send(session, script=ONE)
        assert await asyncio.to_thread(peer.arrived)
    await stack.turns.stop(begun.turn.turn_id, actor="test")
    async with stack.worker():
        assert (await stack.ended(begun.turn.turn_id)).state is TurnState.STOPPED
    assert sandboxes.by_session[session].commands() == ["print 4711"]
    (finished,) = await of_type(stack, session, ToolFinished)
    assert finished.state is EffectState.SUCCEEDED, "how it ended is known and not kept back"
    assert "ran print" not in finished.output.text and "'scrub'" in finished.output.text
    assert (finished.full_output is not None) is keep
    assert len(peer.requests) == 1, "no hook is asked after a stop"


@pytest.mark.parametrize("when", list(HookWhen))
async def test_a_stop_while_a_hook_is_asked(
    make: Make, peer: Peer, sandboxes: MemorySandboxes, tmp_path: Path, when: HookWhen
) -> None:
    stack = await make(HookRule("guard", when), path="/slow")
    session = await stack.open(tmp_path)
    async with stack.worker():
        begun = await stack.send(session, script=ONE)
        assert await asyncio.to_thread(peer.arrived)
        await stack.turns.stop(begun.turn.turn_id, actor="test")
        assert (await stack.ended(begun.turn.turn_id)).state is TurnState.STOPPED
    (finished,) = await of_type(stack, session, ToolFinished)
    assert finished.state is (EffectState.CANCELLED if when is HookWhen.BEFORE else EffectState.SUCCEEDED)
    assert "ran print" not in finished.output.text
    assert len(peer.requests) == 1


async def test_partial_output_of_a_stopped_call_is_not_shown_around_its_hooks(
    make: Make, peer: Peer, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    stack = await make(after())
    session = await stack.open(tmp_path)
    async with stack.worker():
        begun = await stack.send(
            session, script=script({"calls": [call("bash", command="hang on")]}, {"text": "Done."})
        )
        async with asyncio.timeout(30):
            while session not in sandboxes.by_session or not sandboxes.by_session[session].commands():
                await asyncio.sleep(0.02)
        await stack.turns.stop(begun.turn.turn_id, actor="test")
        await stack.ended(begun.turn.turn_id)
    (finished,) = await of_type(stack, session, ToolFinished)
    assert finished.state is EffectState.CANCELLED and "partial" not in finished.output.text
    assert peer.requests == [], "no hook is asked after a stop"


async def test_too_many_calls_are_refused_before_any_hook(make: Make, peer: Peer, tmp_path: Path) -> None:
    stack = await make(before(), after())
    session = await stack.open(tmp_path)
    async with stack.worker():
        many = [call("bash", command=str(number)) for number in range(129)]
        begun = await stack.send(session, script=script({"calls": many}, {"text": "x"}))
        ended = await stack.ended(begun.turn.turn_id)
    assert (ended.state, ended.error_code) == (TurnState.FAILED, "too_many_tool_calls")
    assert peer.requests == []


async def test_a_hook_that_must_be_asked_and_is_not_there_fails_the_turn(
    make: Make, peer: Peer, tmp_path: Path
) -> None:
    stack = await make(before())
    lacking = replace(stack, parts=replace(stack.parts, hooks=(await make()).parts.hooks))
    session = await stack.open(tmp_path)
    async with lacking.worker():
        begun = await stack.send(session, script=ONE)
        ended = await stack.ended(begun.turn.turn_id)
    assert (ended.state, ended.error_code) == (TurnState.FAILED, "hook_unavailable")
    assert "hooks.guard" in (ended.error_message or "")
