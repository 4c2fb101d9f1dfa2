"""What an examination finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One requirement. `fix` is the exact command or setting, of one that is not met."""

    name: str
    ok: bool
    detail: str
    fix: str | None = None
