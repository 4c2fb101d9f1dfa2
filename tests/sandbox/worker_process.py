"""A worker process for the kill test: opens the sandbox, starts one operation and says so on standard output.

python -m tests.sandbox.worker_process DATA_ROOT INSTANCE WORKSPACE EFFECT_ID COMMAND
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from milepost.ports.sandbox import Exec, SandboxSpec
from milepost.sandboxes.podman.provider import PodmanProvider


async def main(root: str, instance: str, workspace: str, effect: str, command: str) -> None:
    provider = PodmanProvider(Path(root), instance)
    sandbox = await provider.open(SandboxSpec("killed", instance, workspace))
    outcome = await sandbox.perform(effect, Exec(command), lambda *_: print("running", flush=True))
    print(outcome.exit_code, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
