"""docs/configuration.md tells every key there is, and its example is valid."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from milepost.config.loading import Config, json_schema

DOCUMENT = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
NAMED = {"providers": "NAME", "agents": "ID", "tools": "NAME", "hooks": "NAME"}


def _keys(schema: dict[str, Any], node: dict[str, Any], path: str) -> Iterator[str]:
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    for option in node.get("anyOf", ()):
        yield from _keys(schema, option, path)
    for name, child in node.get("properties", {}).items():
        inner = f"{path}.{name}" if path else name
        if inner in NAMED:
            inner = f"{inner}.{NAMED[inner]}"
            child = next(iter(child["patternProperties"].values()))
        yield from list(_keys(schema, child, inner)) or [inner]


def test_every_key_is_documented_and_no_other() -> None:
    schema = json_schema()
    apart = {"providers.NAME", "tools.NAME", "hooks.NAME"}
    keys = {key for key in _keys(schema, schema, "") if not key.startswith(("providers.", "tools.", "hooks."))} | apart
    keys |= {"temporal.tls"}
    assert set(re.findall(r"^\| `([A-Za-z0-9_.]+)` \|", DOCUMENT, re.MULTILINE)) == keys


def test_the_example_is_valid(load: Callable[[str], Config], monkeypatch: pytest.MonkeyPatch) -> None:
    example = re.search(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    assert example
    monkeypatch.setenv("MILEPOST_DB_PASSWORD", "x")
    config = load(example[1])
    assert config.default_agent == "coder"
    assert config.database_url() == "postgresql://milepost:x@db.example:5432/milepost"


def test_what_init_writes_is_valid_also_without_the_comment_signs(load: Callable[[str], Config]) -> None:
    from cli.commands.config import TEMPLATE

    load(TEMPLATE)
    text = re.sub(r"^# ?((?:providers|agents|prices|  ).*)$", r"\1", TEMPLATE, flags=re.MULTILINE)
    config = load(text)
    assert config.agents["default"].provider == "local"
