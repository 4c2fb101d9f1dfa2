"""How the user's own tools and hooks are configured. Values only: `milepost.extensions` makes them work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from milepost.domain.effects import EffectClass
from milepost.domain.hooks import HookRule
from milepost.domain.tools import Approval, Parallel, ToolDefinition, ToolPolicy

TOOLS_GROUP = "milepost.tools"
"""Entry-point group of Python tools."""

HOOKS_GROUP = "milepost.hooks"
"""Entry-point group of Python hooks."""

CUSTOM_TOOL_CLASSES = (EffectClass.OBSERVE, EffectClass.IDEMPOTENT, EffectClass.KEYED, EffectClass.AT_MOST_ONCE)
"""What a tool of the user's own may be. `at_most_once` is what it is taken for if nobody says."""

DEFAULT_TOOL_SECONDS = 60.0
MAX_TOOL_SECONDS = 3600.0
DEFAULT_RESPONSE_BYTES = 1024 * 1024
MAX_RESPONSE_BYTES = 16 * 1024 * 1024
IDEMPOTENCY_HEADER = "Idempotency-Key"


@dataclass(frozen=True, slots=True)
class HttpPeer:
    """An address that is called, with what is sent along. `secret_headers` holds references, not values."""

    url: str
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    secret_headers: Mapping[str, str] = field(default_factory=dict)
    idempotency_header: str = IDEMPOTENCY_HEADER


@dataclass(frozen=True, slots=True)
class HttpTool:
    """A tool that is a request to a peer. `timeout` is seconds, `response_bytes` bounds what is read of the answer."""

    definition: ToolDefinition
    peer: HttpPeer
    policy: ToolPolicy
    timeout: float = DEFAULT_TOOL_SECONDS
    response_bytes: int = DEFAULT_RESPONSE_BYTES


@dataclass(frozen=True, slots=True)
class PythonTool:
    """A tool of an installed package, by its entry point. What is None is as the package says."""

    name: str
    entry_point: str
    effect: EffectClass | None = None
    parallel: Parallel | None = None
    approval: Approval | None = None
    timeout: float | None = None


ToolConfig = HttpTool | PythonTool


@dataclass(frozen=True, slots=True)
class HttpHook:
    """A hook that is a request to a peer. `rule` is what turns record of it."""

    rule: HookRule
    peer: HttpPeer


@dataclass(frozen=True, slots=True)
class PythonHook:
    """A hook of an installed package, by its entry point."""

    rule: HookRule
    entry_point: str


HookConfig = HttpHook | PythonHook
