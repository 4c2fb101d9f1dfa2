"""Git over HTTP and from the command line, on a real repository in a sandbox of plain namespaces."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from milepost.tools import plan
from tests.api.stack import Stack, running_stack
from tests.git.conftest import ME
from tests.sandbox.boxes import LocalSandboxes, require_namespaces


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *ME, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
async def stack(sqlite_url: str, tmp_path: Path) -> AsyncIterator[Stack]:
    require_namespaces()
    sandboxes = LocalSandboxes()
    async with running_stack(sqlite_url, tmp_path, provider=lambda _: sandboxes) as made:
        yield made
    await sandboxes.close()


async def test_from_a_change_to_a_commit_and_back(stack: Stack, tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "f").write_text("one\n")
    for step in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-qm", "one")):
        await asyncio.to_thread(git, folder, *step)
    (folder / "f").write_text("two\n")
    (folder / b"odd\xff".decode("utf-8", "surrogateescape")).write_text("x")
    session = await stack.open_session(workspace=str(folder))
    base = f"/api/v1/sessions/{session}/git"

    async def get(path: str) -> Any:
        response = await stack.client.get(f"{base}/{path}")
        assert response.status_code == 200, response.text
        return response.json()

    status = await get("status")
    assert status["branch"] == "main"
    assert {(each["path"], each["worktree"]) for each in status["files"]} == {("f", "M"), ("odd\\xff", "?")}
    diff = await get("diff?file=f")
    assert (diff["total"], diff["next_after"]) == (1, None)
    hunk = diff["files"][0]["hunks"][0]
    assert hunk["text"] == "-one\n+two\n"
    staged = await stack.post(f"{base}/stage", {"hunks": [hunk["hunk_id"]], "actor": "ann"})
    assert staged.json()["files"][0]["index"] == "M"
    assert (await get("diff?side=staged"))["files"][0]["hunks"][0]["hunk_id"] == hunk["hunk_id"]
    again = await stack.post(f"{base}/stage", {"hunks": [hunk["hunk_id"]]})
    assert (again.status_code, again.json()["code"]) == (409, "hunk_changed")
    author = {"author_name": "Ann", "author_email": "ann@example.org"}
    commit = (await stack.post(f"{base}/commit", {"message": "two", **author})).json()
    assert (await get("log?limit=1"))["commits"][0]["commit"] == commit["commit"]
    made = await stack.post(f"{base}/branches", {"name": "other"})
    assert made.json()["branch"] == "other"
    assert [each["name"] for each in (await get("branches"))["branches"] if each["current"]] == ["other"]
    (folder / "f").write_text("three\n")
    thrown = (await stack.post(f"{base}/discard", {"paths": ["f"]})).json()
    patch = (await stack.client.get(f"{base}/discarded/{thrown['operation_id']}")).text
    assert "+three" in patch
    assert (folder / "f").read_text() == "two\n"
    await stack.post(f"{base}/checkout", {"target": "main"})
    dropped = await stack.post(f"{base}/branches/delete", {"name": "other"})
    assert dropped.json()["commit"] == commit["commit"]
    bad = await stack.post(f"{base}/stage", {"paths": ["../x"]})
    assert (bad.status_code, bad.json()["code"]) == (422, "invalid_input")
    events = await stack.ledger.read(lambda tx: tx.events.read(session))
    done = [json.loads(event.payload) for event in events if event.type == "git.done"]
    assert [each["action"] for each in done] == [
        "stage",
        "commit",
        "create_branch",
        "discard",
        "switch",
        "delete_branch",
    ]
    assert done[0]["by"] == "api:ann"


async def test_what_agents_get(stack: Stack, tmp_path: Path) -> None:
    """Their two tools are commands that only look."""
    folder = tmp_path / "repository"
    folder.mkdir()
    await asyncio.to_thread(git, folder, "init", "-q", "-b", "main")
    (folder / "f").write_text("one\n")
    await asyncio.to_thread(git, folder, "add", "f")
    (folder / "f").write_text("two\n")
    found = await stack.services.sessions.get(await stack.open_session(workspace=str(folder)))
    sandbox = await stack.services.git._workbench.open(found)

    async def said(tool: str, **arguments: object) -> str:
        planned = plan(tool, json.dumps(arguments))
        outcome = await sandbox.perform(f"{tool}-{len(arguments)}-{arguments}", planned.operation)  # type: ignore[union-attr]
        assert outcome.exit_code == 0, outcome.stderr
        return outcome.stdout.decode()

    assert "AM f" in await said("git_status")
    assert "+two" in await said("git_diff", path="f")
    assert "+one" in await said("git_diff", staged=True)
    assert "--output" not in await said("git_diff", path="--output=x")
    assert not (folder / "x").exists()
