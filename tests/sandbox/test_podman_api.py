"""How calls to Podman end: answers, refusals, silence, a service that is not there. On a service made of a table."""

from __future__ import annotations

import asyncio
import json
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock
from urllib.parse import parse_qs, urlsplit

import pytest

from milepost.domain.errors import SandboxUnavailable
from milepost.ports.sandbox import SandboxSpec
from milepost.sandboxes.podman import api as podman_api
from milepost.sandboxes.podman.api import PodmanApi, PodmanDown, PodmanError
from milepost.sandboxes.podman.calls import Calls
from milepost.sandboxes.podman.sandbox import PodmanSandbox

HANG = object()
DROP = object()
Answer = tuple[int, bytes] | object
DEADLINE = 60


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    body: bytes
    complete: bool


@dataclass
class Fake:
    """Answers by method and path below /v4.0.0/libpod; a list is answered in turn, its last entry for ever."""

    socket: str
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    seen: list[Request] = field(default_factory=list)
    cut: asyncio.Event = field(default_factory=asyncio.Event)

    def on(self, call: str, *answers: Answer) -> None:
        self.answers[call] = list(answers)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.cut.set()
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
        parts = urlsplit(target)
        path = parts.path.removeprefix("/v4.0.0/libpod")
        assert path != parts.path, f"another version of the API: {target}"
        request = Request(method, path, parse_qs(parts.query), b"", False)
        self.seen.append(request)
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readuntil(b"\r\n"), 16):
                request.body += (await reader.readexactly(size + 2))[:-2]
            await reader.readexactly(2)
        else:
            request.body = await reader.readexactly(int(headers.get("content-length", 0)))
        request.complete = True
        turns = self.answers[f"{method} {path}"]
        answer = turns.pop(0) if len(turns) > 1 else turns[0]
        if answer is HANG:
            await reader.read(1)
            return False
        if answer is DROP:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            await writer.drain()
            return False
        assert isinstance(answer, tuple)
        status, body = answer
        writer.write(f"HTTP/1.1 {status} Text\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        writer.write(b"" if method == "HEAD" else body)
        await writer.drain()
        return True


@asynccontextmanager
async def fake_at(socket: Path) -> AsyncIterator[Fake]:
    fake = Fake(str(socket))
    server = await asyncio.start_unix_server(fake.serve, str(socket))
    try:
        yield fake
    finally:
        server.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a Unix socket's address holds 108 bytes."""
    root = Path(tempfile.mkdtemp(prefix="mpa-"))
    yield root
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
async def fake(folder: Path) -> AsyncIterator[Fake]:
    async with fake_at(folder / "s") as found:
        yield found


@pytest.fixture
async def api(fake: Fake) -> AsyncIterator[PodmanApi]:
    found = PodmanApi(fake.socket)
    yield found
    await found.close()


# --- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"cause": "root", "message": "all of it", "response": 500}', "all of it"),
        (b'{"cause": "only a cause"}', "only a cause"),
        (b'{"message": "only a message"}', "only a message"),
        (b'["no object"]', '["no object"]'),
        (b'"text"', '"text"'),
        (b"<html>", "<html>"),
        (b"", ""),
    ],
)
@pytest.mark.parametrize("call", ["info", "containers", "container", "image", "start", "create"])
async def test_a_refusal_has_its_status_and_podmans_words(
    fake: Fake, api: PodmanApi, call: str, body: bytes, message: str
) -> None:
    calls: dict[str, tuple[str, Callable[[], Awaitable[object]]]] = {
        "info": ("GET /info", lambda: api.info()),
        "containers": ("GET /containers/json", lambda: api.containers({"a": "b"})),
        "container": ("GET /containers/c/json", lambda: api.container("c")),
        "image": ("GET /images/i/json", lambda: api.image("i")),
        "start": ("POST /containers/c/start", lambda: api.start("c")),
        "create": ("POST /containers/create", lambda: api.create({})),
    }
    path, ask = calls[call]
    fake.on(path, (500, body))
    with pytest.raises(PodmanError) as caught:
        await ask()
    assert (caught.value.status, str(caught.value)) == (500, message)


