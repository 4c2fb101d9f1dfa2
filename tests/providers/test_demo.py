"""The built-in demonstration really does what it says, on the sample project."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from milepost.domain.content import Content
from milepost.domain.messages import Message, ToolMessage
from milepost.domain.providers import ScriptedProvider
from milepost.domain.tools import BUILTIN_TOOL_POLICIES, ToolDefinition
from milepost.providers.gateway import Gateway
from milepost.providers.scripted.demo import DEMO_TOOLS, demo_project_files
from tests.providers.conftest import Make, hear, request, user

TOOLS = tuple(ToolDefinition(name, "", {"type": "object"}) for name in BUILTIN_TOOL_POLICIES)


@pytest.fixture
def gateway(make_gateway: Make) -> Gateway:
    return make_gateway(ScriptedProvider("s"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, data in demo_project_files().items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def act(folder: Path, tool: str, args: dict[str, Any]) -> str:
    """The four tools of the demonstration, for this test's folder."""
    match tool:
        case "list_dir":
            return "\n".join(sorted(path.name for path in (folder / args["path"]).iterdir()))
        case "read_file":
            return str((folder / args["path"]).read_text())
        case "edit_file":
            path = folder / args["path"]
            assert path.read_text().count(args["old"]) == 1
            path.write_text(path.read_text().replace(args["old"], args["new"]))
            return "edited"
    assert (tool, args) == ("bash", {"command": "python3 -m unittest -v"})
    return run_tests(folder)


def run_tests(folder: Path) -> str:
    command = [sys.executable, "-B", "-m", "unittest", "-v"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    return done.stderr + f"exit code {done.returncode}"


async def play(gateway: Gateway, folder: Path, tools: tuple[ToolDefinition, ...] = TOOLS) -> tuple[list[str], str]:
    """The tools used and the final text of a turn."""
    messages: list[Message] = [user("Fix the greeting.")]
    used: list[str] = []
    for number in range(1, 10):
        asked = request("s", messages=messages, tools=tools, call_number=number, idempotency_key=f"k{number}")
        done = (await hear(gateway, asked)).done
        messages.append(done.message)
        if not done.message.calls:
            return used, done.message.text
        for call in done.message.calls:
            used.append(call.tool)
            output = act(folder, call.tool, json.loads(call.arguments.text))
            messages.append(ToolMessage(call.call_id, call.tool, Content(output)))
    raise AssertionError("the demonstration does not end")


async def test_it_corrects_the_sample_and_its_test_passes(gateway: Gateway, project: Path) -> None:
    assert "exit code 1" in run_tests(project)
    used, text = await play(gateway, project)
    assert used == ["list_dir", "read_file", "edit_file", "bash"]
    assert set(used) == DEMO_TOOLS
    assert "corrected" in text
    assert "exit code 0" in run_tests(project)


async def test_a_second_turn_finds_nothing_to_correct(gateway: Gateway, project: Path) -> None:
    await play(gateway, project)
    used, text = await play(gateway, project)
    assert used == ["list_dir", "read_file", "bash"]
    assert "Nothing was left" in text


async def test_another_folder_is_left_alone(gateway: Gateway, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("x")
    used, text = await play(gateway, tmp_path)
    assert used == ["list_dir"]
    assert "nothing was changed" in text


@pytest.mark.parametrize("tools", [(), tuple(tool for tool in TOOLS if tool.name != "bash")])
async def test_without_its_tools_it_says_so(gateway: Gateway, project: Path, tools: tuple[ToolDefinition, ...]) -> None:
    used, text = await play(gateway, project, tools)
    assert used == []
    assert "milepost doctor" in text
