"""Snapshots of Workspaces in git repositories of Milepost's own; the Workspace's repository is only read."""

from milepost.snapshots.provider import GitSnapshots

__all__ = ["GitSnapshots"]
