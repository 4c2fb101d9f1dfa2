"""Call ids for calls that came without one."""

from __future__ import annotations

import hashlib


def generated_call_id(idempotency_key: str, index: int) -> str:
    """`call_` and 24 hexadecimal digits of SHA-256(key, index): the same when the call is made again."""
    digest = hashlib.sha256(f"{idempotency_key}\n{index}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"call_{digest[:24]}"
