"""Looking at a folder for what its sandbox could be made of."""

from __future__ import annotations

from typing import Protocol

from milepost.domain.environments import EnvironmentPlan


class Detector(Protocol):
    async def detect(self, path: str) -> EnvironmentPlan:
        """What the folder proposes; nothing of it is run, and no link in it is followed.

        Raises:
            InvalidInput: the folder does not exist, or a link is in its path.
        """
