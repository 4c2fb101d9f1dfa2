"""The built-in demonstration: a script that lists, reads and edits a file of the sample project and runs its test."""

from __future__ import annotations

from functools import cache
from importlib import resources

from milepost.domain.messages import ToolMessage
from milepost.ports.models import ModelRequest
from milepost.providers.scripted import nodes
from milepost.providers.scripted.script import Script, script_of

DEMO_TOOLS = frozenset({"list_dir", "read_file", "edit_file", "bash"})

_PACKAGE = "milepost.providers.scripted"
_SAMPLE_FILES = ("greeting.py", "test_greeting.py")


def demo_script(request: ModelRequest) -> Script:
    """The script of the situation that the request shows.

    All scripts that use tools begin alike, so the n-th call gets an answer that fits the calls before it.
    """
    scripts = _scripts()
    if not {tool.name for tool in request.tools} >= DEMO_TOOLS:
        return scripts["text_only"]
    results = _results_of_turn(request)
    if len(results) >= 1 and "greeting.py" not in results[0]:
        return scripts["elsewhere"]
    if len(results) >= 2 and "Helo" not in results[1]:
        return scripts["corrected"]
    return scripts["sample"]


def _results_of_turn(request: ModelRequest) -> list[str]:
    """Results of this turn's calls: each of the `call_number` - 1 calls before made exactly one."""
    results = [message.text.text for message in request.messages if isinstance(message, ToolMessage)]
    return results[len(results) - (request.call_number - 1) :]


@cache
def _scripts() -> dict[str, Script]:
    text = resources.files(_PACKAGE).joinpath("demo.yaml").read_text(encoding="utf-8")
    situations = nodes.mapping(nodes.compose(text), "the demonstration")
    return {name: script_of(node) for name, node in situations.items()}


def demo_project_files() -> dict[str, bytes]:
    """The sample project, by file name: a greeting with a typo, and a test that fails until it is corrected."""
    # Kept as .txt: the deliberate mistake is data, not code of this package.
    folder = resources.files(_PACKAGE).joinpath("sample")
    return {name: folder.joinpath(f"{name}.txt").read_bytes() for name in _SAMPLE_FILES}
