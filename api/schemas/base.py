"""Bases of all shapes."""

from __future__ import annotations

from typing import Any

from pydantic import AfterValidator, BaseModel, ConfigDict, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from milepost.domain.suggestions import closest


def at_most(characters: int) -> tuple[AfterValidator, WithJsonSchema]:
    """Metadata of a text with a longest length. pydantic's own bound would refuse lone surrogates."""

    def check(value: str) -> str:
        if len(value) > characters:
            raise PydanticCustomError("text_too_long", "at most {limit} characters are accepted", {"limit": characters})
        return value

    return AfterValidator(check), WithJsonSchema({"type": "string", "maxLength": characters})


class _Known(BaseModel):
    """Refuses keys it does not know, and names the nearest one it does."""

    @model_validator(mode="before")
    @classmethod
    def _only_known_keys(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for key in data:
            if key not in known:
                shown = str(key)[:80]
                near = closest(shown, known)
                fix = f"Did you mean '{near}'?" if near else f"Known: {', '.join(sorted(known))}."
                raise PydanticCustomError("unknown_key", "this key is not known", {"key": shown, "fix": fix})
        return data


class Body(_Known):
    """A JSON request body. Strict: no value is bent into another type."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Query(_Known):
    """Query parameters, which are text by nature."""

    model_config = ConfigDict(extra="forbid")


class Shape(BaseModel):
    """A response."""

    model_config = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


class Problem(Shape):
    """Why a request failed (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    """Stable identifier of the failure."""
    field: str | None = None
    """The input it is about."""
    fix: str | None = None
    """What to do."""
    turn_id: str | None = None
    """The running turn, for `turn_running`."""
    error_id: str | None = None
    """Where to look in the log, for `internal`."""
    errors: list[dict[str, str | None]] | None = None
    """All findings, for `invalid_input`."""
