"""Long-term memory over the API and the command line."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import commands
from tests.api.stack import Stack, running_stack
from tests.cli.conftest import NO_TOOLS

BASE = "/api/v1/memory/namespaces"


@pytest.fixture
async def stack(sqlite_url: str, tmp_path: Path) -> AsyncIterator[Stack]:
    async with running_stack(sqlite_url, tmp_path) as stack:
        yield stack


async def test_records_over_the_api(stack: Stack) -> None:
    api = stack.client
    record = f"{BASE}/support/records/ada%2Fstyle"
    body = {
        "content": {"type": "text", "text": "customer prefers concise release notes"},
        "metadata": {"team": "docs", "priority": 2},
        "retention_days": 30,
        "expected_version": 0,
    }
    reply = await api.put(record, json=body)
    assert reply.status_code == 200, reply.text
    kept = reply.json()
    assert (kept["key"], kept["version"], kept["format"], kept["written_by"]) == ("ada/style", 1, 1, "api")
    assert (kept["embedder"], kept["embedding_error"]) == ("lexical-hash/1", None)
    assert kept["expires_at"][:4] >= "2026"
    assert (await api.get(record)).json() == {key: value for key, value in kept.items() if key != "embedding_error"}
    conflict = await api.put(record, json=body)
    assert (conflict.status_code, conflict.json()["code"]) == (409, "version_conflict")
    await api.put(f"{BASE}/support/records/bo", json={"content": {"type": "json", "value": {"likes": "long notes"}}})

    search = f"{BASE}/support/search"
    found = (await api.post(search, json={"query": "concise notes", "mode": "text"})).json()
    assert [(hit["record"]["key"], hit["score"], hit["text"], hit["vector"]) for hit in found["hits"]] == [
        ("ada/style", 1_000_000, 1_000_000, None),
        ("bo", 500_000, 500_000, None),
    ]
    assert (found["exact"], found["candidates"], found["without_vector"]) == (True, 2, 0)
    filtered = await api.post(search, json={"query": "notes", "filters": {"team": "docs", "priority": 2}, "limit": 1})
    assert [hit["record"]["key"] for hit in filtered.json()["hits"]] == ["ada/style"]
    assert (await api.post(search, json={"query": "x" * 65_537})).status_code == 413
    assert (await api.post(search, json={"query": "x", "limit": 101})).status_code == 422
    assert (await api.post(search, json={"query": "x", "mode": "fast"})).status_code == 422

    page = (await api.get(f"{BASE}/support/records", params={"limit": 1})).json()
    assert [item["key"] for item in page["records"]] == ["ada/style"]
    rest = (await api.get(f"{BASE}/support/records", params={"cursor": page["next_cursor"]})).json()
    assert ([item["key"] for item in rest["records"]], rest["next_cursor"]) == (["bo"], None)
    (namespace,) = (await api.get(BASE)).json()["namespaces"]
    assert (namespace["namespace"], namespace["records"], namespace["dimensions"]) == ("support", 2, 64)
    step = (await api.post(f"{BASE}/support/reindex", json={})).json()
    assert (step["embedded"], step["finished"], step["after"]) == (2, True, "")
    assert (await api.post(f"{BASE}/nowhere/reindex", json={})).json()["code"] == "namespace_not_found"
    assert (await api.post(f"{BASE}/support/reindex", json={"embedder": "x"})).json()["code"] == "embedder_unknown"

    assert (await api.delete(record, params={"expected_version": 7})).status_code == 409
    assert (await api.delete(record)).status_code == 204
    assert (await api.get(record)).json()["code"] == "record_not_found"
    assert (await api.delete(record)).status_code == 404
    for wrong in (
        {"content": {"type": "text"}},
        {"content": {"type": "text", "text": "x"}, "retention_days": 0},
        {"content": {"type": "text", "text": "x"}, "expected_version": -1},
        {"content": "x"},
        {"text": "x"},
    ):
        assert (await api.put(record, json=wrong)).status_code == 422, wrong
    assert (await api.put(record, json={"content": {"type": "text", "text": "x" * 1_048_576}})).status_code == 413


def test_records_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: a dozen processes would take half a minute to start."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILEPOST_HOME", str(tmp_path / "home"))
    (tmp_path / "milepost.yaml").write_text(NO_TOOLS + "embeddings: {default: lexical}\n")

    def said(*arguments: str, code: int = 0) -> Any:
        done = CliRunner().invoke(commands, ["memory", *arguments])
        assert done.exit_code == code, done.output
        return done

    def run(*arguments: str, code: int = 0) -> Any:
        done = said(*arguments, "--json", code=code)
        return json.loads(done.stdout if code == 0 else done.stderr.splitlines()[-1])

    kept = run(
        *("put", "support", "ada", '{"tier": "gold"}', "--text", "concise notes", "--metadata", '{"team": "docs"}'),
        *("--retention-days", "30", "--expected-version", "0"),
    )
    assert kept["content"] == {"type": "json", "value": {"tier": "gold"}, "text": "concise notes"}
    run("put", "support", "bo", "--text", "long notes")
    args = ("search", "support", "notes", "--mode", "hybrid", "--limit", "5", "--filter", 'team="docs"')
    assert [hit["record"]["key"] for hit in run(*args)["hits"]] == ["ada"]
    shown = said("search", "support", "long").stdout
    assert "bo" in shown and "long notes" in shown
    assert "ada" in said("list", "support").stdout
    assert run("reindex", "support")["embedded"] == 2
    assert run("put", "support", "ada", "1", "--expected-version", "7", code=1)["error"]["code"] == "version_conflict"
    assert run("put", "support", "ada", "{", code=2)["error"]["field"] == "value"
    run("delete", "support", "ada")
    assert run("get", "support", "ada", code=1)["error"]["code"] == "record_not_found"
    (namespace,) = run("namespaces")["namespaces"]
    assert (namespace["namespace"], namespace["records"]) == ("support", 1)
