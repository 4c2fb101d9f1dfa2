"""Which checks there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from milepost.bootstrap.checks import Parts, functions
from milepost.config.loading import load_config
from milepost.domain.agents import AgentConfig


def test_the_agents_of_now_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "milepost.yaml"
    path.write_text("agents: {default: {}, other: {}}\n")
    config = load_config(path)
    agents: dict[str, AgentConfig] = dict(config.agents)
    unused: Any = None
    parts = Parts(config, unused, unused, unused, unused, unused, unused, unused, agents)
    assert {"model:default", "model:other"} <= set(functions(parts))
    del agents["other"]
    found = functions(parts)
    assert "model:default" in found and "model:other" not in found
