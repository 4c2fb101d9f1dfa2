"""The embedded Temporal server is ours and nobody else's, on whatever port it is."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

from temporalio.api.workflowservice.v1 import ListNamespacesRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from milepost.temporal.client import TemporalAddress, connect
from milepost.temporal.dev_server import DevServer


async def namespaces(address: TemporalAddress) -> set[str]:
    client = await connect(address)
    found = await client.workflow_service.list_namespaces(ListNamespacesRequest(page_size=100))
    return {item.namespace_info.name for item in found.namespaces if item.namespace_info.name.startswith("milepost-")}


async def test_servers_that_want_the_same_port_in_the_same_moment_are_kept_apart(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    servers = [DevServer(tmp_path / f"{n}.db", tmp_path / f"{n}.log", port=port) for n in range(3)]
    try:
        addresses = await asyncio.gather(*(server.start() for server in servers))
        assert len({address.target for address in addresses}) == 3
        assert len({address.ui for address in addresses}) == 3
        found = [await namespaces(address) for address in addresses]
        assert [len(names) for names in found] == [1, 1, 1]
        assert len(set.union(*found)) == 3
    finally:
        await asyncio.gather(*(server.stop() for server in servers))


async def test_a_port_in_use_is_left_to_its_user(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = DevServer(None, tmp_path / "log", port=port, ui_port=port)
        try:
            address = await server.start()
            assert not address.target.endswith(f":{port}")
            assert not address.ui.endswith(f":{port}")
        finally:
            await server.stop()


SCRIPT = """
import asyncio, sys
from datetime import timedelta
from datetime import timedelta
from pathlib import Path
from milepost.temporal.client import connect
from milepost.temporal.dev_server import DevServer
from milepost.temporal.exit import clean_exit

async def main():
    server = DevServer(None, Path(sys.argv[1]))
    client = await connect(await server.start())
    await server.stop()
    try:
        await client.get_workflow_handle("x").describe(rpc_timeout=timedelta(seconds=3))
    except Exception as error:
        sys.stderr.write(type(error).__name__)

asyncio.run(main())
clean_exit(0)
"""


def test_the_sdk_writes_nothing_among_results(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    assert (done.stdout, done.stderr) == ("", "RPCError")


async def test_a_server_that_is_killed_is_started_again_with_its_store(tmp_path: Path) -> None:
    server = DevServer(tmp_path / "store.db", tmp_path / "log")
    try:
        address = await server.start()
        client = await connect(address)
        await client.start_workflow("Waits", id="kept", task_queue="nobody")
        first = server.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(60):
            while server.pid in (first, None) or not await _answers(client):
                await asyncio.sleep(0.05)
    finally:
        await server.stop()
    assert server.pid is None


async def _answers(client: Client) -> bool:
    try:
        description = await client.get_workflow_handle("kept").describe(rpc_timeout=timedelta(seconds=2))
    except RPCError:
        return False
    return description.status is WorkflowExecutionStatus.RUNNING
