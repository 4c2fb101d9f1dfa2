"""Sandboxes on this machine's Podman: ready, first and warm commands beside `podman exec`, 20 Sessions, Stop.

    python benchmarks/sandbox.py [ROUNDS]

Rounds of the compared ways alternate, so that load on the machine meets all alike. Times are milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
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

SESSIONS = 20


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
    link = await api.exec(container_id, ["/bin/bash", "-c", "true"], {}, user="1000:1000")
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
        await stops(sandbox)
        await sessions_at_once(provider, root)
    finally:
        for found in await provider.owned():
            await provider.remove(found.session_id)
        await provider.close()
        shutil.rmtree(root, ignore_errors=True)


async def cold_opens(provider: PodmanProvider, spec: SandboxSpec) -> None:
    cold, first, attached = [], [], []
    for _ in range(5):
        await provider.remove("bench")
        started = time.perf_counter()
        sandbox = await provider.open(spec)
        cold.append((time.perf_counter() - started) * 1000)
        first.append(await timed(lambda sandbox=sandbox: sandbox.perform(uuid.uuid4().hex, Exec("true"))))
        other = PodmanProvider(provider._data_root, provider.instance_id)
        attached.append(await timed(lambda other=other: other.open(spec)))
        await other.close()
    line("cold open (new container)", cold)
    line("first command in it", first)
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


async def stops(sandbox: Sandbox) -> None:
    """From the request to an empty process tree: 20 busy processes, half of them daemons in sessions of their own."""
    busy = "for i in $(seq 10); do (while :; do :; done) & (setsid sh -c 'while :; do sleep 0.01; done' &) ; done; wait"
    took = []
    for _ in range(10):
        effect, begun = uuid.uuid4().hex, asyncio.Event()
        command = Exec(f"echo begun; {busy}", timeout=60)
        task = asyncio.create_task(sandbox.perform(effect, command, lambda *_, begun=begun: begun.set()))
        await begun.wait()
        await asyncio.sleep(0.1)
        took.append(await timed(lambda effect=effect: sandbox.kill(effect)))
        assert (await task).killed
    line("Stop of 20 busy processes", took)


async def sessions_at_once(provider: PodmanProvider, root: Path) -> None:
    """Opened together, each at work; what their processes hold of memory, shared pages divided (PSS)."""
    folders = [root / f"session-{number}" for number in range(SESSIONS)]
    for folder in folders:
        folder.mkdir()
    specs = [SandboxSpec(folder.name, provider.instance_id, str(folder)) for folder in folders]
    started = time.perf_counter()
    boxes = await asyncio.gather(*(provider.open(spec) for spec in specs))
    print(f"{f'{SESSIONS} Sessions opened at once':<34} {(time.perf_counter() - started) * 1000:12.2f}")
    effects = [uuid.uuid4().hex for _ in boxes]
    tasks = [asyncio.create_task(box.perform(e, Exec("sleep 30"))) for box, e in zip(boxes, effects, strict=True)]
    await asyncio.sleep(1)
    supervisors = processes("milepost-superv")
    conmons = processes("conmon")
    print(f"memory each: supervisor {held(supervisors) / SESSIONS:.1f} MB, conmon {held(conmons) / SESSIONS:.1f} MB")
    took = [await timed(lambda box=box: box.perform(uuid.uuid4().hex, Exec("true"))) for box in boxes]
    line(f"a command in each of {SESSIONS}", took)
    await asyncio.gather(*(box.kill(e) for box, e in zip(boxes, effects, strict=True)))
    await asyncio.gather(*tasks)


def processes(name: str) -> list[Path]:
    """Of that name on this machine; nothing else of Podman may run beside this."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if (folder / "comm").read_text().strip() == name[:15]:
                    found.append(folder)
    return found


def held(found: list[Path]) -> float:
    """Megabytes of PSS."""
    total = 0
    for folder in found:
        with contextlib.suppress(OSError):
            lines = (folder / "smaps_rollup").read_text().splitlines()
            total += next(int(row.split()[1]) for row in lines if row.startswith("Pss:"))
    return total / 1024


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 40))
