"""References to secrets: the only form in which a configuration may mention one."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]{0,199}|file:\S[^\0]{0,4000}")
_SECRET_HEADERS = frozenset(
    {
        "authorization",
        "proxy-authorization",
        "cookie",
        "x-api-key",
        "api-key",
        "apikey",
        "x-auth-token",
        "x-goog-api-key",
    }
)

_FRAMING_HEADERS = frozenset(
    {"connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)
"""Headers that say how a request is sent; another word there would break it."""


def is_reference(value: str) -> bool:
    """Whether the text is `env:NAME` or `file:PATH`."""
    return _REFERENCE.fullmatch(value) is not None


def _reference(value: str) -> str:
    # The message must not repeat the value: what stands here by mistake is most likely the secret itself.
    if not is_reference(value):
        raise ValueError(
            "a secret may not stand in the configuration. Put it in an environment variable or a file "
            "and write env:NAME or file:PATH here."
        )
    return value


def _header(name: str, value: str) -> str:
    if is_reference(value):
        return value
    if name.lower() in _SECRET_HEADERS:
        raise ValueError(
            f"the header '{name}' carries a secret, which may not stand in the configuration. "
            "Put it in an environment variable or a file and write env:NAME or file:PATH here."
        )
    if not value.isprintable():
        raise ValueError(f"the header '{name}' has a control character.")
    return value


def _headers(value: dict[str, str]) -> dict[str, str]:
    for name in value:
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
            raise ValueError(f"'{name[:40]}' is no HTTP header name.")
        if name.lower() in _FRAMING_HEADERS:
            raise ValueError(f"the header '{name}' is set by Milepost for each request.")
    return {name: _header(name, text) for name, text in value.items()}


SecretReference = Annotated[str, AfterValidator(_reference)]
"""`env:NAME` or `file:PATH`; an inline secret is refused without being repeated."""

Headers = Annotated[dict[str, str], AfterValidator(_headers)]
"""HTTP headers; values may be references, and must be for headers that carry credentials."""
