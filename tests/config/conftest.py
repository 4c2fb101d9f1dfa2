"""A clean environment and folder for each test of the configuration."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from milepost.config.loading import Config, load_config


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MILEPOST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MILEPOST_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], Config]:
    """Load a configuration from text."""

    def from_text(text: str) -> Config:
        path = tmp_path / "milepost.yaml"
        path.write_text(text, encoding="utf-8")
        return load_config(path)

    return from_text
