"""Hooks: what is asked before a tool call is made, and before a model gets its result."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from milepost.domain.content import Content

DEFAULT_HOOK_SECONDS = 10.0
MAX_HOOK_SECONDS = 300.0
MAX_HOOK_BYTES = 17 * 1024 * 1024
"""Of what a hook is sent, and of what it answers: the largest arguments, and room for what is said of the call."""


class HookWhen(StrEnum):
    BEFORE = "before"
    AFTER = "after"


class HookVerdict(StrEnum):
    """`REWRITE`: go on with other arguments (before), or give the model another text (after)."""

    ALLOW = "allow"
    DENY = "deny"
    REWRITE = "rewrite"


class OnFailure(StrEnum):
    """What counts when a hook fails, or is not there."""

    DENY = "deny"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True)
class HookRule:
    """A hook as a turn records it. `tools` None stands for any tool; `timeout` is seconds.

    `keep_original`: a result that an after-hook replaces or withholds stays in the ledger, for people.
    """

    name: str
    when: HookWhen
    tools: tuple[str, ...] | None = None
    on_failure: OnFailure = OnFailure.DENY
    timeout: float = DEFAULT_HOOK_SECONDS
    keep_original: bool = False

    def covers(self, when: HookWhen, tool: str) -> bool:
        """Whether the hook is asked about this tool at this moment."""
        return self.when is when and (self.tools is None or tool in self.tools)


@dataclass(frozen=True, slots=True)
class HookDecision:
    """A hook's recorded word. `failed`: it gave none, and `OnFailure` decided; `reason` says why."""

    verdict: HookVerdict
    reason: str | None = None
    failed: bool = False
    arguments: Content | None = None
    output: Content | None = None
