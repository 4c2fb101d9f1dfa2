"""The double's HTTP side: the control plane, the edge in front of sandboxes, and envd behind it."""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, unquote

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.e2b.machine import TEMPLATES, Machine
from tests.support.e2b.processes import STATUS, Process, Refused, envelope, opened, selected
from tests.support.needs import unavailable

KEY = "e2b_" + "0" * 40
VERSION = "0.6.4"
CONNECT_STREAM = "application/connect+json"
NOT_FOUND = "The sandbox was not found"


@dataclass
class Faults:
    """What goes wrong. `unanswered`: first requests to a sandbox that was made or resumed get 502. `cut_after`: streams
    of processes end after so many events, as long as `cuts` are left. `busy`: control plane requests that get 503.
    """

    unanswered: int = 0
    cut_after: int = 0
    cuts: int = 0
    busy: int = 0


@dataclass
class Double:
    """`url` serves both planes. `requests` are (method, path) of the control plane."""

    machines: dict[str, Machine] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    requests: list[tuple[str, str]] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    url: str = ""
    user: int = 1000
    _keys: dict[str, str] = field(default_factory=dict)
    _loop: asyncio.AbstractEventLoop | None = None

    def call(self, work: Callable[[], Any]) -> Any:
        """Do something in the double's own thread."""

        async def body() -> Any:
            return work()

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(body(), self._loop).result(30)

    def expire(self, sandbox_id: str) -> None:
        """The sandbox is gone for good, as one that the service kept too long."""
        self.call(self.machines[sandbox_id].kill)

    def cut(self, sandbox_id: str) -> None:
        """End all streams of its processes."""
        machine = self.machines[sandbox_id]
        self.call(lambda: [process.cut() for process in list(machine.processes.values())])

    # --- control plane -------------------------------------------------------------------------------------------

    async def create(self, request: Request, body: dict[str, Any]) -> Response:
        key = request.headers.get("idempotency-key")
        known = self.machines.get(self._keys.get(key or "", ""))
        if known is not None:
            return JSONResponse(_made(known), 201)
        if body["templateID"] not in TEMPLATES:
            return _error(404, f"template '{body['templateID']}' not found")
        machine = Machine(body, lambda ended: self.machines.pop(ended.sandbox_id, None) and None, user=self.user)
        machine.unanswered = self.faults.unanswered
        self.machines[machine.sandbox_id] = machine
        self.made.append(machine.sandbox_id)
        if key:
            self._keys[key] = machine.sandbox_id
        return JSONResponse(_made(machine), 201)

    async def list(self, request: Request, body: dict[str, Any]) -> Response:
        query = request.query_params
        states = [state for each in query.getlist("state") for state in each.split(",")] or ["running", "paused"]
        wanted = {unquote(key): unquote(value) for key, value in parse_qsl(query.get("metadata", ""))}
        found = [
            machine
            for machine in self.machines.values()
            if machine.state in states and wanted.items() <= (machine.body.get("metadata") or {}).items()
        ]
        found.sort(key=lambda machine: machine.started, reverse=query.get("order", "desc") != "asc")
        start, size = int(query.get("nextToken") or 0), int(query.get("limit") or 100)
        headers = {"x-next-token": str(start + size)} if start + size < len(found) else {}
        return JSONResponse([_listed(machine) for machine in found[start : start + size]], headers=headers)

    async def get(self, machine: Machine, body: dict[str, Any]) -> Response:
        detail = {"envdAccessToken": machine.token, "allowInternetAccess": machine.body.get("allow_internet_access")}
        return JSONResponse(_listed(machine) | detail | {"network": machine.network})

    async def delete(self, machine: Machine, body: dict[str, Any]) -> Response:
        machine.kill()
        return Response(status_code=204)

    async def timeout(self, machine: Machine, body: dict[str, Any]) -> Response:
        if machine.state != "running":
            return _error(404, "sandbox not found")
        machine.arm(body["timeout"])
        return Response(status_code=204)

    async def pause(self, machine: Machine, body: dict[str, Any]) -> Response:
        return Response(status_code=204) if machine.pause() else _error(409, "sandbox is already paused")

    async def connect(self, machine: Machine, body: dict[str, Any]) -> Response:
        resumed = machine.resume(body.get("timeout"))
        if resumed:
            machine.unanswered = self.faults.unanswered
        return JSONResponse(_made(machine), 201 if resumed else 200)

    def control(self, handler: Callable[..., Awaitable[Response]], *, of_sandbox: bool = True) -> Any:
        async def endpoint(request: Request) -> Response:
            self.requests.append((request.method, request.url.path))
            if request.headers.get("x-api-key") != KEY:
                return _error(401, "Invalid API key")
            if self.faults.busy > 0:
                self.faults.busy -= 1
                return _error(503, "no capacity")
            raw = await request.body()
            body = (await request.json()) if raw else {}
            if not of_sandbox:
                return await handler(request, body)
            machine = self.machines.get(request.path_params["id"])
            return _error(404, "sandbox not found") if machine is None else await handler(machine, body)

        return endpoint

    # --- edge and envd -------------------------------------------------------------------------------------------

    def envd(self, handler: Callable[..., Awaitable[Response]], *, stream: bool = False, secured: bool = True) -> Any:
        async def endpoint(request: Request) -> Response:
            sandbox_id = request.headers.get("e2b-sandbox-id", "")
            machine = self.machines.get(sandbox_id)
            if machine is None or machine.state != "running" or machine.unanswered > 0:
                if machine is not None and machine.state == "running":
                    machine.unanswered -= 1
                return JSONResponse({"sandboxId": sandbox_id, "message": NOT_FOUND, "code": 502}, 502)
            if secured and request.headers.get("x-access-token") != machine.token:
                text = "unauthorized access, please provide a valid access token or method signing if supported"
                return _error(401, text)
            try:
                return await handler(request, machine)
            except Refused as error:
                if stream:
                    return Response(envelope({"error": error.body}, 2), media_type=CONNECT_STREAM)
                return JSONResponse(error.body, STATUS[error.code])

        return endpoint

    async def health(self, request: Request, machine: Machine) -> Response:
        return Response(status_code=204)

    async def start(self, request: Request, machine: Machine) -> Response:
        process = Process(machine, opened(await request.body()))
        await process.start()
        budget = request.headers.get("connect-timeout-ms")
        if budget:
            asyncio.get_running_loop().call_later(int(budget) / 1000, process.signal, "SIGNAL_SIGKILL")
        return self._followed(request, process)

    async def follow(self, request: Request, machine: Machine) -> Response:
        return self._followed(request, selected(machine, opened(await request.body())))

    def _followed(self, request: Request, process: Process) -> Response:
        idle = float(request.headers.get("keepalive-ping-interval", 90))
        return StreamingResponse(self._faulty(process.events(idle)), media_type=CONNECT_STREAM)

    async def _faulty(self, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        count = 0
        async for event in events:
            if self.faults.cuts > 0 and count > self.faults.cut_after:
                self.faults.cuts -= 1
                raise ConnectionResetError("cut by the test")
            yield event
            count += 1

    async def processes(self, request: Request, machine: Machine) -> Response:
        listed = [{"pid": each.pid, "config": each.config} for each in machine.processes.values()]
        return JSONResponse({"processes": listed})

    async def send_input(self, request: Request, machine: Machine) -> Response:
        message = await request.json()
        await selected(machine, message).type(message["input"])
        return JSONResponse({})

    async def close_stdin(self, request: Request, machine: Machine) -> Response:
        selected(machine, await request.json()).close_stdin()
        return JSONResponse({})

    async def send_signal(self, request: Request, machine: Machine) -> Response:
        message = await request.json()
        selected(machine, message).signal(message["signal"])
        return JSONResponse({})

    async def write_file(self, request: Request, machine: Machine) -> Response:
        path = request.query_params["path"]
        data = await request.body()
        if not request.headers.get("content-type", "").startswith("application/octet-stream"):
            return _error(400, "unsupported content type")
        if request.headers.get("content-encoding") == "gzip":
            data = gzip.decompress(data)
        target = machine.outside(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.chown(target.parent, machine.user, machine.user)
        target.write_bytes(data)
        os.chown(target, machine.user, machine.user)
        return JSONResponse([{"name": target.name, "path": path, "type": "file"}])

    def app(self) -> Starlette:
        def route(path: str, endpoint: Any, method: str = "POST") -> Route:
            return Route(path, endpoint, methods=[method])

        of_process = {
            "Start": self.envd(self.start, stream=True),
            "Connect": self.envd(self.follow, stream=True),
            "List": self.envd(self.processes),
            "SendInput": self.envd(self.send_input),
            "CloseStdin": self.envd(self.close_stdin),
            "SendSignal": self.envd(self.send_signal),
        }
        return Starlette(
            routes=[
                route("/v2/sandboxes", self.control(self.create, of_sandbox=False)),
                route("/v2/sandboxes", self.control(self.list, of_sandbox=False), "GET"),
                route("/v2/sandboxes/{id}/connect", self.control(self.connect)),
                route("/sandboxes/{id}/connect", self.control(self.connect)),
                route("/sandboxes/{id}", self.control(self.get), "GET"),
                route("/sandboxes/{id}", self.control(self.delete), "DELETE"),
                route("/sandboxes/{id}/timeout", self.control(self.timeout)),
                route("/sandboxes/{id}/pause", self.control(self.pause)),
                route("/health", self.envd(self.health, secured=False), "GET"),
                route("/files", self.envd(self.write_file)),
                *(route(f"/process.Process/{name}", endpoint) for name, endpoint in of_process.items()),
            ]
        )

    # --- life ----------------------------------------------------------------------------------------------------

    @contextmanager
    def serving(self) -> Iterator[Double]:
        """Serve on loopback from a thread, so that a test that waits holds nothing up."""
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = uvicorn.Server(
            uvicorn.Config(self.app(), log_level="critical", lifespan="off", ws="none", timeout_graceful_shutdown=1)
        )

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await server.serve(sockets=[listener])
            running = [each.running for machine in self.machines.values() for each in machine.processes.values()]
            for machine in list(self.machines.values()):
                machine.kill()
            if running:
                await asyncio.wait(running, timeout=10)

        thread = threading.Thread(target=lambda: asyncio.run(serve()), name="e2b-double", daemon=True)
        thread.start()
        deadline = time.monotonic() + 20
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.started
        try:
            yield self
        finally:
            server.should_exit = server.force_exit = True
            thread.join(30)
            listener.close()


@asynccontextmanager
async def e2b_double(user: int = 1000) -> AsyncIterator[Double]:
    """A double of its own, whose sandboxes run processes as `user`."""
    require_e2b_double()
    with Double(user=user).serving() as double:
        yield double


def require_e2b_double() -> None:
    """Its sandboxes are namespaces of this machine."""
    missing = [name for name in ("unshare", "nsenter", "setpriv", "ip") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        unavailable("the double of E2B", f"its sandboxes need root, and {', '.join(missing) or 'namespaces'}")


def _error(code: int, message: str) -> Response:
    return JSONResponse({"code": code, "message": message}, code)


def _made(machine: Machine) -> dict[str, Any]:
    return {
        "templateID": machine.body["templateID"],
        "sandboxID": machine.sandbox_id,
        "clientID": "double",
        "envdVersion": VERSION,
        "envdAccessToken": machine.token,
        "domain": None,
    }


def _listed(machine: Machine) -> dict[str, Any]:
    def shown(at: float) -> str:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    return {
        "templateID": machine.body["templateID"],
        "sandboxID": machine.sandbox_id,
        "clientID": "double",
        "startedAt": shown(machine.started),
        "endAt": shown(machine.end),
        "cpuCount": 2,
        "memoryMB": 512,
        "diskSizeMB": 1024,
        "state": machine.state,
        "envdVersion": VERSION,
        "metadata": machine.body.get("metadata") or {},
    }
