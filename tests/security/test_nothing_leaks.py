"""A whole instance works with canaries for secrets; then everything it left or said is searched for them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from milepost.temporal.client import TemporalAddress, connect
from tests.cli.conftest import SECONDS, Milepost, running
from tests.security.canaries import canary, leaks
from tests.security.dumps import files, histories, postgres_rows, unpacked
from tests.security.instances import Instance
from tests.support.embedding_server import EmbeddingServer, Fault
from tests.support.openai_server import OpenAIServer, Reply
from tests.support.peer import Peer, Request

pytestmark = pytest.mark.slow

CONFIGURATION = """
providers:
  echo:
    type: openai_compatible
    base_url: {base_url}
    model: fake-small
    api_key: env:ECHO_KEY
    headers: {{X-Team-Token: "file:secrets/header", X-Public: told-to-everybody}}
  keyless: {{type: openai_compatible, base_url: {base_url}, model: fake-small, api_key: "env:NO_SUCH_KEY"}}
  vectors:
    type: openai_compatible
    base_url: {vectors_url}/v1
    api_key: env:VECTORS_KEY
    headers: {{X-Team-Token: "file:secrets/vectors"}}
  tape: {{type: recorded, cassette: tape.jsonl, source: echo, mode: record, model: fake-small}}
tools:
  lookup: &peer
    type: http
    description: Looks something up.
    parameters: {{type: object, properties: {{title: {{type: string}}}}, required: [title]}}
    url: {peer_url}/lookup
    headers: {{Authorization: "env:TOOL_KEY", X-More: "file:secrets/tool"}}
  refusing: {{<<: *peer, url: "{peer_url}/refusing", approval: allow}}
hooks:
  guard: &hook
    type: http
    when: before
    url: {peer_url}/guard
    headers: {{Authorization: "env:HOOK_KEY"}}
  failing: {{<<: *hook, url: "{peer_url}/failing", on_failure: allow}}
  scrub: {{<<: *hook, when: after, url: "{peer_url}/scrub", tools: [lookup], keep_original: true}}
embeddings:
  default: far
  embedders: {{far: {{type: provider, provider: vectors, model: own-model, dimensions: 32}}}}
