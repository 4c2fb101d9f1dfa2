"""Ports of a sandbox answer on loopback only, also of one without a network."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from milepost.ports.sandbox import Exec
from tests.sandbox.boxes import new_id
from tests.sandbox.conformance.backends import Backend, Capability

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs(Capability.PORTS, Capability.SHELL)]

PORT = 8123


async def asked(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET /index.html HTTP/1.0\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.slow
async def test_a_port_answers_on_loopback_alone(backend: Backend, tmp_path: Path) -> None:
    box = await backend.open(tmp_path, "ports", ports=(PORT,))
    places = box.sandbox.ports
    assert places.keys() == {PORT}
    host, _, number = places[PORT].partition(":")
    assert host == "127.0.0.1"
    serve = f"echo from-inside > index.html; setsid python3 -m http.server {PORT} >/dev/null 2>&1 &"
    server = asyncio.create_task(box.sandbox.perform(new_id(), Exec(f"{serve} sleep 20")))
    answer = b""
    async with asyncio.timeout(30):
        while b"from-inside" not in answer:
            await asyncio.sleep(0.1)
            answer = await asked(host, int(number))
    listening = await asyncio.to_thread(Path("/proc/net/tcp").read_text)
    bound = [line.split()[1] for line in listening.splitlines()[1:] if line.split()[3] == "0A"]
    assert [place for place in bound if place.endswith(f":{int(number):04X}") and place[:8] != "0100007F"] == []
    for _ in range(20):
        assert b"from-inside" in await asked(host, int(number)), "connections are given back"
    await backend.provider.remove("ports")
    with pytest.raises(OSError):
        await asyncio.open_connection(host, int(number))
    server.cancel()
