"""A warm sandbox command beside `podman exec`, and a cold open, on this machine's Podman.

    python benchmarks/sandbox.py [ROUNDS]

Rounds of the compared ways alternate, so that load on the machine meets all alike. Times are milliseconds.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

from milepost.ports.sandbox import EditFile, Exec, ReadFile, Sandbox, SandboxSpec, WriteFile
from milepost.sandboxes.podman.provider import PodmanProvider
from milepost.sandboxes.podman.sandbox import PodmanSandbox


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await work()
    return (time.perf_counter() - started) * 1000


def line(name: str, values: list[float]) -> None:
    ordered = sorted(values)
    p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    print(f"{name:<34} p50 {statistics.median(ordered):8.2f}   p95 {p95:8.2f}   n {len(ordered)}")


async def podman_exec(provider: PodmanProvider, container_id: str) -> None:
    """What the podman command does: an exec session of its own over the same API, to its end and exit code."""
    api = await provider._service.api()
    link = await api.exec(container_id, ["/bin/bash", "-c", "true"], {})
    while await link.receive():
        pass
    await link.close()


async def podman_command(provider: PodmanProvider, container_id: str) -> None:
    """The command line client on the same service."""
    api = await provider._service.api()
    command = ["podman", "--remote", "--url", f"unix://{api.socket}", "exec", container_id, "/bin/bash", "-c", "true"]
    process = await asyncio.create_subprocess_exec(*command)
    assert await process.wait() == 0


async def main(rounds: int) -> None:
    root = Path(tempfile.mkdtemp(prefix="mpb-"))
    workspace = root / "workspace"
    workspace.mkdir()
    provider = PodmanProvider(root, f"bench-{uuid.uuid4().hex[:8]}")
    spec = SandboxSpec("bench", provider.instance_id, str(workspace))
    try:
        await provider.build_image()
        await cold_opens(provider, spec)
        sandbox = await provider.open(spec)
        assert isinstance(sandbox, PodmanSandbox)
        await warm_commands(provider, sandbox, rounds)
    finally:
        await provider.remove("bench")
        await provider.close()
        shutil.rmtree(root, ignore_errors=True)


async def cold_opens(provider: PodmanProvider, spec: SandboxSpec) -> None:
    cold, attached = [], []
    for _ in range(5):
        await provider.remove("bench")
        cold.append(await timed(lambda: provider.open(spec)))
        other = PodmanProvider(provider._data_root, provider.instance_id)
        attached.append(await timed(lambda other=other: other.open(spec)))
        await other.close()
    line("cold open (new container)", cold)
    line("open of a running container", attached)


async def warm_commands(provider: PodmanProvider, sandbox: PodmanSandbox, rounds: int) -> None:
    async def perform(operation: Exec | ReadFile | WriteFile | EditFile) -> None:
        outcome = await sandbox.perform(uuid.uuid4().hex, operation)
        assert outcome.error_code is None, outcome.error

    def run(box: Sandbox, command: str) -> Callable[[], Awaitable[object]]:
        return lambda: box.perform(uuid.uuid4().hex, Exec(command))

    ways: dict[str, Callable[[], Awaitable[object]]] = {
        "podman exec (true)": lambda: podman_command(provider, sandbox.container_id),
        "exec session over the API (true)": lambda: podman_exec(provider, sandbox.container_id),
        "warm command (true)": run(sandbox, "true"),
        "warm write_file": lambda: perform(WriteFile("f", b"one\ntwo\n")),
        "warm read_file": lambda: perform(ReadFile("f")),
        "warm edit_file": lambda: perform(EditFile("f", "two", "2")),
    }
    seen: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, work in ways.items():
            seen[name].append(await timed(work))
    for name, values in seen.items():
        line(name, values)
    command, session, warm = (statistics.median(seen[name]) for name in list(ways)[:3])
    print(f"a warm command is {command / warm:.1f} times faster than podman exec,", end=" ")
    print(f"{session / warm:.1f} times faster than an exec session over the API")
    big = [await timed(run(sandbox, "head -c 16000000 /dev/zero")) for _ in range(3)]
    line("16 MB of output", big)
    many = await timed(lambda: asyncio.gather(*(run(sandbox, "true")() for _ in range(20))))
    print(f"{'20 commands at once':<34} {many:12.2f}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 40))