agents: {{default: {{provider: echo, tools: [lookup, refusing]}}}}
sandbox: {{backend: none}}
temporal: {{port: 0, ui_port: 0}}
api: {{port: 0}}
logging: {{level: DEBUG, format: json}}
"""

COMMANDS = (
    ["config", "show"],
    ["config", "show", "--json"],
    ["config", "validate"],
    ["backup", "{backup}"],
    ["doctor"],
    ["doctor", "--json"],
    ["session", "list", "--json"],
    ["approvals", "list", "--json"],
    ["policies", "list", "--json"],
    ["search", "Authorization", "--json"],
    ["search", "hidden", "--literal"],
    ["verify"],
    ["url", "--json"],
    ["run", "Go", "--provider", "keyless", "--json"],
    ["run", "Go", "--provider", "echo", "--model", "refused"],
)


@dataclass
class Watched:
    """An instance with canaries, and all that was collected of it."""

    milepost: Milepost
    server: OpenAIServer
    peer: Peer
    vectors: EmbeddingServer
    canaries: dict[str, str]
    collected: dict[str, bytes] = field(default_factory=dict)
    database: str | None = None

    def use_postgres(self, url: str) -> None:
        self.database = url
        section = f"database: {{url: '{url}', password: 'env:LEDGER_PASSWORD'}}\n"
        with (self.milepost.folder / "milepost.yaml").open("a") as file:
            file.write(section)

    def keep(self, place: str, value: object) -> None:
        self.collected[place] = value if isinstance(value, bytes) else json.dumps(value).encode()


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer() as peer:
        yield peer


@pytest.fixture
def vectors() -> Iterator[EmbeddingServer]:
    with EmbeddingServer() as server:
        yield server


@pytest.fixture
def watched(milepost: Milepost, model_server: OpenAIServer, peer: Peer, vectors: EmbeddingServer) -> Watched:
    canaries = {
        "provider key": canary("key"),
        "secret header": canary("header"),
        "tool's key": canary("tool"),
        "tool's second header": canary("more"),
        "hook's key": canary("hook"),
        "embedder's key": canary("vectors"),
        "embedder's header": canary("dimension"),
        "host environment": canary("host"),
        "database password": canary("password"),
    }
    (milepost.folder / "secrets").mkdir()
    (milepost.folder / "secrets" / "header").write_text(canaries["secret header"] + "\n")
    (milepost.folder / "secrets" / "tool").write_text(canaries["tool's second header"] + "\n")
    (milepost.folder / "secrets" / "vectors").write_text(canaries["embedder's header"] + "\n")
    urls = {"base_url": model_server.base_url, "peer_url": peer.url, "vectors_url": vectors.base_url}
    milepost.configure(CONFIGURATION.format(**urls))
    milepost.environment = {
        "ECHO_KEY": canaries["provider key"],
        "TOOL_KEY": canaries["tool's key"],
        "HOOK_KEY": canaries["hook's key"],
        "VECTORS_KEY": canaries["embedder's key"],
        "SOME_TOKEN": canaries["host environment"],
        "LEDGER_PASSWORD": canaries["database password"],
    }
    peer.respond = _echoing
    own = [canaries[name] for name in ("embedder's key", "embedder's header")]
    said = {"error": {"message": f"Incorrect API key provided: {own}"}}
    vectors.faults.extend(Fault(status, said, {"X-Echo": canaries["embedder's key"]}) for status in (500, 401))
    return Watched(milepost, model_server, peer, vectors, canaries)


def _echoing(request: Request) -> tuple[int, bytes]:
    """Tools and hooks that send back what they were sent, in all they can say."""
    sent = request.headers
    echo = f"Authorization: {sent['authorization']}; {sent.get('x-more')}; "
    echo += f"{base64.b64encode(echo.encode()).decode()} {json.dumps(sent)}"
    decision: dict[str, Any] = {"decision": "rewrite", "reason": echo}
    match request.path:
        case "/lookup":
            # More than an event holds: the whole of it goes to the blobs.
            return 200, f"{echo} {'and so on ' * 40_000} {echo}".encode()
        case "/guard":
            # The key of an object is a text as well.
            return 200, json.dumps({**decision, "arguments": {"title": echo, echo: [echo]}}).encode()
        case "/scrub":
            return 200, json.dumps({**decision, "output": f"{request.json['output']} {echo}"}).encode()
        case _:
            return 500, echo.encode()


@contextlib.contextmanager
def _running(watched: Watched) -> Iterator[Instance]:
    """An instance, whose output is collected when it has ended."""
    with running(watched.milepost, "dev") as process, ThreadPoolExecutor(2) as readers:
        assert process.stdout is not None and process.stderr is not None
        # Read all the time: it logs everything, and a full pipe would stop it.
        said = [readers.submit(stream.read) for stream in (process.stdout, process.stderr)]
        try:
            with Instance(watched.milepost) as client:
                watched.canaries["API token"] = client.token
                watched.collected.update(_environments(process.pid))
                yield client
                watched.keep("HTTP answers", b"\n".join(client.heard))
        finally:
            process.send_signal(signal.SIGTERM)
            for name, stream in zip(("standard output", "log"), said, strict=True):
                watched.keep(name, stream.result(SECONDS).encode())


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def test_no_secret_is_anywhere(database: str, watched: Watched, request: pytest.FixtureRequest) -> None:
    if database == "postgresql":
        watched.use_postgres(str(request.getfixturevalue("empty_postgres_url")))
    with _running(watched) as instance:
        session = instance.open(watched.milepost.folder)
        _work(instance, watched, session)
        _call_peers(instance, watched, session)
        _read_back(instance, watched, session)
        _remember(instance, watched, session)
        _provoke(instance, session)
        if database == "sqlite":
            _run_commands(watched, session)
        watched.keep("history", instance.history(session))
        address = TemporalAddress(instance.info["temporal_target"], instance.get("/instance")["temporal_namespace"])
        watched.collected.update(asyncio.run(_histories(address)))
    watched.collected.update(files(watched.milepost.home, without=frozenset({"api.token"})))
    watched.collected.update(files(watched.milepost.folder, without=frozenset({"header", "tool", "vectors"})))
    if watched.database is not None:
        watched.collected.update(postgres_rows(watched.database))
    home = watched.milepost.home
    watched.collected.update(unpacked(watched.database or f"sqlite:///{home / 'milepost.db'}", home / "blobs"))
    _look_around(watched)
    found = leaks(watched.collected, watched.canaries)
    assert not found, "\n".join(found)


DATABASE = 'database: {url: "postgresql://somebody@127.0.0.1:1/ledger", password: "env:LEDGER_PASSWORD"}\n'
CLUSTER = 'temporal: {address: "127.0.0.1:1", api_key: "env:CLUSTER_KEY"}\n'
PAYLOADS = 'temporal: {encryption: {keys: {one: "env:PAYLOAD_KEY"}, current: one}}\n'
UNREACHABLE = """
providers:
  far: {type: openai_compatible, base_url: "http://127.0.0.1:1/v1", model: m, api_key: "env:FAR_KEY"}
