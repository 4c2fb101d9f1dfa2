"""`ports.hooks.Hooks`: the configured hooks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from milepost.domain.errors import HookFailed, HookUnavailable, MilepostError, OutcomeUnknown, ToolFailed
from milepost.domain.extensions import HOOKS_GROUP, HookConfig, HttpHook
from milepost.domain.hooks import MAX_HOOK_BYTES, HookVerdict, HookWhen
from milepost.extensions.http import PASSING, PeerClient, Reply
from milepost.extensions.loading import load
from milepost.extensions.threads import Threads
from milepost.ports.hooks import ALLOW, Decision, Hook, HookCall
from milepost.security.redaction import Redactor

FORMAT_VERSION = 1
MAX_REASON_CHARACTERS = 2000


class ConfiguredHooks:
    """HTTP hooks, and Python hooks whose packages are loaded by `load`."""

    def __init__(self, configs: Mapping[str, HookConfig], peers: PeerClient) -> None:
        self._configs = configs
        self._peers = peers
        self._threads = Threads()
        self._loaded: dict[str, HttpHook | Hook] = {}
        self._problems: dict[str, HookUnavailable] = {}

    def load(self) -> None:
        """Import the packages of Python hooks; what fails is kept for whoever asks. Blocks."""
        for name, config in self._configs.items():
            if isinstance(config, HttpHook):
                self._loaded[name] = config
                continue
            try:
                self._loaded[name] = load(HOOKS_GROUP, config.entry_point, Hook, f"Hook '{name}'")
            except MilepostError as error:
                self._problems[name] = HookUnavailable(error.message, fix=error.fix)

    def problems(self) -> dict[str, MilepostError]:
        """See `Hooks`."""
        found: dict[str, MilepostError] = dict(self._problems)
        for name, hook in self._loaded.items():
            if isinstance(hook, HttpHook):
                try:
                    self._peers.request(hook.peer, None, None, None)
                except MilepostError as error:
                    found[name] = error
        return found

    def require(self, names: Sequence[str]) -> None:
        """See `Hooks`."""
        for name in names:
            self._get(name)

    async def ask(self, call: HookCall, seconds: float) -> Decision:
        """See `Hooks`."""
        hook = self._get(call.hook)
        try:
            if isinstance(hook, HttpHook):
                return _checked(call, await self._request(hook, call, seconds), self._peers.redactor)
            value = await self._threads.call(f"Hook '{call.hook}'", hook.run, call, seconds)
        except MilepostError as error:
            if isinstance(error, HookFailed | HookUnavailable):
                raise
            raise HookFailed(
                error.message, retryable_now=isinstance(error, ToolFailed) and error.retryable_now
            ) from error
        except Exception as error:
            said = f"{type(error).__name__}: {self._peers.redactor.cut(str(error), MAX_REASON_CHARACTERS)}"
            raise HookFailed(f"Hook '{call.hook}' failed: {said}") from error
        return _checked(call, ALLOW if value is None else value, self._peers.redactor)

    def _get(self, name: str) -> HttpHook | Hook:
        if name in self._problems:
            raise self._problems[name]
        if name not in self._loaded:
            raise HookUnavailable(
                f"The configuration of this worker has no hook '{name}'.", fix=f"Add it under hooks.{name}."
            )
        return self._loaded[name]

    async def _request(self, hook: HttpHook, call: HookCall, seconds: float) -> Decision:
        body = json.dumps(_document(call), ensure_ascii=False).encode("utf-8", "replace")
        if len(body) > MAX_HOOK_BYTES:
            raise HookFailed(f"Hook '{call.hook}' was not asked: the call has over {MAX_HOOK_BYTES} bytes.")
        request = self._peers.request(hook.peer, body, None, call.idempotency_key)
        owner = f"The peer of hook '{call.hook}'"
        try:
            reply = await self._peers.send(owner, request, seconds, MAX_HOOK_BYTES)
        except OutcomeUnknown as error:
            # It has the key, so asking again is safe; after the whole time it is not asked again.
            raise HookFailed(error.message, retryable_now=error.in_time) from error
        if not 200 <= reply.status < 300:
            raise HookFailed(f"{owner} answered with status {reply.status}.", retryable_now=reply.status in PASSING)
        return _decision(owner, reply)


def _document(call: HookCall) -> dict[str, Any]:
    document: dict[str, Any] = {
        "version": FORMAT_VERSION,
        "hook": call.hook,
        "when": call.when.value,
        "session_id": call.session_id,
        "turn_id": call.turn_id,
        "agent": call.agent,
        "call_id": call.call_id,
        "tool": call.tool,
        "arguments": dict(call.arguments),
    }
    if call.when is HookWhen.AFTER:
        document |= {"output": call.output, "is_error": call.is_error}
    return document


def _decision(owner: str, reply: Reply) -> Decision:
    """An empty answer allows."""
    if reply.truncated:
        raise HookFailed(f"{owner} answered with over {MAX_HOOK_BYTES} bytes.")
    if not reply.text.strip():
        return ALLOW
    try:
        found = json.loads(reply.text)
        verdict = HookVerdict(found["decision"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        wanted = ", ".join(HookVerdict)
        raise HookFailed(f"{owner} answered without a 'decision' of {wanted}.") from error
    return Decision(verdict, found.get("reason"), found.get("arguments"), found.get("output"))


def _checked(call: HookCall, decision: object, redactor: Redactor) -> Decision:
    """Raise HookFailed for a decision that cannot be carried out."""
    owner = f"Hook '{call.hook}'"
    if not isinstance(decision, Decision):
        raise HookFailed(f"{owner} returned {type(decision).__name__} instead of a decision.")
    try:
        # A package may write the word; what is compared later is the verdict itself.
        verdict = HookVerdict(decision.verdict)
    except ValueError as error:
        said, wanted = str(decision.verdict)[:100], ", ".join(HookVerdict)
        raise HookFailed(f"{owner} decided '{said}'; possible are {wanted}.") from error
    reason = decision.reason
    if reason is not None and not isinstance(reason, str):
        raise HookFailed(f"{owner} gave a reason that is no text.")
    if verdict is HookVerdict.REWRITE:
        given, kind = (decision.arguments, Mapping) if call.when is HookWhen.BEFORE else (decision.output, str)
        if not isinstance(given, kind):
            what = "arguments" if call.when is HookWhen.BEFORE else "output"
            raise HookFailed(f"{owner} wants to rewrite and gives no '{what}'.")
    return Decision(
        verdict,
        None if reason is None else redactor.cut(reason, MAX_REASON_CHARACTERS),
        decision.arguments if call.when is HookWhen.BEFORE else None,
        decision.output if call.when is HookWhen.AFTER else None,
    )
