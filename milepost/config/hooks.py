"""The `hooks` section."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from milepost.config.references import Headers
from milepost.config.sections import HeaderName, HttpUrl, Seconds, Section
from milepost.domain.extensions import IDEMPOTENCY_HEADER
from milepost.domain.hooks import DEFAULT_HOOK_SECONDS, MAX_HOOK_SECONDS, HookWhen, OnFailure


class _HookSection(Section):
    when: HookWhen
    """before: asked whether the call is made, and how. after: asked what of its result the model gets."""
    tools: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Names of the tools it is asked about. Default: all."""
    agents: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Agents whose calls it is asked about. Default: all."""
    timeout: Annotated[Seconds, Field(le=MAX_HOOK_SECONDS)] = DEFAULT_HOOK_SECONDS
    """Seconds of one answer."""
    on_failure: OnFailure = OnFailure.DENY
    """What counts when the hook fails: deny or allow."""
    keep_original: bool = False
    """Keep results that an after-hook replaces or withholds in the ledger, for people."""


class HttpHookSection(_HookSection):
    """A hook that is a POST to a peer."""

    type: Literal["http"]
    url: HttpUrl
    headers: Headers = Field(default_factory=dict)
    """Headers of each request; values may be references."""
    idempotency_header: HeaderName = IDEMPOTENCY_HEADER
    """Header in which the peer gets the idempotency key."""


class PythonHookSection(_HookSection):
    """A hook of an installed package."""

    type: Literal["python"]
    entry_point: str | None = None
    """Its name in the entry-point group `milepost.hooks`. Default: the hook's name."""


HookSection = Annotated[HttpHookSection | PythonHookSection, Field(discriminator="type")]
