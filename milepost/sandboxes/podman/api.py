"""The part of Podman's REST API that is needed, and the raw stream of an exec session.

Not podman-py: it blocks, cannot send to an exec session, loses exit codes and silently ignores several options.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

PREFIX = "/v4.0.0/libpod"
CALL_SECONDS = 30.0
_FRAME = struct.Struct(">BxxxI")
_STDERR = 2
_STREAM_LIMIT = 1024 * 1024


class PodmanDown(Exception):
    """The service does not answer."""


class PodmanError(Exception):
    """The service refused a call; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class PodmanApi:
    """Calls to the service behind `socket`; every call is bounded in time."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        transport = httpx.AsyncHTTPTransport(uds=socket, retries=1)
        self._http = httpx.AsyncClient(transport=transport, base_url=f"http://podman{PREFIX}", timeout=CALL_SECONDS)

    async def close(self) -> None:
        await self._http.aclose()

    async def call(
        self,
        method: str,
        path: str,
        *,
        json_body: Any = None,
        content: AsyncIterator[bytes] | None = None,
        params: dict[str, str | list[str]] | None = None,
        seconds: float = CALL_SECONDS,
    ) -> Any:
        """The decoded answer, or None for an empty one. Raises PodmanDown, PodmanError."""
        headers = {"Content-Type": "application/x-tar"} if content is not None else None
        try:
            async with asyncio.timeout(seconds):
                response = await self._http.request(
                    method, path, json=json_body, content=content, params=params, headers=headers, timeout=seconds
                )
        except (httpx.TransportError, OSError, TimeoutError) as error:
            raise PodmanDown(f"{method} {path}: {type(error).__name__} {error}".strip()) from None
        if response.status_code >= 400:
            raise PodmanError(response.status_code, _message(response))
        try:
            return response.json() if response.content else None
        except ValueError:
            return response.text

    async def ping(self, seconds: float = 2.0) -> bool:
        try:
            await self.call("GET", "/_ping", seconds=seconds)
        except (PodmanDown, PodmanError):
            return False
        return True

    async def info(self) -> dict[str, Any]:
        found = await self.call("GET", "/info")
        return dict(found)

    async def image(self, name: str) -> dict[str, Any] | None:
        """What is known of a local image, or None."""
        return await self._found("GET", f"/images/{name}/json")

    async def import_image(self, tag: str, archive: Path, changes: list[str]) -> str:
        """Import a tar file as an image of one layer; returns its id."""
        params: dict[str, str | list[str]] = {"reference": tag, "changes": changes}
        found = await self.call("POST", "/images/import", content=_pieces(archive), params=params, seconds=300)
        return str(found["Id"]).removeprefix("sha256:")

    async def discard_image(self, image_id: str) -> None:
        """Remove an image; one that a container uses, or that does not exist, is left as it is."""
        with contextlib.suppress(PodmanError):
            await self.call("DELETE", f"/images/{image_id}")

    async def container(self, name: str) -> dict[str, Any] | None:
        return await self._found("GET", f"/containers/{name}/json")

    async def _found(self, method: str, path: str) -> dict[str, Any] | None:
        try:
            found = await self.call(method, path)
        except PodmanError as error:
            if error.status == 404:
                return None
            raise
        return dict(found)

    async def containers(self, labels: dict[str, str]) -> list[dict[str, Any]]:
        """All containers that carry every one of `labels`, running or not."""
        filters = json.dumps({"label": [f"{key}={value}" for key, value in labels.items()]})
        found = await self.call("GET", "/containers/json", params={"all": "true", "filters": filters})
        return list(found or [])

    async def create(self, spec: dict[str, Any]) -> str:
        created = await self.call("POST", "/containers/create", json_body=spec, seconds=120)
        return str(created["Id"])

    async def start(self, name: str) -> None:
        await self.call("POST", f"/containers/{name}/start", seconds=60)

    async def kill(self, name: str) -> None:
        """End the container's processes at once; a container that does not run or exist is success."""
        with contextlib.suppress(PodmanError):
            await self.call("POST", f"/containers/{name}/kill", params={"signal": "KILL"})

    async def last_words(self, name: str) -> str:
        """The end of what the container's first process wrote, or nothing."""
        params: dict[str, str | list[str]] = {"stdout": "true", "stderr": "true", "tail": "20"}
        try:
            response = await self._http.get(f"/containers/{name}/logs", params=params, timeout=5.0)
        except httpx.TransportError:
            return ""
        if response.status_code >= 400:
            return ""
        text, data = [], response.content
        while len(data) >= _FRAME.size:
            size = _FRAME.unpack_from(data)[1]
            text.append(data[_FRAME.size : _FRAME.size + size].decode(errors="replace"))
            data = data[_FRAME.size + size :]
        return "".join(text)[-1500:].strip()

    async def remove(self, name: str) -> None:
        """Kill and remove. A removal can fail while an exec session ends, so it is tried again for a while."""
        for attempt in range(8):
            try:
                await self.call("DELETE", f"/containers/{name}", params={"force": "true", "v": "true", "timeout": "0"})
            except PodmanError as error:
                if error.status == 404:
                    return
                if attempt == 7:
                    raise
                await asyncio.sleep(0.1 * 2**attempt)
            else:
                return

    async def exec(self, name: str, command: list[str], environment: dict[str, str]) -> ExecLink:
        """Start a process in the container with its standard input and output as a stream."""
        spec = {
            "Cmd": command,
            "Env": [f"{key}={value}" for key, value in environment.items()],
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": False,
        }
        created = await self.call("POST", f"/containers/{name}/exec", json_body=spec)
        body = json.dumps({"Detach": False, "Tty": False}).encode()
        head = (
            f"POST {PREFIX}/exec/{created['Id']}/start HTTP/1.1\r\nHost: podman\r\nConnection: Upgrade\r\n"
            f"Upgrade: tcp\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            async with asyncio.timeout(CALL_SECONDS):
                reader, writer = await asyncio.open_unix_connection(self.socket, limit=_STREAM_LIMIT)
                try:
                    writer.write(head.encode() + body)
                    await writer.drain()
                    status = int((await reader.readuntil(b"\r\n\r\n")).split()[1])
                    if status not in (101, 200):
                        text = (await reader.read(4096)).decode(errors="replace")
                        raise PodmanError(status, text)
                except BaseException:
                    writer.close()
                    raise
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise PodmanDown(f"exec: {type(error).__name__} {error}".strip()) from None
        return ExecLink(reader, writer)


class ExecLink:
    """Standard input and output of a process in a container. Closing it does not end the process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.errors = b""

    async def receive(self) -> bytes:
        """The next piece of standard output; empty at the end. The first 4 KiB of standard error are kept."""
        while True:
            try:
                stream, size = _FRAME.unpack(await self._reader.readexactly(_FRAME.size))
                data = await self._reader.readexactly(size)
            except asyncio.IncompleteReadError:
                return b""
            if stream != _STDERR:
                return data
            self.errors = (self.errors + data)[:4096]

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(2):
                await self._writer.wait_closed()


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(path.open, "rb")
    try:
        while piece := await asyncio.to_thread(file.read, _STREAM_LIMIT):
            yield piece
    finally:
        file.close()


def _message(response: httpx.Response) -> str:
    """Podman's own words, without the Go wrapper."""
    try:
        body = response.json()
        return str(body.get("message") or body.get("cause") or response.text)
    except (ValueError, AttributeError):
        return response.text[:2000]
