"""What tools put out is the user's data and is recorded, except the values of the instance's own secrets."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from activities.environments import KEPT_BYTES
from activities.environments import _output as setup_output
from milepost.config.environment import environment
from milepost.domain.errors import SecretMissing
from milepost.domain.providers import ScriptedProvider
from milepost.domain.turns import TurnState
from milepost.ports.sandbox import Outcome, SandboxProvider
from milepost.providers.gateway import Gateway
from milepost.sandboxes.podman.provider import PodmanProvider
from milepost.security.redaction import HIDDEN, Redactor
from milepost.storage import FileBlobStore, open_ledger, open_notifier
from milepost.temporal.client import TemporalAddress
from tests.security.canaries import canary, leaks
from tests.security.dumps import files, histories
from tests.support.podman import remove_owned
from tests.support.sandboxes import MemorySandbox, MemorySandboxes
from tests.support.temporal import Stack, build_stack

KEY, HOST, CONTENT = canary("key"), canary("host"), canary("content")
OURS = {"key": KEY, "host environment": HOST}


class NoSecrets:
    def resolve(self, reference: str) -> str:
        raise SecretMissing(reference)


@asynccontextmanager
async def stack_with(
    sandboxes: Callable[[str], SandboxProvider], folder: Path, url: str, address: TemporalAddress
) -> AsyncIterator[Stack]:
    """A stack that knows `KEY` as a secret of its own; its ledger and blobs lie in `folder`."""
    notifier = await open_notifier(url)
    ledger = await open_ledger(url, notifier)
    gateway = Gateway({"scripted": ScriptedProvider("scripted")}, NoSecrets())
    blobs = FileBlobStore(folder / "blobs")
    try:
        stack = await build_stack(ledger, notifier, blobs, gateway, sandboxes(ledger.instance_id), address)
        stack.parts = replace(stack.parts, redactor=Redactor([KEY]))
        async with stack.worker():
            yield stack
    finally:
        await gateway.close()
        await ledger.close()
        await notifier.close()


async def outputs(stack: Stack, session: str, *calls: dict[str, object]) -> list[str]:
    """Run the calls in one turn; the whole recorded outputs in their order."""
    script = json.dumps({"responses": [{"calls": list(calls)}, {"text": "Done."}]})
    begun = await stack.send(session, script=script)
    turn = await stack.ended(begun.turn.turn_id, 90)
    assert turn.state is TurnState.COMPLETED, turn.error_message
    entry = await stack.history.entry(turn.turn_id)
    found = []
    for card in entry.tools:
        result = await stack.history.tool_result(card.effect_id)
        found.append(await stack.parts.contents.load(result.full_output or result.output))
        found[-1] += await stack.parts.contents.load(result.output)
    return found


def call(tool: str, **args: object) -> dict[str, object]:
    return {"tool": tool, "args": args}


Fill = Callable[[MemorySandbox], None]


@pytest.mark.parametrize("padding", [0, 16_100, 32_200, 300_000, 1_000_000])
async def test_a_file_with_our_key(
    padding: int, sqlite_url: str, tmp_path: Path, temporal_address: TemporalAddress
) -> None:
    """Also where the output is shortened in the middle of the key, kept as a blob, or searched beside the loop."""
    sandboxes = MemorySandboxes()
    async with stack_with(lambda _: sandboxes, tmp_path, sqlite_url, temporal_address) as stack:
        session = await stack.open(tmp_path)
        box = sandboxes.by_session[session] = MemorySandbox()
        body = "".join(f"{n:07}\n" for n in range(padding // 8))
        box.files[".env"] = f"{body}OPENAI_API_KEY={KEY}\n{CONTENT}\n{body}".encode()
        (read, ran) = await outputs(
            stack, session, call("read_file", path=".env"), call("bash", command=f"echo {KEY} {CONTENT}")
        )
        collected = await histories(stack.client)
    collected |= files(tmp_path, without=frozenset())
    assert leaks({"output": read.encode(), "command": ran.encode()}, OURS) == []
    # The script is the user's own text, so only what tools and models made of it is looked at.
    assert leaks({name: data for name, data in collected.items() if name.startswith("blobs")}, OURS) == []
    assert HIDDEN in ran and CONTENT in ran, "a canary that is no secret of ours is content"
    if padding < 16_000:
        assert f"OPENAI_API_KEY={HIDDEN}\n{CONTENT}" in read


@pytest.mark.podman
async def test_a_command_that_prints_the_environment(
    podman_root: Path,
    sqlite_url: str,
    tmp_path: Path,
    temporal_address: TemporalAddress,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_TOKEN", HOST)
    monkeypatch.setenv("PROVIDER_KEY", KEY)
    assert environment()["SOME_TOKEN"] == HOST
    with tempfile.TemporaryDirectory(prefix="mp-") as folder:
        workspace = Path(folder) / "project"
        workspace.mkdir(mode=0o777)
        workspace.chmod(0o777)
        (workspace / ".env").write_text(f"KEY={KEY}\nNOTE={CONTENT}\n")
        command = "env; set; cat /proc/*/environ | tr '\\0' '\\n'; cat .env; base64 -w0 .env"
        providers: list[PodmanProvider] = []

        def podman(instance: str) -> SandboxProvider:
            providers.append(PodmanProvider(podman_root, instance))
            return providers[0]

        async with stack_with(podman, tmp_path, sqlite_url, temporal_address) as stack:
            session = await stack.open(workspace)
            (printed,) = await outputs(stack, session, call("bash", command=command))
            collected = await histories(stack.client)
        await remove_owned(providers[0])
        await providers[0].close()
    collected |= files(tmp_path, without=frozenset()) | {"printed": printed.encode()}
    assert leaks(collected, OURS) == []
    assert "HOME=/home/agent" in printed, "it did print the environment"
    assert f"KEY={HIDDEN}\nNOTE={CONTENT}" in printed
    assert any(CONTENT.encode()[:20] in data for data in collected.values())


def test_what_an_environments_setup_puts_out() -> None:
    """Both streams, however the key is written, and also where the middle is left out."""
    outcome = Outcome(
        exit_code=1,
        stdout=f"export KEY={KEY}\n{CONTENT}\n".encode() + b"x" * 3 * KEPT_BYTES + KEY.encode(),
        stderr=KEY.encode(),
    )
    text = setup_output(outcome, Redactor([KEY]))
    assert leaks({"setup": text.encode()}, {"key": KEY}) == [] and HIDDEN in text
    assert CONTENT in text and "bytes left out" in text and "[stderr]" in text