agents: {default: {provider: far}}
sandbox: {backend: none}
api: {port: 0}
logging: {level: DEBUG}
"""


REFUSED = (
    (DATABASE + CLUSTER, "dev", "does not answer (ConnectionRefusedError)"),
    (DATABASE + CLUSTER, "worker", "does not answer (ConnectionRefusedError)"),
    (DATABASE + CLUSTER, "doctor", "127.0.0.1:1"),
    (CLUSTER, "run Go", "Temporal does not answer at 127.0.0.1:1"),
    (PAYLOADS, "run Go", "The secret of the encryption key 'one' is not 32 bytes"),
)


def test_what_cannot_be_reached_tells_no_secret(tmp_path: Path) -> None:
    names = ("LEDGER_PASSWORD", "CLUSTER_KEY", "PAYLOAD_KEY", "FAR_KEY")
    canaries = {name: canary(name.lower()) for name in names}
    started = []
    for number, (section, command, _) in enumerate(REFUSED):
        folder = tmp_path / f"project-{number}"
        folder.mkdir()
        made = Milepost(tmp_path / f"home-{number}", folder, dict(canaries))
        made.configure(UNREACHABLE + section)
        started.append((made, made.start(*command.split())))
    collected = {}
    for (made, process), (_, command, said) in zip(started, REFUSED, strict=True):
        done = made.finish(process)
        assert done.code and said in done.out + done.err, (command, done)
        collected[f"{made.folder.name} {command}"] = (done.out + done.err).encode()
    assert leaks(collected | files(tmp_path, without=frozenset({"api.token"})), canaries) == []


def _work(instance: Instance, watched: Watched, session: str) -> None:
    """Turns that succeed, fail, are retried and stopped, while the provider echoes what it was sent."""
    key, header = watched.canaries["provider key"], watched.canaries["secret header"]
    echo = f"Your key is {key} and your header {header}."
    leak = Reply(status=500, body=f"Bad header: {header}; {key}", headers={"X-Echo": key, "X-More": header})
    refused = Reply(status=401, body=json.dumps({"error": {"message": f"Incorrect API key provided: {key}"}}))
    answer = Reply(text=echo, reasoning=echo, piece=5, delay=0.01, headers={"X-Echo": key})
    calls = [{"name": "bash", "id": key, "arguments": json.dumps({"command": f"curl -H '{header}' {key}"})}]
    half = Reply(text=echo, piece=len(echo) // 3, fault="rst", fault_after=2)

    assert _turn(instance, watched, session, "answered", answer)["state"] == "completed"
    assert _turn(instance, watched, session, "called", Reply(calls=calls), Reply(text=echo))["state"] == "completed"
    assert _turn(instance, watched, session, "retried", leak, Reply(text=echo))["state"] == "completed"
    assert _turn(instance, watched, session, "refused", refused)["error"]["code"] == "model_unauthorized"
    assert _turn(instance, watched, session, "broken off", half, refused)["state"] == "failed"
    assert _stopped(instance, watched, session, echo)["state"] == "stopped"
    taped = _turn(instance, watched, session, "recorded", Reply(text=echo, reasoning=echo), provider="tape")
    assert taped["state"] == "completed"
    assert all(chat.headers["authorization"] == f"Bearer {key}" for chat in watched.server.chats)
    assert all(chat.headers["x-team-token"] == header for chat in watched.server.chats)


def _call_peers(instance: Instance, watched: Watched, session: str) -> None:
    """Calls of tools of the user's own, one of them approved by a person, with hooks around them."""
    calls = [{"name": name, "id": name, "arguments": '{"title": "Leak"}'} for name in ("lookup", "refusing")]
    watched.server.plan(Reply(calls=calls), Reply(text="I have seen it."))
    turn = instance.begin(session, "Ask the peers")
    instance.until(turn, lambda turn: turn["status"] == "waiting_for_person")
    (asked,) = instance.get("/approvals", session_id=session, state="pending")["approvals"]
    assert "[hidden]" in asked["arguments"], "the hook's echo is what a person is asked about"
    instance.post(f"/approvals/{asked['approval_id']}/approve", {"remember": "agent_tool"})
    _keep_stream(watched, "peers", instance.follow(session, turn))
    assert instance.ended(turn)["state"] == "completed"
    key, more = watched.canaries["tool's key"], watched.canaries["tool's second header"]
    asked_of = {request.path: request.headers for request in watched.peer.requests}
    assert set(asked_of) == {"/guard", "/failing", "/lookup", "/scrub", "/refusing"}
    assert (asked_of["/lookup"]["authorization"], asked_of["/refusing"]["x-more"]) == (key, more)
    assert asked_of["/scrub"]["authorization"] == watched.canaries["hook's key"]


