"""The API inside this process, on the ledger alone: for commands that need no worker and no Temporal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from cli.serving import application
from milepost.bootstrap.core import open_core
from milepost.bootstrap.data_root import DataRoot
from milepost.bootstrap.doctor import ensure_ledger, temporal_part
from milepost.config.loading import Config
from milepost.security.token import load_or_create_token


@asynccontextmanager
async def stand_in(config: Config, root: DataRoot) -> AsyncIterator[tuple[ASGIApp, str]]:
    """The application and its token. An instance that never ran gets an empty ledger.

    Raises:
        StorageUnavailable, SchemaOutdated, SchemaTooNew, ConfigInvalid, SecretMissing.
    """
    await ensure_ledger(config, root)
    async with open_core(config, root) as core:
        core.workbench.publishes = False
        token = load_or_create_token(root.token)
        yield application(core, core.services(temporal_part(config)), token), token
