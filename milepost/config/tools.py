"""The `tools` section: tools of the user's own."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ByteSize, Field, StringConstraints

from milepost.config.references import Headers
from milepost.config.sections import HeaderName, HttpUrl, Seconds, Section
from milepost.domain.effects import EffectClass
from milepost.domain.extensions import (
    DEFAULT_RESPONSE_BYTES,
    DEFAULT_TOOL_SECONDS,
    IDEMPOTENCY_HEADER,
    MAX_RESPONSE_BYTES,
    MAX_TOOL_SECONDS,
)
from milepost.domain.tools import Approval, Parallel
from milepost.security.schemas import check_parameters

MAX_DESCRIPTION = 4096


def _parameters(value: dict[str, Any]) -> dict[str, Any]:
    check_parameters(value)
    return value


ToolSeconds = Annotated[Seconds, Field(le=MAX_TOOL_SECONDS)]
EffectName = Literal["observe", "idempotent", "keyed", "at_most_once"]


class HttpToolSection(Section):
    """A request to a peer: the arguments as a JSON body, or in the query for GET and DELETE."""

    type: Literal["http"]
    description: Annotated[str, StringConstraints(min_length=1, max_length=MAX_DESCRIPTION)]
    """What the model is told about the tool."""
    parameters: Annotated[dict[str, Any], AfterValidator(_parameters)] = Field(
        default_factory=lambda: {"type": "object", "properties": {}, "additionalProperties": False}
    )
    """JSON Schema of the arguments, an object. Without it the tool takes none."""
    url: HttpUrl
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    headers: Headers = Field(default_factory=dict)
    """Headers of each request; values may be references."""
    effect: EffectName = "at_most_once"
    """What may happen when the worker dies during a call: observe and idempotent ones are made again, keyed ones too,
    with the same idempotency key; at_most_once ones never."""
    idempotency_header: HeaderName = IDEMPOTENCY_HEADER
    """Header in which a keyed tool's peer gets the idempotency key."""
    parallel: Parallel = Parallel.ORDERED
    """safe: together with its neighbors, ordered: one after another, exclusive: alone."""
    approval: Approval = Approval.ASK
    """Whether a person must agree, where neither a rule nor the agent's approvals decide."""
    timeout: ToolSeconds = DEFAULT_TOOL_SECONDS
    """Seconds of the whole call."""
    response_limit: Annotated[ByteSize, Field(ge=1, le=MAX_RESPONSE_BYTES)] = ByteSize(DEFAULT_RESPONSE_BYTES)
    """Bytes of the answer that are read; the rest is not."""


class PythonToolSection(Section):
    """A tool of an installed package. What is left out is as the package says."""

    type: Literal["python"]
    entry_point: str | None = None
    """Its name in the entry-point group `milepost.tools`. Default: the tool's name."""
    effect: EffectName | None = None
    parallel: Parallel | None = None
    approval: Approval | None = None
    timeout: ToolSeconds | None = None


ToolSection = Annotated[HttpToolSection | PythonToolSection, Field(discriminator="type")]
CustomToolName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]


def effect_class(name: str | None) -> EffectClass | None:
    """The effect class of its name."""
    return None if name is None else EffectClass(name)
