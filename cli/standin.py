"""The API inside this process, on the ledger alone: for commands that need no worker and no Temporal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from cli.serving import application
from milepost.bootstrap.checks import TemporalPart
from milepost.bootstrap.core import is_empty, migrate, open_core
from milepost.bootstrap.data_root import DataRoot
from milepost.bootstrap.temporal import embedded, expected_ui, lazy_check
from milepost.config.loading import Config
from milepost.domain.errors import InstanceLocked
from milepost.security.token import load_or_create_token


@asynccontextmanager
async def stand_in(config: Config, root: DataRoot) -> AsyncIterator[tuple[ASGIApp, str]]:
    """The application and its token. An instance that never ran gets an empty ledger.

    Raises:
        StorageUnavailable, SchemaOutdated, SchemaTooNew, ConfigInvalid, SecretMissing.
    """
    root.prepare()
    if await is_empty(config):
        await _found(config, root)
    section = config.settings.temporal
    check = None if embedded(config) else lazy_check(config)
    part = TemporalPart(expected_ui(config), section.namespace, section.address, check)
    async with open_core(config, root) as core:
        token = load_or_create_token(root.token)
        yield application(core, core.services(part), token), token


async def _found(config: Config, root: DataRoot) -> None:
    try:
        with root.lock("command"):
            await migrate(config, root)
    except InstanceLocked:
        # Its owner (maybe this very process) makes the ledger, or has made it since.
        await migrate(config, root)
