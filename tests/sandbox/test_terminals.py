"""Terminals of people in a real container: through the API, found again by another process, kept while they run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from milepost.domain.processes import ProcessEnding, ProcessRecord
from milepost.ports.sandbox import SandboxSpec, Spawn
from milepost.sandboxes.podman.provider import PodmanProvider
from milepost.services.processes import NewProcess, ProcessService, new_process_id
from milepost.services.workbench import Workbench
from tests.api.stack import HOST, Stack, running_stack
from tests.api.test_terminals import attach, message
from tests.support.podman import remove_owned

pytestmark = [pytest.mark.podman, pytest.mark.slow]


@dataclass
class Served:
    """An instance over Podman, and what a second process of it would see."""

    stack: Stack
    provider: PodmanProvider
    podman_root: Path

    async def another(self) -> tuple[ProcessService, Workbench, PodmanProvider]:
        provider = PodmanProvider(self.podman_root, self.stack.ledger.instance_id)
        workbench = Workbench(
            provider, lambda session: SandboxSpec(session.session_id, provider.instance_id, session.workspace.path)
        )
        return (
            ProcessService(self.stack.ledger, self.stack.services.processes._clock, workbench, HOST),
            workbench,
            provider,
        )

    async def background(self, session_id: str, command: str) -> ProcessRecord:
        session = await self.stack.ledger.read(lambda tx: tx.sessions.get(session_id))
        new = NewProcess(new_process_id(), Spawn(command), "agent:coder")
        return await self.stack.services.processes.start(session, new)


@pytest.fixture
async def served(sqlite_url: str, tmp_path: Path, podman_root: Path) -> AsyncIterator[Served]:
    made: list[PodmanProvider] = []

    def provider(instance_id: str) -> PodmanProvider:
        made.append(PodmanProvider(podman_root, instance_id))
        return made[0]

    async with running_stack(sqlite_url, tmp_path, provider=provider) as stack:
        yield Served(stack, made[0], podman_root)
        await remove_owned(made[0])
        await made[0].close()


async def test_a_person_works_in_the_container(served: Served) -> None:
    stack = served.stack
    session = await stack.open_session()
    opened = await stack.post(f"/api/v1/sessions/{session}/terminals", {"rows": 30, "columns": 100})
    assert opened.status_code == 201, opened.text
    terminal = opened.json()["terminal_id"]
    async with attach(stack, session, terminal) as socket:
        assert (await message(socket))["type"] == "terminal"
        await socket.send(b"stty size; echo $((6*7)) > made; cat made; tty\n")
        said = b""
        async with asyncio.timeout(60):
            while b"/dev/pts/" not in said:
                said += await socket.recv()
            # Not before: a shell that has yet to start would already have the new size.
            await socket.send(json.dumps({"type": "resize", "rows": 50, "columns": 132}))
            await socket.send(b"stty size; exit 3\n")
            while True:
                piece = await socket.recv()
                if isinstance(piece, str):
                    break
                said += piece
    assert b"30 100\r\n42\r\n/dev/pts/" in said.replace(b"\x1b[?2004l\r", b"") and b"50 132\r\n" in said
    assert json.loads(piece) == {"type": "ended", "exit_code": 3, "ended_by": "exit", "offset": len(said)}
    assert (stack.root / "project" / "made").read_text() == "42\n"
    shape = (await stack.client.get(f"/api/v1/sessions/{session}/terminals/{terminal}")).json()
    assert (shape["running"], shape["exit_code"]) == (False, 3)


async def test_another_process_finds_what_runs_and_keeps_its_container(served: Served) -> None:
    session = await served.stack.open_session()
    record = await served.background(session, "echo begun; until [ -e go ]; do sleep 0.05; done; exit 7")
    # The process that started it is gone without a goodbye: nothing of it is used from here on.
    service, workbench, provider = await served.another()
    workbench._idle_seconds = -1.0
    async with asyncio.timeout(60):
        while b"begun" not in (await service.read(session, record.process_id, 0, 100, 5.0)).data:
            pass
    await service.refresh_all()
    assert await workbench.tidy(served.stack.ledger) == 0, "it runs"
    (served.stack.root / "project" / "go").touch()
    async with asyncio.timeout(60):
        while (await service.of_session(session))[0].running:
            await asyncio.sleep(0.05)
    ended = await service.get(session, record.process_id)
    assert (ended.exit_code, ended.ended_by) == (7, ProcessEnding.EXIT)
    assert await workbench.tidy(served.stack.ledger) == 1, "nothing keeps it now"
    await provider.close()


async def test_what_runs_ends_with_the_container_and_that_is_told(served: Served) -> None:
    session = await served.stack.open_session()
    record = await served.background(session, "sleep 300")
    _, _, provider = await served.another()
    await provider.remove(session)
    listed = (await served.stack.client.get(f"/api/v1/sessions/{session}/terminals")).json()["terminals"]
    assert [(each["terminal_id"], each["ended_by"]) for each in listed] == [(record.process_id, "lost")]
    response = await served.stack.client.get(f"/api/v1/sessions/{session}/terminals/{record.process_id}/output")
    assert response.status_code == 404
    await provider.close()
