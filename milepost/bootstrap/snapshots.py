"""Snapshots of Workspaces, as the configuration wants them."""

from __future__ import annotations

from milepost.bootstrap.data_root import DataRoot
from milepost.config.loading import Config
from milepost.ports.snapshots import Snapshots


def open_snapshots(config: Config, root: DataRoot) -> Snapshots | None:
    """The snapshots of this data root; None if they are off, or the Workspaces' files are on other machines.

    Nothing is created before the first is taken.
    """
    section = config.settings.snapshots
    if not section.enabled or config.settings.sandbox.backend == "e2b":
        return None
    from milepost.snapshots import GitSnapshots

    return GitSnapshots(root.snapshots, seconds=section.seconds, max_file_bytes=int(section.max_file))
