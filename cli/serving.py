"""The API of this process: application, Unix socket, TCP address, and what clients read about the instance."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI

from api.app import create_app
from milepost.bootstrap.checks import TemporalPart
from milepost.bootstrap.core import Core
from milepost.bootstrap.data_root import InstanceInfo
from milepost.bootstrap.system import release
from milepost.security.access import Access
from milepost.security.token import load_or_create_token
from milepost.services.catalog import Services


@dataclass(frozen=True, slots=True)
class Served:
    """How clients reach this process. The token is a secret."""

    info: InstanceInfo
    token: str

    def __repr__(self) -> str:
        return f"Served({self.info!r})"


def application(core: Core, services: Services, token: str) -> FastAPI:
    """The application over these services. Raises ConfigInvalid for a configured host or origin of another form."""
    core.config.secrets.redactor.learn(token)
    section = core.config.settings.api
    return create_app(
        services, Access(token), allowed_hosts=(section.host, *section.hosts), allowed_origins=section.origins
    )


@asynccontextmanager
async def serving(
    core: Core, temporal: TemporalPart, *, role: str, tcp: bool, uds: bool = True
) -> AsyncIterator[Served]:
    """Serve on the data root's Unix socket, with `tcp` also on the configured address; tell clients while it lasts.

    Without `uds` only the address is served, and commands on this machine are not told of it.

    Raises:
        AddressUnavailable, ConfigInvalid, StorageUnavailable.
    """
    from api.server import ApiServer  # brings the HTTP server, which a stand-in does not need

    section = core.config.settings.api
    token = load_or_create_token(core.root.token)
    app = application(core, core.services(temporal), token)
    server = ApiServer(
        app, host=section.host if tcp else None, port=section.port, uds=core.root.socket if uds else None
    )
    await server.start()
    try:
        info = InstanceInfo(
            pid=os.getpid(),
            role=role,
            socket=str(core.root.socket),
            release=release(),
            started_at=core.clock.now(),
            api_url=server.url,
            temporal_ui=temporal.ui,
            temporal_target=temporal.target,
            config_path=str(core.config.path) if core.config.path else None,
            config_digest=core.config.digest,
        )
        if uds:
            core.root.write_info(info)
        yield Served(info, token)
    finally:
        if uds:
            core.root.clear_info()
        await server.stop()
