"""JSON that carries every Python string, and long texts in bounded pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

_SURROGATE = re.compile("[\ud800-\udfff]")


def json_text(value: Any) -> str:
    """JSON text on one line, encodable as UTF-8: a lone surrogate is written as the escape it would have in JSON."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return _SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def json_bytes(value: Any) -> bytes:
    """`json_text` as UTF-8."""
    return json_text(value).encode("utf-8")


def reply(model: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response model as JSON."""
    return Response(json_bytes(model.model_dump()), status, headers, "application/json")
