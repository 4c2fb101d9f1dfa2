"""What a test needs from its machine: absent means skipped for a developer and failed in CI."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def unavailable(what: str, reason: str) -> NoReturn:
    """End the test because `what` is missing. In CI a missing part is a failure, never a skip."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is required in CI: {reason}", pytrace=False)
    pytest.skip(f"{what}: {reason}")
