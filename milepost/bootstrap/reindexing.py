"""Opening nothing but the ledger, to make its search index anew."""

from __future__ import annotations

from collections.abc import Callable

from milepost.config.loading import Config
from milepost.services.search import Progress, SearchService
from milepost.storage import open_ledger, open_notifier


async def rebuild_search(config: Config, tell: Callable[[Progress], None]) -> Progress:
    """Rebuild the index of the whole ledger. Raises StorageUnavailable, SchemaOutdated, SchemaTooNew."""
    url = config.database_url()
    notifier = await open_notifier(url)
    try:
        ledger = await open_ledger(url, notifier)
        try:
            return await SearchService(ledger).rebuild(tell)
        finally:
            await ledger.close()
    finally:
        await notifier.close()
