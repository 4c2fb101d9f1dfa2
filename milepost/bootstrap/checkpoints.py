"""Where checkpoints lie, and when they are written."""

from __future__ import annotations

from milepost.bootstrap.data_root import DataRoot
from milepost.config.loading import Config
from milepost.domain.checkpoints import CheckpointPolicy
from milepost.memory.checkpoint_files import CheckpointFiles
from milepost.services.checkpoints import CheckpointSettings


def open_checkpoints(root: DataRoot) -> CheckpointFiles:
    """The checkpoints of this data root; no folder is made before the first one."""
    return CheckpointFiles(root.checkpoints / "v1")


def checkpoint_settings(config: Config) -> CheckpointSettings:
    """What the configuration says of them."""
    section = config.settings.checkpoints
    return CheckpointSettings(CheckpointPolicy(section.policy), section.every)
