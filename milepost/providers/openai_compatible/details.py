"""`reasoning_details`: what OpenRouter and its like want back of a model's reasoning, put together from a stream."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from milepost.providers.sealed import joined_signature
from milepost.providers.wire import wire_text

_JOINED = ("text", "summary")


class ReasoningDetails:
    """Pieces of details by type and index, in the order in which they began."""

    def __init__(self) -> None:
        self._whole: list[dict[str, Any]] = []

    def add(self, sent: object) -> None:
        """Take in the details of one event; what is no list of objects is left out."""
        for piece in sent if isinstance(sent, list) else ():
            if isinstance(piece, dict):
                self._merge(piece)

    def _merge(self, piece: dict[str, Any]) -> None:
        last = self._whole[-1] if self._whole else None
        # Only texts come in pieces; encrypted data is a detail of its own each time.
        if last is None or piece.get("type") == "reasoning.encrypted" or _place(last) != _place(piece):
            self._whole.append(dict(piece))
            return
        for key, value in piece.items():
            before = last.get(key)
            if key in _JOINED and isinstance(before, str) and isinstance(value, str):
                last[key] = before + value
            elif key == "signature" and isinstance(before, str) and isinstance(value, str):
                last[key] = joined_signature(before, value)
            elif before is None:
                last[key] = value

    def whole(self) -> list[dict[str, Any]]:
        """The details as they go back."""
        return self._whole


def _place(detail: dict[str, Any]) -> tuple[object, object]:
    return detail.get("type"), detail.get("index")


def sealed(details: list[dict[str, Any]]) -> dict[str, Any]:
    """Details with their digest, so that a change is seen."""
    return {"items": details, "digest": _digest(details)}


def unsealed(kept: object) -> list[dict[str, Any]] | None:
    """The details, or None if anything in them changed, or cannot be sent as it is."""
    if not isinstance(kept, dict) or not isinstance(kept.get("items"), list):
        return None
    details: list[dict[str, Any]] = kept["items"]
    text = json.dumps(details, ensure_ascii=False)
    return details if kept.get("digest") == _digest(details) and wire_text(text) == text else None


def _digest(details: list[dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(details, sort_keys=True).encode("ascii")).hexdigest()
