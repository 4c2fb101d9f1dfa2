"""Resolving secret references."""

from __future__ import annotations

from typing import Protocol


class SecretStore(Protocol):
    def resolve(self, reference: str) -> str:
        """The value behind `env:NAME` or `file:PATH`. Raises SecretMissing, which names the reference only."""
