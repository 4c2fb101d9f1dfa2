"""Stacks of real workers over each database, with a sandbox in memory and the scripted provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from milepost.domain.providers import ScriptedProvider
from milepost.providers.gateway import Gateway
from milepost.storage import FileBlobStore
from milepost.temporal.client import TemporalAddress
from tests.support.databases import OpenLedger
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack, build_stack


class NoSecrets:
    def resolve(self, reference: str) -> str:
        raise AssertionError(reference)


@pytest.fixture
def sandboxes() -> MemorySandboxes:
    return MemorySandboxes()


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    gateway = Gateway({"scripted": ScriptedProvider("scripted")}, NoSecrets())
    yield gateway
    await gateway.close()


@pytest.fixture
async def stack(
    opened: OpenLedger,
    gateway: Gateway,
    sandboxes: MemorySandboxes,
    temporal_address: TemporalAddress,
    tmp_path_factory: pytest.TempPathFactory,
) -> Stack:
    blobs = FileBlobStore(tmp_path_factory.mktemp("blobs"))
    return await build_stack(opened.ledger, opened.notifier, blobs, gateway, sandboxes, temporal_address)


@pytest.fixture
async def stack_without_sandbox(
    opened: OpenLedger, gateway: Gateway, temporal_address: TemporalAddress, tmp_path_factory: pytest.TempPathFactory
) -> Stack:
    blobs: Path = tmp_path_factory.mktemp("blobs")
    return await build_stack(opened.ledger, opened.notifier, FileBlobStore(blobs), gateway, None, temporal_address)
