"""JSON that carries every Python string, and long texts in bounded pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

# Lone surrogates have no UTF-8; the others are line ends to readers that split text by Unicode's rules.
_ESCAPED = re.compile("[\ud800-\udfff\u0085\u2028\u2029]")


def json_text(value: Any) -> str:
    """JSON text on one line, by any rule of what a line is, and encodable as UTF-8."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return _ESCAPED.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def json_bytes(value: Any) -> bytes:
    """`json_text` as UTF-8."""
    return json_text(value).encode("utf-8")


def reply(model: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response model as JSON."""
    return Response(json_bytes(model.model_dump()), status, headers, "application/json")
