"""What the configuration says of E2B, and names that its adapter and its checks share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

HOME = "/home/user"
"""Home of the user that E2B runs commands as."""
ROOT = f"{HOME}/workspace"
"""The Workspace inside the sandbox."""
INSTANCE, SESSION, GENERATION, LEASE = (f"milepost-{name}" for name in ("instance", "session", "generation", "lease"))
"""Metadata of every sandbox."""
COMMANDS = ("sh", "python3", "git", "find", "grep", "sed", "tar", "cat")
"""What a template must have; nothing is installed."""


@dataclass(frozen=True, slots=True)
class E2BSettings:
    """`key` gives the API key when a request needs it, and raises SecretMissing.

    `api_url` and `sandbox_url` are of an installation of one's own. A sandbox that nothing uses for `timeout_seconds`
    is paused by the service. `request_seconds` bounds each request; `upload_bytes` the packed Workspace.
    """

    key: Callable[[], str]
    template: str = "base"
    domain: str = "e2b.app"
    api_url: str | None = None
    sandbox_url: str | None = None
    timeout_seconds: int = 3600
    request_seconds: float = 60.0
    upload_bytes: int = 256 * 1024 * 1024
