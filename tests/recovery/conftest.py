"""Instances of this area."""

from __future__ import annotations

from tests.cli.conftest import milepost

__all__ = ["milepost"]
