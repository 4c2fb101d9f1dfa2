"""`milepost models`: what can be used, in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Milepost
from tests.support.model_server import model_server
from tests.support.openai_server import OpenAIServer

__all__ = ["model_server"]


@pytest.mark.slow
def test_models_are_listed_and_checked(milepost: Milepost, model_server: OpenAIServer, tmp_path: Path) -> None:
    done = milepost.run("models", "check")
    assert done.code == 0 and "scripted/demo (agent default)" in done.out and "--call" in done.out
    assert "milepost init" in milepost.run("models", "list").out
    file = tmp_path / "m.yaml"
    file.write_text(
        "providers:\n"
        f"  work: {{type: openai_compatible, base_url: '{model_server.base_url}', model: fake-small}}\n"
        "  keyless: {type: openai_compatible, base_url: 'http://127.0.0.1:1/v1', model: m, api_key: 'env:NO_KEY'}\n"
        "agents:\n  default: {provider: work, fallbacks: [{provider: keyless}]}\n"
    )
    listed = milepost.run("models", "list", "--config", str(file))
    assert listed.code == 1
    assert "fake-small (default)" in listed.out and "fake-large" in listed.out and "env:NO_KEY" in listed.out
    checked = milepost.run("models", "check", "--config", str(file), "--json")
    routes = {route["provider"]: route for route in checked.json()["routes"]}
    assert checked.code == 1 and routes["work"]["ok"] and not routes["keyless"]["ok"]
    assert milepost.run("models", "check", "work", "--config", str(file)).code == 0
    names = [check["name"] for check in milepost.run("doctor", "--config", str(file), "--json").json()["checks"]]
    assert {"model:default", "model:default:fallback-1"} <= set(names)
