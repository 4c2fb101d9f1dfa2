"""What all sections of the configuration share: the base model and the checked value types."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints


class Section(BaseModel):
    """Base of all sections: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def _no_bool(value: Any) -> Any:
    # Python counts True as 1, so `port: true` would otherwise be accepted.
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not true or false.")
    return value


def _http_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        raise ValueError("this is no address.") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError("an address that begins with http:// or https:// is wanted.")
    if parts.username or parts.password:
        raise ValueError("an address may not carry a user name or password; use 'api_key' or 'headers'.")
    return value


def _base_url(value: str) -> str:
    return _http_url(value).rstrip("/")


Count = Annotated[int, BeforeValidator(_no_bool)]
Number = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]
Port = Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=65535)]
Seconds = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, le=86_400, allow_inf_nan=False)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$")]
HttpUrl = Annotated[str, AfterValidator(_http_url)]
"""An address that is used as it stands."""

BaseUrl = Annotated[str, AfterValidator(_base_url)]
"""An address to which paths are added."""
