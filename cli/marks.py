"""Marks of tool calls: at a glance, how a call stands or ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mark:
    """A sign, its rich style, and a word where the sign alone does not say enough."""

    sign: str
    style: str
    word: str = ""


_DONE = Mark("✓", "green")
_ERROR = Mark("✗", "red")
_BY_STATE = {
    "planned": Mark("·", "dim", "not begun"),
    "awaiting_approval": Mark("?", "yellow", "waits for approval"),
    "dispatched": Mark("▸", "cyan", "running"),
    "uncertain": Mark("!", "yellow", "outcome unknown"),
    "cancelled": Mark("■", "yellow", "cancelled"),
    "denied": Mark("⊘", "yellow", "denied"),
}


def mark_of(state: str, *, is_error: bool, ended: bool = False) -> Mark:
    """The mark of a call in this effect state; `ended` tells that its turn is over, so that it runs no more."""
    if ended and state == "dispatched":
        state = "uncertain"
    elif ended and state in ("planned", "awaiting_approval"):
        return Mark("·", "dim", "not run")
    return _BY_STATE.get(state, _ERROR if is_error or state == "failed" else _DONE)
