"""Records the histories of environments of this release: `python -m tests.environments.histories`.

As with turns (`tests.histories.record`), never to silence a replay that fails.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from pathlib import Path
from typing import Any

from milepost.bootstrap.system import release
from milepost.contracts.naming import environment_workflow_id
from milepost.domain.environments import EnvironmentState
from milepost.services.environments import ReviewEnvironment
from milepost.storage import upgrade
from milepost.temporal.client import TemporalAddress
from milepost.temporal.dev_server import DevServer
from milepost.temporal.exit import clean_exit
from tests.histories.record import scrubbed, to_text
from tests.histories.scenarios import stack_of

RECORDED = Path(__file__).with_name("recorded")

SCENARIOS = {
    "ready": ("make deps", EnvironmentState.READY),
    "failed": ("exit 3", EnvironmentState.FAILED),
    "stopped": ("hang on", EnvironmentState.FAILED),
}
"""Setup command and end, by name."""


async def history_of(name: str, address: TemporalAddress, folder: Path) -> dict[str, Any]:
    """Play a scenario and return its history."""
    command, state = SCENARIOS[name]
    workspace = folder / "sample"
    await asyncio.to_thread(workspace.mkdir, parents=True)
    await asyncio.to_thread((workspace / ".devcontainer.json").write_text, f'{{"postCreateCommand": "{command}"}}')
    url = f"sqlite:///{folder / 'ledger.db'}"
    await upgrade(url)
    async with stack_of((), url, folder / "blobs", address) as (stack, sandboxes), stack.worker():
        session_id = await stack.open(workspace)
        await stack.environments.prepare(session_id, "test")
        await stack.environments.review(session_id, ReviewEnvironment(True, "test"))
        if name == "stopped":
            async with asyncio.timeout(30):
                while not (box := sandboxes.by_session.get(session_id)) or not box.journal:
                    await asyncio.sleep(0.02)
            await stack.environments.stop(session_id, "test")
        assert (await stack.settled(session_id)).state is state
        workflow_id = environment_workflow_id(stack.parts.ledger.instance_id, f"{session_id}/1")
        handle = stack.client.get_workflow_handle(workflow_id)
        async with asyncio.timeout(30):
            await asyncio.gather(handle.result(), return_exceptions=True)
        history = await handle.fetch_history()
    return {"workflowId": history.workflow_id, **scrubbed(history.to_json_dict())}


async def record(into: Path) -> None:
    """Record every scenario into the folder."""
    with tempfile.TemporaryDirectory() as folder:
        server = DevServer(None, Path(folder) / "temporal.log")
        address = await server.start()
        try:
            for name in SCENARIOS:
                text = to_text(await history_of(name, address, Path(folder) / name))
                await asyncio.to_thread((into / f"{name}.json").write_text, text, "utf-8")
                print(f"{name}.json: {len(text)} bytes")
        finally:
            await server.stop()


def main() -> None:
    logging.disable(logging.CRITICAL)
    into = RECORDED / release()
    into.mkdir(parents=True, exist_ok=True)
    asyncio.run(record(into))
    clean_exit(0)


if __name__ == "__main__":
    main()
