"""Instances of this area."""

from __future__ import annotations

from tests.cli.conftest import milepost
from tests.histories.conftest import time_skipping, time_skipping_server

__all__ = ["milepost", "time_skipping", "time_skipping_server"]
