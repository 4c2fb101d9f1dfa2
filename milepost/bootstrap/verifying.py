"""Opening nothing but the ledger, to check it."""

from __future__ import annotations

from milepost.config.loading import Config
from milepost.services.verification import Verification, VerificationService
from milepost.storage import open_ledger, open_notifier


async def verify_ledger(config: Config) -> Verification:
    """Check the whole ledger. Raises StorageUnavailable, SchemaOutdated, SchemaTooNew."""
    url = config.database_url()
    notifier = await open_notifier(url)
    try:
        ledger = await open_ledger(url, notifier)
        try:
            return await VerificationService(ledger).verify()
        finally:
            await ledger.close()
    finally:
        await notifier.close()
