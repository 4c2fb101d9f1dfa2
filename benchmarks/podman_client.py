"""What podman-py costs beside the same calls over httpx, on this machine's Podman.

    python benchmarks/podman_client.py [ROUNDS]

Rounds of the compared ways alternate, so that load on the machine meets all alike. Times are milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx

from milepost.ports.sandbox import SandboxSpec
from milepost.sandboxes.podman import spec as specs
from milepost.sandboxes.podman.api import PodmanApi
from milepost.sandboxes.podman.provider import DEFAULT_IMAGE, PodmanProvider
from milepost.sandboxes.podman.sandbox import PodmanSandbox

Work = Callable[[], Awaitable[object]]


async def timed(work: Work) -> float:
    started = time.perf_counter()
    await work()
    return (time.perf_counter() - started) * 1000


def pairs(api: PodmanApi, raw: httpx.AsyncClient, instance: str, container_id: str) -> dict[str, tuple[Work, Work]]:
    """The same question twice: through `PodmanApi`, and as a plain request."""
    filters = json.dumps({"label": [f"{specs.INSTANCE}={instance}"]})

    def get(path: str, **params: str) -> Work:
        return lambda: raw.get(path, params=params)

    def post(path: str, **params: str) -> Work:
        return lambda: raw.post(path, params=params)

    return {
        "ping": (api.ping, lambda: raw.head("/_ping")),
        "info": (api.info, get("/info")),
        "inspect an image": (lambda: api.image(DEFAULT_IMAGE), get(f"/images/{DEFAULT_IMAGE}/json")),
        "inspect a container": (lambda: api.container(container_id), get(f"/containers/{container_id}/json")),
        "list by label": (
            lambda: api.containers({specs.INSTANCE: instance}),
            get("/containers/json", all="true", filters=filters),
        ),
        "start (runs already)": (lambda: api.start(container_id), post(f"/containers/{container_id}/start")),
        "logs": (
            lambda: api.last_words(container_id),
            get(f"/containers/{container_id}/logs", stdout="true", stderr="true", tail="20"),
        ),
    }


async def main(rounds: int) -> None:
    root = Path(tempfile.mkdtemp(prefix="mpb-"))
    workspace = root / "workspace"
    workspace.mkdir()
    provider = PodmanProvider(root, f"bench-{uuid.uuid4().hex[:8]}")
    try:
        await provider.build_image()
        sandbox = await provider.open(SandboxSpec("bench", provider.instance_id, str(workspace)))
        assert isinstance(sandbox, PodmanSandbox)
        api = await provider._service.api()
        transport = httpx.AsyncHTTPTransport(uds=api.socket)
        async with httpx.AsyncClient(transport=transport, base_url="http://podman/v4.0.0/libpod", timeout=30) as raw:
            await compare(pairs(api, raw, provider.instance_id, sandbox.container_id), rounds)
    finally:
        await provider.remove("bench")
        await provider.close()
        shutil.rmtree(root, ignore_errors=True)


async def compare(ways: dict[str, tuple[Work, Work]], rounds: int) -> None:
    seen: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in ways}
    for _ in range(rounds):
        for name, both in ways.items():
            for values, work in zip(seen[name], both, strict=True):
                values.append(await timed(work))
    for name, (library, plain) in seen.items():
        first, second = statistics.median(library), statistics.median(plain)
        print(
            f"{name:<24} podman-py {first:7.2f}   httpx {second:7.2f}   difference {first - second:6.2f}   n {rounds}"
        )
    for label, works in (("podman-py", [both[0] for both in ways.values()]), ("httpx", [b[1] for b in ways.values()])):
        started = time.perf_counter()
        await asyncio.gather(*(work() for work in works for _ in range(10)))
        print(f"{len(works) * 10} calls at once, {label:<12} {(time.perf_counter() - started) * 1000:8.2f}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 60))
