"""The tools and hooks of the user's own that this instance's configuration names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from milepost.config.loading import Config
from milepost.ports.hooks import Hooks, NoHooks
from milepost.ports.tools import CustomTools, NoCustomTools


@dataclass(frozen=True, slots=True)
class Extensions:
    """What the configuration adds to Milepost."""

    tools: CustomTools
    hooks: Hooks


@asynccontextmanager
async def open_extensions(config: Config) -> AsyncIterator[Extensions]:
    """Load them. One that cannot be loaded is told of when it is wanted, and by `milepost doctor`."""
    if not config.tools and not config.hooks:
        yield Extensions(NoCustomTools(), NoHooks())
        return
    from milepost.extensions.hooks import ConfiguredHooks
    from milepost.extensions.http import PeerClient
    from milepost.extensions.tools import ConfiguredTools

    peers = PeerClient(config.secrets, config.secrets.redactor)
    try:
        tools, hooks = ConfiguredTools(config.tools, peers), ConfiguredHooks(config.hooks, peers)
        for load in (tools.load, hooks.load):
            await asyncio.to_thread(load)
        yield Extensions(tools, hooks)
    finally:
        await peers.close()
