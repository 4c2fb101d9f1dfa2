"""Opening nothing but the ledger and its blobs, to check them."""

from __future__ import annotations

from milepost.bootstrap.data_root import DataRoot
from milepost.config.loading import Config
from milepost.services.contents import Contents
from milepost.services.verification import Verification, VerificationService
from milepost.storage import FileBlobStore, open_ledger, open_notifier


async def verify_ledger(config: Config, root: DataRoot) -> Verification:
    """Check the whole ledger and every blob it names. Raises StorageUnavailable, SchemaOutdated, SchemaTooNew."""
    url = config.database_url()
    notifier = await open_notifier(url)
    try:
        ledger = await open_ledger(url, notifier)
        try:
            return await VerificationService(ledger, Contents(FileBlobStore(root.blobs))).verify()
        finally:
            await ledger.close()
    finally:
        await notifier.close()
