"""A process that rewinds or forks with files until it is killed: `python -m tests.rewind.killed URL ROOT STEP ACT`.

`STEP` is `METHOD:N` of the snapshots: right before its n-th call the process kills itself, as a signal does. `-` waits
to be killed from outside. `ACT` is JSON: what to do with which Session.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from milepost.services.forks import ForkFrom
from milepost.services.rewinds import RewindTo
from milepost.storage import open_ledger, open_notifier
from tests.rewind.conftest import make_bench


def doom(target: object, method: str, number: int) -> None:
    """Die right before the n-th call of a method."""
    real: Callable[..., Any] = getattr(target, method)
    calls = 0

    async def call(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return await real(*arguments, **more)

    setattr(target, method, call)


async def main(url: str, root: str, step: str, act: str) -> None:
    """Never returns if it is killed; prints `done` otherwise."""
    ledger = await open_ledger(url, await open_notifier(url))
    bench = make_bench(ledger, Path(root))
    if step != "-":
        method, _, number = step.partition(":")
        doom(bench.snapshots, method, int(number))
    wanted = json.loads(act)
    if wanted["do"] == "rewind":
        await bench.rewinds.rewind(RewindTo(wanted["session"], "test", wanted["number"], files=True))
    else:
        folder = wanted["folder"]
        await bench.forks.fork(ForkFrom(wanted["session"], "test", wanted["number"], workspace=folder, files=True))
    print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
