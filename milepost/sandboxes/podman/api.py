"""The part of Podman's API that is needed: podman-py where it serves, its low level or a raw stream where not.

See docs/adr/006-podman-py.md. Nothing here blocks the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import tarfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from milepost.sandboxes.podman.calls import API_VERSION, Calls, Client, PodmanDown, PodmanError

if TYPE_CHECKING:
    from podman.domain.containers import Container

CALL_SECONDS = 30.0
MAX_CALLS = 16
MAX_PINGS = 2
_FRAME = struct.Struct(">BxxxI")
_STDERR = 2
_STREAM_LIMIT = 1024 * 1024

T = TypeVar("T")


class PodmanApi:
    """Calls to the service behind `socket`; every call is bounded in time. All raise PodmanDown and PodmanError."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self._calls = Calls(socket, MAX_CALLS)
        # Apart, so that a busy service is not taken for a dead one because its ping waits behind slow calls.
        self._pings = Calls(socket, MAX_PINGS)

    async def close(self) -> None:
        """Drop the connections. A call that hangs is left to its thread, which keeps nothing from ending."""
        self._calls.close()
        self._pings.close()

    async def ping(self, seconds: float = 2.0) -> bool:
        try:
            return await self._pings.run("ping", lambda client: client.system.ping(), seconds)
        except (PodmanDown, PodmanError):
            return False

    async def info(self) -> dict[str, Any]:
        found = await self._run("info", lambda client: client.system.info())
        return dict(found)

    # --- images -------------------------------------------------------------------------------------------------

    async def image(self, name: str) -> dict[str, Any] | None:
        """What is known of a local image, or None."""
        if not name:
            # podman-py would ask for the list of all images.
            return None
        return await _found(self._run(f"image {name}", lambda client: client.images.get(name).attrs))

    async def import_image(self, tag: str, archive: Path, changes: list[str]) -> str:
        """Import a tar file as an image of one layer; returns its id."""
        stop = threading.Event()
        params = {"reference": tag, "changes": changes}
        headers = {"Content-Type": "application/x-tar"}

        def call(client: Client) -> Any:
            body: Any = _pieces(archive, stop)  # podman-py's annotation has no iterator of bytes, requests has
            return client.api.post("/images/import", data=body, params=params, headers=headers).json()

        try:
            found = await self._run(f"import {tag}", call, 300)
        finally:
            stop.set()
        return str(found["Id"]).removeprefix("sha256:")

    async def discard_image(self, image_id: str) -> None:
        """Remove an image; one that a container uses, or that does not exist, is left as it is."""
        with contextlib.suppress(PodmanError):
            await self._run(f"remove image {image_id}", lambda client: client.images.remove(image_id))

    # --- containers ---------------------------------------------------------------------------------------------

    async def container(self, name: str) -> dict[str, Any] | None:
        return await _found(self._run(f"container {name}", lambda client: client.containers.get(name).attrs))

    async def containers(self, labels: dict[str, str]) -> list[dict[str, Any]]:
        """All containers that carry every one of `labels`, running or not."""
        # A list: podman-py makes text of a mapping's lists, which matches nothing without a word.
        filters = [f"label={key}={value}" for key, value in labels.items()]
        found = await self._run(
            "containers", lambda client: client.containers.list(all=True, sparse=True, filters=filters)
        )
        return [dict(item.attrs) for item in found]

    async def volumes(self, labels: dict[str, str]) -> list[dict[str, Any]]:
        """All named volumes that carry every one of `labels`."""
        filters = [f"label={key}={value}" for key, value in labels.items()]
        found = await self._run("volumes", lambda client: client.volumes.list(filters=filters))
        return [dict(item.attrs) for item in found]

    async def make_volume(self, name: str, labels: dict[str, str]) -> None:
        """Make a named volume; one that exists stays as it is."""
        try:
            await self._run(f"volume {name}", lambda client: client.volumes.create(name=name, labels=labels))
        except PodmanError as error:
            if "already exists" not in str(error):
                raise

    async def remove_volume(self, name: str) -> None:
        """Remove a named volume; one that does not exist is success."""
        try:
            await self._run(f"remove volume {name}", lambda client: client.volumes.remove(name, force=True))
        except PodmanError as error:
            if error.status != 404:
                raise

    async def signal(self, name: str, number: str) -> None:
        """Send a signal to the container's first process."""
        await self._run(f"signal {name}", lambda client: _handle(client, name).kill(number))

    async def export(self, name: str, target: Path, first_id: int) -> None:
        """Write a container's file system as a tar file whose owners are ids of the container, not of the host.

        Podman's own commit and export keep the host's ids, from `first_id` on, of a container in a user namespace.
        """

        def call(client: Client) -> None:
            response = client.api.get(f"/containers/{name}/export", stream=True)
            with tarfile.open(fileobj=response.raw, mode="r|") as source, tarfile.open(target, "w") as copy:
                for member in source:
                    member.uid, member.gid = (max(0, each - first_id) for each in (member.uid, member.gid))
                    # A large id stands in an extended header as well, which would win.
                    kept = {key: value for key, value in member.pax_headers.items() if key not in ("uid", "gid")}
                    member.pax_headers = kept
                    copy.addfile(member, source.extractfile(member) if member.isreg() else None)

        await self._run(f"export {name}", call, 900)

    async def create(self, spec: dict[str, Any]) -> str:
        """Make a container of a specification in the form of the REST API; returns its id."""
        return str((await self._post("/containers/create", spec, 120))["Id"])

    async def start(self, name: str) -> None:
        await self._run(f"start {name}", lambda client: _handle(client, name).start(), 60)

    async def kill(self, name: str) -> None:
        """End the container's processes at once; a container that does not run or exist is success."""
        try:
            await self._run(f"kill {name}", lambda client: _handle(client, name).kill("KILL"))
        except PodmanError as error:
            if not error.missing and error.status != 409:
                raise

    async def last_words(self, name: str) -> str:
        """The end of what the container's first process wrote, or nothing."""

        def call(client: Client) -> bytes:
            pieces = _handle(client, name).logs(tail=20)
            return pieces if isinstance(pieces, bytes) else b"".join(pieces)

        try:
            words = await self._run(f"logs {name}", call, 5)
        except (PodmanDown, PodmanError):
            return ""
        return words.decode(errors="replace")[-1500:].strip()

    async def remove(self, name: str) -> None:
        """Kill and remove. A removal can fail while an exec session ends, so it is tried again for a while."""
        for attempt in range(8):
            try:
                # "Kill" by the specification: its stop signal is SIGKILL. podman-py cannot send a timeout.
                await self._run(f"remove {name}", lambda client: client.containers.remove(name, force=True, v=True))
            except PodmanError as error:
                if error.missing:
                    return
                if attempt == 7:
                    raise
                await asyncio.sleep(0.1 * 2**attempt)
            else:
                return

    async def exec(self, name: str, command: list[str], environment: dict[str, str], *, user: str) -> ExecLink:
        """Start a process of `user` (UID:GID inside) in the container; its standard input and output are the stream."""
        spec = {
            "Cmd": command,
            "Env": [f"{key}={value}" for key, value in environment.items()],
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": False,
            "User": user,
        }
        created = await self._post(f"/containers/{name}/exec", spec)
        body = json.dumps({"Detach": False, "Tty": False}).encode()
        path = f"/v{API_VERSION}/libpod/exec/{created['Id']}/start"
        head = (
            f"POST {path} HTTP/1.1\r\nHost: podman\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
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

    # --- steps --------------------------------------------------------------------------------------------------

    async def _run(self, what: str, call: Callable[[Client], T], seconds: float = CALL_SECONDS) -> T:
        return await self._calls.run(what, call, seconds)

    async def _post(self, path: str, body: dict[str, Any], seconds: float = CALL_SECONDS) -> dict[str, Any]:
        """For what podman-py's own calls cannot express."""
        data, headers = json.dumps(body), {"Content-Type": "application/json"}
        found = await self._run(
            f"POST {path}", lambda client: client.api.post(path, data=data, headers=headers).json(), seconds
        )
        return dict(found)


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

    async def finish(self) -> None:
        """End standard input; doing it again is fine."""
        if self._writer.can_write_eof() and not self._writer.is_closing():
            self._writer.write_eof()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(2):
                await self._writer.wait_closed()


async def _found(call: Awaitable[dict[str, Any]]) -> dict[str, Any] | None:
    try:
        return dict(await call)
    except PodmanError as error:
        if error.missing:
            return None
        raise


def _handle(client: Client, name: str) -> Container:
    """podman-py's container without the inspection that `get` costs."""
    return client.containers.prepare_model({"Id": name})


def _pieces(path: Path, stop: threading.Event) -> Iterator[bytes]:
    """A file from its start. `stop` breaks the upload off: the service then imports nothing."""
    with path.open("rb") as file:
        while piece := file.read(_STREAM_LIMIT):
            if stop.is_set():
                raise PodmanDown("the import was given up")
            yield piece


__all__ = ["ExecLink", "PodmanApi", "PodmanDown", "PodmanError"]