async def test_what_does_not_exist_is_none(fake: Fake, api: PodmanApi) -> None:
    fake.on("GET /containers/c/json", (404, b'{"message": "no such container"}'))
    fake.on("GET /images/localhost%2Fi%3A1/json", (404, b"{}"))
    assert await api.container("c") is None
    assert await api.image("localhost/i:1") is None
    assert await api.image("") is None


async def test_ends_that_are_not_needed_are_success(fake: Fake, api: PodmanApi) -> None:
    fake.on("POST /containers/c/kill", (409, b'{"message": "not running"}'))
    fake.on("DELETE /images/i", (409, b'{"message": "in use"}'))
    fake.on("POST /containers/c/start", (304, b""))
    await api.kill("c")
    await api.discard_image("i")
    await api.start("c")
    assert fake.seen[0].query == {"signal": ["KILL"]}


async def test_removal_is_tried_again_and_a_missing_container_is_removed(fake: Fake, api: PodmanApi) -> None:
    fake.on("DELETE /containers/c", (500, b'{"message": "busy"}'), (500, b"{}"), (200, b"[]"))
    fake.on("DELETE /containers/d", (404, b"{}"))
    await api.remove("c")
    await api.remove("d")
    assert [request.path for request in fake.seen] == ["/containers/c"] * 3 + ["/containers/d"]
    assert fake.seen[0].query["force"] == ["True"]


async def test_a_refused_exec_has_its_status(fake: Fake, api: PodmanApi) -> None:
    fake.on("POST /containers/c/exec", (201, b'{"Id": "e"}'))
    fake.on("POST /exec/e/start", (409, b"gone"))
    with pytest.raises(PodmanError) as caught:
        await api.exec("c", ["true"], {"A": "b"}, user="7:8")
    assert (caught.value.status, json.loads(fake.seen[0].body)["Env"]) == (409, ["A=b"])


BEING_REMOVED = (
    b'{"cause": "no such container", "message": "no container with ID c found in database: no such container"}'
)
"""What 5.4.2 says, with 500, of a container that was there when the call began."""


@pytest.mark.parametrize(("status", "body"), [(404, b"{}"), (409, b"{}"), (500, BEING_REMOVED)])
async def test_a_container_that_does_not_run_is_killed(fake: Fake, api: PodmanApi, status: int, body: bytes) -> None:
    fake.on("POST /containers/c/kill", (status, body))
    await api.kill("c")


async def test_a_container_that_is_being_removed_is_gone(fake: Fake, api: PodmanApi) -> None:
    for call in ("GET /containers/c/json", "DELETE /containers/c"):
        fake.on(call, (500, BEING_REMOVED))
    assert await api.container("c") is None
    await api.remove("c")
    assert len(fake.seen) == 2


def sandbox_of(api: PodmanApi) -> PodmanSandbox:
    service: Any = SimpleNamespace(api=AsyncMock(return_value=api))
    return PodmanSandbox(service, {"Id": "c", "State": {"StartedAt": "then"}}, SandboxSpec("s", "i", "/w"), (1, 2))


