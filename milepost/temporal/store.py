"""The file of the embedded Temporal server: whether the server can work with it, and putting it aside when it cannot.

The dev server makes a file with the tables it knows and never changes one it finds. So a file of another release may be
opened without a complaint, and only the first workflow finds that a table or column is not there.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
import uuid
from datetime import timedelta
from pathlib import Path

from temporalio.client import Client
from temporalio.service import RPCError

BESIDE = ("-journal", "-wal", "-shm")
"""What SQLite keeps beside the file while it is open, and leaves there when its process is killed."""

MAX_LOG_BYTES = 4 * 1024 * 1024
EXERCISE_SECONDS = 2.0
"""Enough for a server that can do it to do it, and for one that cannot to say so in its log."""

# What the server's database driver says of a file with other tables, a damaged one, and one that is none. Not among
# them: a full disk, a locked file, a folder without rights; they say nothing against the file.
_COMPLAINTS = re.compile(
    rb"SQL logic error|no such (?:table|column)|has no column named|NOT NULL constraint failed|"
    rb"file is not a database|database disk image is malformed|unsupported file format"
)


class Store:
    """The file of one server. `log` is the log of its present start."""

    def __init__(self, path: Path, log: Path) -> None:
        self.path = path
        self._log = log

    def exists(self) -> bool:
        """Whether there is a file. Without one, what an earlier one left beside it is removed.

        SQLite would play an old journal back into the new file.
        """
        if self.path.exists():
            return True
        for suffix in BESIDE:
            self._beside(suffix).unlink(missing_ok=True)
        return False

    def is_refused(self) -> bool:
        """Whether the server has complained of the file since it was started."""
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            return _COMPLAINTS.search(log.read(MAX_LOG_BYTES)) is not None
        return False

    def archive(self) -> Path:
        """Put the file aside with all that belongs to it; returns where it is now."""
        moment = int(time.time())
        target = self.path.with_name(f"{self.path.name}.unreadable-{moment}")
        while target.exists():
            moment += 1
            target = self.path.with_name(f"{self.path.name}.unreadable-{moment}")
        for suffix in BESIDE:
            with contextlib.suppress(FileNotFoundError):
                self._beside(suffix).rename(target.with_name(target.name + suffix))
        self.path.rename(target)
        return target

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)


async def exercise(client: Client) -> None:
    """Let the server write and read what a workflow needs; what it cannot do is in its log afterwards."""
    workflow_id = f"store-check/{uuid.uuid4()}"
    with contextlib.suppress(RPCError, TimeoutError):
        async with asyncio.timeout(EXERCISE_SECONDS):
            # Nobody serves it; it ends by itself, and Temporal forgets it after the usual time.
            handle = await client.start_workflow(
                "StoreCheck", id=workflow_id, task_queue="store-check", execution_timeout=timedelta(seconds=1)
            )
            await handle.describe()
