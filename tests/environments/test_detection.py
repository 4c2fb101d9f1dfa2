"""What a folder proposes, and what it cannot smuggle in."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from milepost.domain.environments import EnvironmentPlan, SetupSource
from milepost.domain.errors import ImageNotAllowed, InvalidInput
from milepost.engine import devcontainer
from milepost.engine.consent import Verdict, verdict
from milepost.engine.images import CURATED, check_image, local_reference
from milepost.sandboxes.detection import FolderDetector, detect


def parsed(**value: object) -> devcontainer.Devcontainer:
    return devcontainer.parse(json.dumps(value), "shop")


def test_comments_and_trailing_commas_are_no_trouble_and_strings_are_kept() -> None:
    text = """\ufeff{
      // the image
      "image": "node:20-slim", /* "image": "evil", */
      "postCreateCommand": "curl http://example.test//a /* not a comment */, ]",
      "forwardPorts": [3000, /* web */ "localhost:4000",],
      "containerEnv": {"URL": "http://x//y", "QUOTE": "a\\"b, }",},
    }"""
    found = devcontainer.parse(text, "shop")
    assert found.image == "node:20-slim"
    assert found.command == "curl http://example.test//a /* not a comment */, ]"
    assert found.ports == (3000, 4000)
    assert found.variables == {"URL": "http://x//y", "QUOTE": 'a"b, }'}
    assert found.notes == []


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ("npm ci", "npm ci"),
        (["npm", "run", "a b"], "npm run 'a b'"),
        ({"web": "npm ci", "api": ["pip", "install", "x y"]}, "( npm ci ) &&\n( pip install 'x y' )"),
        ("cd ${containerWorkspaceFolder} && make ${localWorkspaceFolderBasename}", "cd /workspace && make shop"),
        ("echo ${HOME}", "echo ${HOME}"),
        ("", None),
        (7, None),
        (["a", 7], None),
        ("echo ${localEnv:SECRET}", None),
        ("x" * 20_000, None),
    ],
)
def test_a_command_in_each_of_its_forms(given: object, command: str | None) -> None:
    assert parsed(postCreateCommand=given).command == command


def test_nothing_of_the_host_is_filled_in() -> None:
    env = {"A": "${localEnv:SECRET}", "B": "plain", "C": 7, "bad name": "x", "D": "${containerEnv:PATH}:/x"}
    found = parsed(containerEnv=env, forwardPorts=[0, 70_000, True, "db:5432", 80])
    assert found.variables == {"B": "plain"}
    assert found.ports == (80,)
    assert len(found.notes) >= 7


def test_what_is_not_followed_is_said() -> None:
    found = parsed(build={"dockerfile": "Dockerfile"}, runArgs=["--privileged"], mounts=["source=/,target=/host"])
    assert found == devcontainer.Devcontainer(notes=["Not used: build, mounts, runArgs."])
    assert "cannot be read" in devcontainer.parse("{", "shop").notes[0]
    assert "cannot be read" in devcontainer.parse("[" * 100_000, "shop").notes[0]


@pytest.mark.parametrize(
    ("names", "image", "command"),
    [
        (["package-lock.json"], "node:20-slim", "npm ci"),
        (["pnpm-lock.yaml"], "node:20-slim", "corepack pnpm install --frozen-lockfile"),
        (["yarn.lock"], "node:20-slim", "yarn install --frozen-lockfile"),
        (["yarn.lock", ".yarnrc.yml"], "node:20-slim", "corepack yarn install --immutable"),
        (["requirements.txt"], "python:3.12-slim", "-m pip install -r requirements.txt"),
        (["uv.lock"], "python:3.12-slim", "uv sync --locked"),
        (["poetry.lock"], "python:3.12-slim", "poetry install"),
        (["Cargo.lock"], "rust:bookworm", "cargo fetch --locked"),
        (["go.sum"], None, "go mod download"),
    ],
)
def test_each_lockfile(tmp_path: Path, names: list[str], image: str | None, command: str) -> None:
    for name in names:
        (tmp_path / name).touch()
    found = detect(tmp_path)
    assert found.image == image
    assert command in (found.command or "")
    assert found.source is SetupSource.LOCKFILE
    assert found.files == (names[0],)


def test_several_lockfiles_and_a_devcontainer_that_wins(tmp_path: Path) -> None:
    for name in ("package-lock.json", "requirements.txt", "package.json"):
        (tmp_path / name).touch()
    found = detect(tmp_path)
    assert (found.command, found.node) == ("npm ci", True)
    assert "requirements.txt" in found.notes[0]
    (tmp_path / ".devcontainer").mkdir()
    (tmp_path / ".devcontainer" / "devcontainer.json").write_text('{"postCreateCommand": "make deps"}')
    found = detect(tmp_path)
    assert (found.command, found.source, found.node) == ("make deps", SetupSource.DEVCONTAINER, True)


async def test_a_folder_without_any_of_it_proposes_nothing(tmp_path: Path) -> None:
    assert await FolderDetector().detect(str(tmp_path)) == EnvironmentPlan()


def test_links_pipes_and_other_tricks_of_the_folder(tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text('{"postCreateCommand": "cat secrets"}')
    work = tmp_path / "work"
    work.mkdir()
    (work / ".devcontainer.json").symlink_to(outside)
    os.mkfifo(work / "package-lock.json")
    (work / "requirements.txt").symlink_to(outside)
    (work / "Cargo.lock").mkdir()
    assert detect(work) == EnvironmentPlan()
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "devcontainer.json").write_text('{"postCreateCommand": "x"}')
    (work / ".devcontainer").symlink_to(tmp_path / "real")
    assert detect(work) == EnvironmentPlan()
    link = tmp_path / "link"
    link.symlink_to(work)
    with pytest.raises(InvalidInput, match="cannot be looked at"):
        detect(link)


@pytest.mark.parametrize(
    ("plan", "reviewed", "operator", "expected"),
    [
        (EnvironmentPlan(), False, False, Verdict.PLAIN),
        (EnvironmentPlan(image="node:20-slim", source=SetupSource.DEVCONTAINER), False, False, Verdict.PLAIN),
        (EnvironmentPlan(command="x", source=SetupSource.DEVCONTAINER), False, False, Verdict.ASK),
        (EnvironmentPlan(command="x", source=SetupSource.DEVCONTAINER), False, True, Verdict.OPERATOR),
        (EnvironmentPlan(command="x", source=SetupSource.DEVCONTAINER), True, True, Verdict.ASK),
        (EnvironmentPlan(command="x", source=SetupSource.LOCKFILE), False, True, Verdict.ASK),
        (EnvironmentPlan(command="x", source=SetupSource.EDITED), False, True, Verdict.ASK),
        (EnvironmentPlan(ports=(80,)), False, True, Verdict.ASK),
        (EnvironmentPlan(ports=(80,), chosen_ports=(80,)), False, False, Verdict.PLAIN),
    ],
)
def test_who_decides(plan: EnvironmentPlan, reviewed: bool, operator: bool, expected: Verdict) -> None:
    assert verdict(plan, reviewed=reviewed, operator_runs_devcontainer=operator) is expected


def test_images_that_may_be_named() -> None:
    for name in (*CURATED, "docker.io/library/node:20-slim", "mine"):
        check_image(name, {"mine"}, any_image=False)
    with pytest.raises(ImageNotAllowed, match="allow_untrusted_images"):
        check_image("docker.io/evil/node:20-slim", {"mine"}, any_image=False)
    check_image("docker.io/evil/node:20-slim", (), any_image=True)
    assert local_reference("node:20-slim", {}) == "docker.io/library/node:20-slim"
    assert local_reference("docker.io/library/node:20-slim", {"node:20-slim": "localhost/n"}) == "localhost/n"
    assert local_reference("localhost/own", {"node:20-slim": "localhost/n"}) == "localhost/own"