def _read_back(instance: Instance, watched: Watched, session: str) -> None:
    """All that gives back what was recorded: exports, search, results, usage, and an import of the lossless export."""
    for form in ("json", "md", "html"):
        exported = instance.call("GET", f"/api/v1/sessions/{session}/export", params={"format": form})
        assert exported.is_success
        watched.keep(f"export {form}", exported.content)
    watched.keep("search", [instance.get("/search", q=words) for words in ("Authorization", "hidden", "Leak")])
    effects = instance.get(f"/sessions/{session}/effects", limit=100)["effects"]
    for effect in effects:
        instance.call("GET", f"/api/v1/effects/{effect['effect_id']}/output")
        instance.call("GET", f"/api/v1/effects/{effect['effect_id']}/text")
    instance.get(f"/sessions/{session}/usage")
    copied = instance.post(f"/sessions/{session}/fork", {})
    watched.keep("history of the fork", instance.history(copied["session"]["session_id"]))


def _remember(instance: Instance, watched: Watched, session: str) -> None:
    """Memory of all that was said: written, embedded far away by a service that echoes at first, and recalled."""

    def written() -> bool:
        scopes = instance.get(f"/sessions/{session}/memory")
        watched.keep("memory", scopes)
        return len(watched.vectors.asked) >= 4

    watched.server.wait(written, SECONDS)
    of = f"/sessions/{session}/memory/default"
    watched.keep("recall", instance.post(f"{of}/recall", {"query": "Your key is", "k": 20}))
    watched.keep("records", instance.get(f"{of}/records"))
    watched.keep("memory log", instance.get(f"{of}/log"))
    watched.keep("memory export", instance.call("GET", f"/api/v1{of}/export").content)
    assert _turn(instance, watched, session, "reminded", Reply(text="I remember."))["state"] == "completed"
    key = watched.canaries["embedder's key"]
    assert all(asked.headers["authorization"] == f"Bearer {key}" for asked in watched.vectors.asked)
    watched.keep("texts that were embedded", [asked.body for asked in watched.vectors.asked])
    watched.keep("last request of the model", watched.server.chats[-1].body)


def _turn(instance: Instance, watched: Watched, session: str, name: str, *replies: Reply, **options: Any) -> Any:
    """A turn against these replies, followed live; its deltas are collected as the text a reader puts together."""
    watched.server.plan(*replies)
    turn = instance.begin(session, f"Do what is to be {name}", **options)
    _keep_stream(watched, name, instance.follow(session, turn))
    return instance.ended(turn)


def _stopped(instance: Instance, watched: Watched, session: str, echo: str) -> Any:
    """A turn that is stopped in the middle of a secret."""
    watched.server.plan(Reply(text=echo, piece=9, fault="stall", fault_after=5))
    turn = instance.begin(session, "Do what is to be stopped")
    with ThreadPoolExecutor(1) as reader:
        frames = reader.submit(instance.follow, session, turn)
        asked = len(watched.server.chats)
        watched.server.wait(lambda: watched.server.chats[-1].events_sent >= 5 and asked, SECONDS)
        time.sleep(0.2)
        instance.post(f"/turns/{turn}/stop", {"reason": "enough"})
        _keep_stream(watched, "stopped", frames.result(SECONDS))
    return instance.ended(turn)


