"""The import rules hold, and a planted violation of each is found."""

from __future__ import annotations

import ast
import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from milepost.bootstrap.ownership import ROOT_PACKAGES

ROOT = Path(__file__).parents[2]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the packages in `folder`."""
    command = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    return subprocess.run(
        [sys.executable, "-c", command, "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages without their data, to plant violations in."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ROOT_PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    shutil.copy(ROOT / ".importlinter", folder)
    return folder


def test_the_import_rules_hold() -> None:
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]


def test_planted_violations_are_found(copy: Path) -> None:
    """One violation of every contract at once: each of them must be reported broken."""
    planted = {
        "milepost/domain/planted.py": "import sqlalchemy\nimport milepost.engine.turn\n",
        "milepost/ports/planted.py": "import httpx\n",
        "milepost/services/planted.py": "import fastapi\nimport openai\nimport pypdf\n",
        "milepost/storage/planted.py": "import milepost.temporal.client\n",
        "milepost/unlisted.py": "",
        "workflows/planted.py": "import milepost.ports.blobs\n",
        "api/planted.py": "import milepost.storage.sqlite\n",
        "cli/planted.py": "import workflows.session_turn\n",
    }
    for name, text in planted.items():
        (copy / name).write_text(text)
    result = lint(copy)
    assert result.returncode != 0
    report = " ".join(result.stdout.split())
    names = [section for section in _contracts() if f"{section} BROKEN" not in report]
    assert names == [], report[-4000:]


def _contracts() -> list[str]:
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    return [parser[section]["name"] for section in parser.sections() if section.startswith("importlinter:contract")]


def test_every_root_package_is_under_the_rules() -> None:
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    assert parser["importlinter"]["root_packages"].split() == list(ROOT_PACKAGES)


READERS = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
ENVIRONMENT = "milepost/config/environment.py"
IN_THE_CONTAINER = "milepost/sandboxes/supervisor/"
"""Runs inside the sandbox, where the environment is the container's."""


def environment_readers(path: Path) -> list[int]:
    """Lines of a module that touch the process environment."""
    lines = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        attribute = isinstance(node, ast.Attribute) and node.attr in READERS
        imported = isinstance(node, ast.ImportFrom) and node.module == "os" and READERS & {a.name for a in node.names}
        if attribute or imported:
            lines.append(node.lineno)
    return lines


def modules() -> list[Path]:
    """All modules of the product."""
    return [path for name in ROOT_PACKAGES for path in sorted((ROOT / name).rglob("*.py"))]


def test_the_environment_is_read_in_one_file() -> None:
    found = {}
    for path in modules():
        name = path.relative_to(ROOT).as_posix()
        lines = environment_readers(path)
        if lines and not name.startswith(IN_THE_CONTAINER):
            found[name] = lines
    assert set(found) == {ENVIRONMENT}, found


@pytest.mark.parametrize(
    "text", ["import os\nos.environ['X']\n", "import os\nos.getenv('X')\n", "from os import environ\n"]
)
def test_a_reader_of_the_environment_is_found(tmp_path: Path, text: str) -> None:
    path = tmp_path / "planted.py"
    path.write_text(text)
    assert environment_readers(path)


def test_no_module_is_named_after_nothing() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers"}
    assert [str(path) for path in modules() if path.stem in vague or path.parent.name in vague] == []


def test_importing_the_command_line_loads_no_heavy_library() -> None:
    """`milepost --help` stays fast because these are imported where they are used."""
    heavy = ["temporalio", "sqlalchemy", "fastapi", "openai", "pydantic_ai", "alembic", "uvicorn", "pydantic", "httpx"]
    code = f"import sys, cli.main; print(sorted(set({heavy!r}) & set(sys.modules)))"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
