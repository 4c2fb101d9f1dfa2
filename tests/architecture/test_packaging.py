"""The wheel holds what runs need, and our root packages are ours alone."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from milepost.bootstrap import ownership
from milepost.bootstrap.ownership import ROOT_PACKAGES, foreign_packages

ROOT = Path(__file__).parents[2]


def test_no_other_distribution_owns_our_root_packages() -> None:
    assert foreign_packages() == []


def test_a_foreign_owner_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = {"workflows": ["llama-index-workflows"], "api": ["milepost"]}
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: owners)
    assert foreign_packages() == ["The package 'workflows' also belongs to llama-index-workflows."]


def test_a_package_from_elsewhere_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "ROOT_PACKAGES", ("json",))
    found = foreign_packages()
    assert len(found) == 1
    assert "The package 'json' is imported from" in found[0]


def test_the_wheel_lists_exactly_the_root_packages() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == list(ROOT_PACKAGES)
    assert sorted(project["tool"]["mypy"]["packages"]) == sorted(ROOT_PACKAGES)


def test_the_lock_names_versions_and_no_place() -> None:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    assert len(lines) > 50
    for line in lines:
        assert "==" in line, line
        assert "://" not in line, line
        assert not line.startswith("-"), line


def test_every_dependency_is_locked() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    locked = {line.partition("==")[0] for line in (ROOT / "requirements.lock").read_text().splitlines()}
    for requirement in wanted:
        name = requirement.split(";")[0].split("[")[0].split(">")[0].split("=")[0].split("<")[0].strip()
        assert name.lower().replace("_", "-").replace(".", "-") in locked, requirement


def test_the_version_is_told() -> None:
    code = "from cli.main import app; app()"
    result = subprocess.run(
        [sys.executable, "-c", code, "--version"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout == f"milepost {importlib.metadata.version('milepost')}\n"
