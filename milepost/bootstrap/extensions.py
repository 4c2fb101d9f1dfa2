"""The tools of the user's own that this instance's configuration names."""

from __future__ import annotations

import asyncio

from milepost.config.loading import Config
from milepost.ports.tools import CustomTools, NoCustomTools


async def open_tools(config: Config) -> CustomTools:
    """Load them. One that cannot be loaded is told of when it is wanted, and by `milepost doctor`."""
    if not config.tools:
        return NoCustomTools()
    from milepost.extensions.http import PeerClient
    from milepost.extensions.tools import ConfiguredTools

    tools = ConfiguredTools(config.tools, PeerClient(config.secrets))
    await asyncio.to_thread(tools.load)
    return tools
