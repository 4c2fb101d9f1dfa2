"""Where checkpoints lie, when they are written, and taking away those of no use."""

from __future__ import annotations

import asyncio

from milepost.bootstrap.data_root import DataRoot
from milepost.config.loading import Config
from milepost.domain.checkpoints import CheckpointPolicy
from milepost.domain.consolidation import ConsolidationSettings
from milepost.memory.checkpoint_files import CheckpointFiles
from milepost.services.checkpoint_files import useless
from milepost.services.checkpoints import CheckpointSettings
from milepost.storage import open_ledger, open_notifier


def open_checkpoints(root: DataRoot) -> CheckpointFiles:
    """The checkpoints of this data root; no folder is made before the first one."""
    return CheckpointFiles(root.checkpoints / "v1")


def checkpoint_settings(config: Config) -> CheckpointSettings:
    """What the configuration says of them."""
    section = config.settings.checkpoints
    return CheckpointSettings(CheckpointPolicy(section.policy), section.every)


def consolidation_settings(config: Config) -> ConsolidationSettings:
    """What the configuration says of consolidations."""
    section = config.settings.consolidation
    return ConsolidationSettings(section.enabled, section.interval_secs, section.idle_threshold_secs, section.review)


async def collect_checkpoints(config: Config, root: DataRoot, before: float, *, dry_run: bool) -> tuple[int, int]:
    """Remove checkpoints that are of no use and what killed writers left, if older than `before` (s since the epoch).

    Returns how many of each. Raises StorageUnavailable, SchemaOutdated, SchemaTooNew.
    """
    store = open_checkpoints(root)
    keys = await asyncio.to_thread(store.keys)
    if not keys:
        return 0, 0
    url = config.database_url()
    notifier = await open_notifier(url)
    try:
        ledger = await open_ledger(url, notifier)
        try:
            found = [file for file in await useless(ledger, store, keys) if file.at < before]
        finally:
            await ledger.close()
    finally:
        await notifier.close()
    left = await asyncio.to_thread(lambda: list(store.leftovers(before)))
    if not dry_run:
        for file in found:
            await asyncio.to_thread(store.discard, file)
        for path in left:
            path.unlink(missing_ok=True)
    return len(found), len(left)
