"""Hooks: the port that asks them, and what a Python package that brings one has to provide.

A package announces a hook under the entry-point group `milepost.hooks`; the entry point names a `Hook`. It needs to
import nothing of Milepost but this module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from milepost.domain.errors import HookFailed, HookUnavailable, MilepostError
from milepost.domain.hooks import HookVerdict, HookWhen


@dataclass(frozen=True, slots=True)
class HookCall:
    """A tool call that a hook is asked about. `output` and `is_error` are its result, None before the call.

    `idempotency_key` is the same whenever the hook is asked again about the same thing.
    """

    hook: str
    when: HookWhen
    tool: str
    arguments: Mapping[str, Any]
    idempotency_key: str
    session_id: str
    turn_id: str
    agent: str
    call_id: str
    output: str | None = None
    is_error: bool | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What a hook says. `REWRITE` comes with `arguments` before a call, and with `output` after it."""

    verdict: HookVerdict = HookVerdict.ALLOW
    reason: str | None = None
    arguments: Mapping[str, Any] | None = None
    output: str | None = None


ALLOW = Decision()


def deny(reason: str) -> Decision:
    """The call is not made, or its result is withheld; the model is told the reason."""
    return Decision(HookVerdict.DENY, reason)


def rewrite_arguments(arguments: Mapping[str, Any], reason: str | None = None) -> Decision:
    """Make the call with these arguments."""
    return Decision(HookVerdict.REWRITE, reason, arguments=arguments)


def rewrite_output(output: str, reason: str | None = None) -> Decision:
    """Give the model this text as the result."""
    return Decision(HookVerdict.REWRITE, reason, output=output)


Ask = Callable[[HookCall], "Decision | Awaitable[Decision | None] | None"]
"""Decides; None allows. A coroutine function runs on the event loop and must not block it; others in a thread."""


@dataclass(frozen=True, slots=True)
class Hook:
    """A Python hook."""

    run: Ask


class Hooks(Protocol):
    """All configured hooks."""

    async def ask(self, call: HookCall, seconds: float) -> Decision:
        """Ask once, within `seconds`. Cancelling the awaiting task closes its connection.

        Raises HookFailed, HookUnavailable.
        """

    def require(self, names: Sequence[str]) -> None:
        """Raise HookUnavailable if one of them is not configured here, or cannot be loaded."""

    def problems(self) -> dict[str, MilepostError]:
        """Hooks that cannot be asked, by name."""


class NoHooks:
    """`Hooks` of an instance that has none."""

    async def ask(self, call: HookCall, seconds: float) -> Decision:
        raise HookUnavailable(f"The configuration has no hook '{call.hook}'.")

    def require(self, names: Sequence[str]) -> None:
        for name in names:
            raise HookUnavailable(f"The configuration of this worker has no hook '{name}'.")

    def problems(self) -> dict[str, MilepostError]:
        return {}


__all__ = [
    "ALLOW",
    "Ask",
    "Decision",
    "Hook",
    "HookCall",
    "HookFailed",
    "HookVerdict",
    "HookWhen",
    "Hooks",
    "NoHooks",
    "deny",
    "rewrite_arguments",
    "rewrite_output",
]
