"""Records the histories of this release from a real server: `python -m tests.histories.record`.

Run it when a release is made, and never to silence a replay that fails: the histories of earlier releases stay as they
are, since runs like them may still be open somewhere.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import tempfile
from pathlib import Path
from typing import Any

from milepost.bootstrap.system import release
from milepost.storage import upgrade
from milepost.temporal.client import TemporalAddress
from milepost.temporal.dev_server import DevServer
from milepost.temporal.exit import clean_exit
from tests.histories.scenarios import SCENARIOS, Scenario, play, stack_of

RECORDED = Path(__file__).with_name("recorded")

_PLACES = {"identity", "lastWorkerIdentity", "workerIdentity"}
"""Fields that name the process and the host of a client or worker."""


def scrubbed(value: Any) -> Any:
    """A history as JSON without names of hosts, processes and files of the machine it was made on."""
    if isinstance(value, list):
        return [scrubbed(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("kind") == "TASK_QUEUE_KIND_STICKY":
        value = value | {"name": "sticky"}
    result = {key: scrubbed(item) for key, item in value.items() if key != "stackTrace"}
    return result | dict.fromkeys(_PLACES & result.keys(), "recorder")


async def history_of(scenario: Scenario, address: TemporalAddress, folder: Path) -> dict[str, Any]:
    """Play a scenario and return its history."""
    workspace = folder / "sample"
    workspace.mkdir(parents=True)
    url = f"sqlite:///{folder / 'ledger.db'}"
    await upgrade(url)
    made = stack_of(scenario.steps, url, folder / "blobs", address, asks=bool(scenario.answers), parts=scenario.parts)
    async with made as (stack, sandboxes):
        turn = await play(scenario, stack, sandboxes, workspace)
        history = await stack.client.get_workflow_handle(turn.workflow_id + scenario.child).fetch_history()
    # The id is no part of the history itself, and the replayer asks for one.
    recorded: dict[str, Any] = scrubbed(history.to_json_dict())
    return {"workflowId": history.workflow_id, **recorded}


def to_text(history: dict[str, Any]) -> str:
    """One event a line, so that a change is readable."""
    events = ",\n".join(json.dumps(event, sort_keys=True, separators=(",", ":")) for event in history["events"])
    return f'{{"workflowId":{json.dumps(history["workflowId"])},"events":[\n{events}\n]}}\n'


async def record(into: Path) -> None:
    """Record every scenario into the folder."""
    with tempfile.TemporaryDirectory() as folder:
        server = DevServer(None, Path(folder) / "temporal.log")
        address = await server.start()
        try:
            for scenario in SCENARIOS:
                history = await history_of(scenario, address, Path(folder) / scenario.name)
                target = into / f"{scenario.name}.json"
                target.write_text(to_text(history), "utf-8")
                print(f"{target.name}: {len(history['events'])} events, {target.stat().st_size} bytes")
        finally:
            await server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--into", type=Path, default=RECORDED / release(), help="folder of the histories")
    arguments = parser.parse_args()
    # The scenarios fail on purpose, and the worker reports each failure.
    logging.disable(logging.CRITICAL)
    arguments.into.mkdir(parents=True, exist_ok=True)
    asyncio.run(record(arguments.into))
    clean_exit(0)


if __name__ == "__main__":
    main()