@pytest.mark.parametrize("answer", [(500, b'{"message": "no permission"}'), DROP, (204, b"")])
async def test_a_kill_that_nobody_confirms_is_an_error(
    fake: Fake, api: PodmanApi, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor is out of reach, and the container's kill is refused, breaks off, or changes nothing."""
    monkeypatch.setattr("milepost.sandboxes.client.KILL_SECONDS", 0.3)
    monkeypatch.setattr("milepost.sandboxes.podman.sandbox.DEATH_SECONDS", 0.3)
    fake.on("POST /containers/c/exec", (500, b"{}"))
    fake.on("GET /containers/c/json", (200, b'{"State": {"Running": true, "StartedAt": "then"}}'))
    fake.on("POST /containers/c/kill", answer)
    with pytest.raises(SandboxUnavailable, match="may still run") as caught:
        await sandbox_of(api).kill("e")
    assert "podman kill" in str(caught.value.fix)


async def test_a_kill_waits_until_the_container_is_dead(
    fake: Fake, api: PodmanApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milepost.sandboxes.client.KILL_SECONDS", 0.3)
    fake.on("POST /containers/c/exec", (500, b"{}"))
    fake.on("GET /containers/c/json", (200, b'{"State": {"Running": true, "StartedAt": "then"}}'))
    killed = asyncio.create_task(sandbox_of(api).kill("e"))
    fake.on("POST /containers/c/kill", (204, b""))
    async with asyncio.timeout(DEADLINE):
        while not any(request.path.endswith("/kill") for request in fake.seen):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert not killed.done()
        fake.answers["GET /containers/c/json"] = [(200, b'{"State": {"Running": false}}')]
        await killed


# --- what is asked ----------------------------------------------------------------------------------------------


async def test_the_list_asks_for_every_label_and_for_containers_that_do_not_run(fake: Fake, api: PodmanApi) -> None:
    fake.on("GET /containers/json", (200, b'[{"Id": "1", "State": "exited", "Labels": {"a": "x=y"}}]'))
    assert await api.containers({"a": "x=y", "c": "d"}) == [{"Id": "1", "State": "exited", "Labels": {"a": "x=y"}}]
    (request,) = fake.seen
    assert json.loads(request.query["filters"][0]) == {"label": ["a=x=y", "c=d"]}
    assert request.query["all"] == ["True"]


async def test_a_specification_arrives_as_it_is(fake: Fake, api: PodmanApi) -> None:
    """podman-py's own body loses what is empty: an entrypoint that must not be the image's, for one."""
    spec = {"entrypoint": [], "image": "", "privileged": False, "stop_timeout": 0, "idmappings": {"UIDMap": []}}
    fake.on("POST /containers/create", (201, b'{"Id": "new"}'))
    assert await api.create(spec) == "new"
    assert json.loads(fake.seen[0].body) == spec


async def test_last_words_are_the_end_of_both_streams(fake: Fake, api: PodmanApi) -> None:
    frames = b"".join(struct.pack(">BxxxI", kind, len(text)) + text for kind, text in ((1, b"out "), (2, b"err\xff\n")))
    fake.on("GET /containers/c/logs", (200, frames), (500, b"{}"), DROP)
    assert [await api.last_words("c") for _ in range(3)] == ["out err\ufffd", "", ""]
    assert fake.seen[0].query["tail"] == ["20"]


async def test_an_archive_is_sent_in_pieces(
    fake: Fake, api: PodmanApi, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(podman_api, "_STREAM_LIMIT", 4)
    (folder / "a.tar").write_bytes(b"0123456789")
    fake.on("POST /images/import", (200, b'{"Id": "sha256:abc"}'))
    assert await api.import_image("localhost/i:1", folder / "a.tar", ["LABEL a=b", "ENV C=d"]) == "abc"
    (request,) = fake.seen
    assert (request.body, request.complete) == (b"0123456789", True)
    assert request.query == {"reference": ["localhost/i:1"], "changes": ["LABEL a=b", "ENV C=d"]}


@pytest.mark.parametrize("name", ["with space", "q?x", "h#x", "p%41", "plus+", "ü"])
async def test_the_path_of_the_socket_may_have_any_character(folder: Path, name: str) -> None:
    async with fake_at(folder / name) as fake:
        fake.on("HEAD /_ping", (200, b"OK"))
        api = PodmanApi(fake.socket)
        assert await api.ping()
        await api.close()


async def test_broken_files_of_the_person_do_not_matter(
    fake: Fake, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "containers").mkdir()
    for name in ("containers.conf", "podman-connections.json"):
        (folder / "containers" / name).write_text("[broken")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    fake.on("HEAD /_ping", (200, b"OK"))
    api = PodmanApi(fake.socket)
    assert await api.ping()
    await api.close()


# --- silence ----------------------------------------------------------------------------------------------------


async def test_no_service_is_down(folder: Path) -> None:
    api = PodmanApi(str(folder / "none"))
    assert not await api.ping()
    with pytest.raises(PodmanDown, match=r"info: FileNotFoundError"):
        await api.info()
    with pytest.raises(PodmanDown):
        await api.kill("c")
    assert await api.last_words("c") == ""
    await api.close()


@pytest.mark.parametrize("answer", [DROP, (200, b"no json")])
async def test_half_an_answer_and_no_answer_are_down(fake: Fake, api: PodmanApi, answer: Answer) -> None:
    fake.on("GET /info", answer)
    with pytest.raises(PodmanDown):
        await api.info()


async def test_a_ping_that_is_refused_is_no_service(fake: Fake, api: PodmanApi) -> None:
    fake.on("HEAD /_ping", (500, b""), (200, b"OK"))
    assert [await api.ping(), await api.ping()] == [False, True]


async def test_a_service_that_hangs_is_down_and_is_used_again(
    fake: Fake, api: PodmanApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More calls than threads: the first ones end by their deadline and make room for the others."""
    fake.on("HEAD /_ping", HANG)
    assert not await api.ping(0.2)
    fake.on("GET /containers/c/json", *[HANG] * (podman_api.MAX_CALLS + 3), (200, b'{"Id": "c"}'))
    run = Calls.run
    monkeypatch.setattr(Calls, "run", lambda self, what, call, _: run(self, what, call, 0.3))
    calls = (api.container("c") for _ in range(podman_api.MAX_CALLS + 3))
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(error) for error in found} == {PodmanDown}
    monkeypatch.undo()
    assert await api.container("c") == {"Id": "c"}


async def test_a_busy_service_is_not_a_dead_one(fake: Fake, api: PodmanApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads wait, and a ping still gets through; a canceled call gives its caller back at once."""
    monkeypatch.setattr("milepost.sandboxes.podman.calls.SLOT_SECONDS", 1.0)
    fake.on("GET /info", HANG)
    fake.on("HEAD /_ping", (200, b"OK"))
    waiting = [asyncio.create_task(api.info()) for _ in range(podman_api.MAX_CALLS + 1)]
    async with asyncio.timeout(DEADLINE):
        while len(fake.seen) < podman_api.MAX_CALLS:
            await asyncio.sleep(0.01)
        assert await api.ping(20)
        assert len(fake.seen) == podman_api.MAX_CALLS + 1, "there is a ping beside as many calls as there are threads"
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_calls_that_never_end_are_an_error_for_the_next(
    fake: Fake, api: PodmanApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milepost.sandboxes.podman.calls.SLOT_SECONDS", 0.2)
    fake.on("GET /info", HANG)
    waiting = [asyncio.create_task(api.info()) for _ in range(podman_api.MAX_CALLS)]
    async with asyncio.timeout(DEADLINE):
        while len(fake.seen) < podman_api.MAX_CALLS:
            await asyncio.sleep(0.01)
        with pytest.raises(PodmanDown, match="earlier calls do not end"):
            await api.container("c")
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_canceled_import_is_broken_off(
    fake: Fake, api: PodmanApi, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service sees a body without an end, of which it makes no image."""
    monkeypatch.setattr(podman_api, "_STREAM_LIMIT", 1)
    (folder / "a.tar").write_bytes(bytes(20_000_000))
    task = asyncio.create_task(api.import_image("localhost/i:1", folder / "a.tar", []))
    async with asyncio.timeout(DEADLINE):
        while not fake.seen or not fake.seen[0].body:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await fake.cut.wait()
    assert not fake.seen[0].complete


async def test_a_call_that_hangs_does_not_keep_the_process(fake: Fake) -> None:
    """The start of a container may take a minute; the process that waits for it ends at once when it is told to."""
    fake.on("POST /containers/c/start", HANG)
    program = f"""
import asyncio
from milepost.sandboxes.podman.api import PodmanApi

async def main():
    api = PodmanApi({fake.socket!r})
    task = asyncio.create_task(api.start("c"))
    await asyncio.to_thread(input)
    task.cancel()
    await api.close()

asyncio.run(main())
print("ended")
"""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdin=pipe, stdout=pipe)
    try:
        async with asyncio.timeout(DEADLINE):
            while not fake.seen:
                await asyncio.sleep(0.01)
        # Less than the call's own deadline, so that only an exit that does not wait for it passes.
        async with asyncio.timeout(45):
            out, _ = await process.communicate(b"\n")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, out) == (0, b"ended\n")


def test_commands_without_a_sandbox_do_not_load_podman_py() -> None:
    program = (
        "import sys, cli.main, milepost.sandboxes.podman.provider\n"
        "print(sorted({'podman', 'requests', 'urllib3'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert done.stdout == "[]\n"
