"""What the service says instead of an answer (google.rpc.Status)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from milepost.providers.faults import Refusal

_SECONDS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")


def refusal_of(status: int | None, body: Any) -> Refusal:
    """The refusal in a body. Inside a stream there is no `status`: the body's counts, 500 where it names none."""
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    error = body.get("error") if isinstance(body, Mapping) else None
    error = error if isinstance(error, Mapping) else {}
    code = error.get("code")
    if status is None:
        status = code if isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600 else 500
    details = error.get("details")
    after, like = None, None
    for detail in details if isinstance(details, list) else []:
        match detail:
            case {"retryDelay": str(delay)} if found := _SECONDS.fullmatch(delay):
                after = float(found.group(1))
            case {"reason": "API_KEY_INVALID"}:
                # Answered with 400.
                like = 401
    return Refusal(status, body, retry_after=after, like=like)