def _keep_stream(watched: Watched, name: str, frames: list[Any]) -> None:
    watched.keep(f"frames of {name}", frames)
    texts: dict[str, str] = {}
    for frame in frames:
        if frame["type"] == "delta":
            channel = frame["data"]["channel"]
            texts[channel] = texts.get(channel, "") + frame["data"]["text"]
    for channel, text in texts.items():
        watched.keep(f"{channel} of {name}", text.encode())


def _provoke(instance: Instance, session: str) -> None:
    """Answers that say no."""
    turns = f"/api/v1/sessions/{session}/turns"
    for method, path, more in (
        ("GET", "/api/v1/doctor", {}),
        ("GET", "/health/ready", {}),
        ("GET", "/api/v1/turns/trn_none", {}),
        ("POST", turns, {"json": {"text": "Go", "provider": "keyless"}}),
        ("POST", turns, {"json": {"text": "Go", "provider": "nobody"}}),
        ("POST", turns, {"json": {"text": 5, "model": None}}),
        ("POST", turns, {"content": b"{", "headers": {"Content-Type": "application/json"}}),
        ("GET", "/api/v1/sessions", {"headers": {"Authorization": f"Bearer {instance.token[:-1]}"}}),
        ("POST", "/api/v1/login", {"json": {"token": [instance.token]}}),
        ("POST", "/api/v1/login", {"json": {"token": instance.token}}),
    ):
        instance.call(method, path, **more)
    answers = b"".join(instance.heard)
    for expected in (b"secret_missing", b"env:NO_SUCH_KEY", b"unauthorized", b"malformed_json"):
        assert expected in answers


def _run_commands(watched: Watched, session: str) -> None:
    """What the command line says, all at once."""
    more = [["history", session], ["history", session, "--json"], ["effects", "list", session, "--json"]]
    backup = watched.milepost.folder.parent / "canaries.tar.gz"
    commands = [[word.format(backup=backup) for word in command] for command in [*COMMANDS, *more]]
    started = {" ".join(command): watched.milepost.start(*command) for command in commands}
    for name, process in started.items():
        done = watched.milepost.finish(process)
        watched.keep(f"milepost {name}", (done.out + done.err).encode())
    watched.keep("backup, plain", gzip.decompress(backup.read_bytes()))
    backup.unlink()
    assert b"env:ECHO_KEY" in watched.collected["milepost config show"]
    assert b"model_unauthorized" not in watched.collected["milepost config show"]


def _look_around(watched: Watched) -> None:
    """That all the places are among what was collected, with what is expected there."""
    collected = watched.collected
    assert collected["milepost.db"] if watched.database is None else collected["table events"]
    for place in (collected["ledger: events"], collected["history"], collected["frames of answered"]):
        assert b"[hidden]" in place
    assert collected["text of answered"] == b"Your key is [hidden] and your header [hidden]."
    assert collected["text of stopped"].startswith(b"Your key is")
    assert b"[hidden]" in collected["tape.jsonl"]
    for place in ("export json", "export md", "export html", "search", "history of the fork", "frames of peers"):
        assert b"[hidden]" in collected[place], place
    assert any(place.startswith("blobs, plain") and b"[hidden]" in data for place, data in collected.items())
    for place in ("recall", "records", "memory log", "texts that were embedded", "last request of the model"):
        assert b"[hidden]" in collected[place], place
    if watched.database is None:
        kept = [place for place, data in collected.items() if place.startswith("memory/") and b"[hidden]" in data]
        assert any("daily_log" in place for place in kept) and any("semantic" in place for place in kept), kept
        assert b"[hidden]" in collected["backup, plain"]
    assert b'"level": "debug"' in collected["log"]
    assert b"[hidden]" in collected["log"], "the server's headers are logged by a library"
    assert any(place.startswith("workflow") for place in collected) and "temporal.db" in collected
    assert any(place.startswith("environment of") for place in collected)


async def _histories(address: TemporalAddress) -> dict[str, bytes]:
    return await histories(await connect(address))


def _environments(pid: int) -> dict[str, bytes]:
    """The environments of the instance's child processes."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                name = (path.parent / "comm").read_text().strip()
                found[f"environment of {name} {path.parent.name}"] = (path.parent / "environ").read_bytes()
    return found
