"""The `tools` section: what it makes, what it refuses, and that docs/tools.md tells all of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from milepost.config.loading import Config
from milepost.config.problems import ConfigProblems
from milepost.config.tools import HttpToolSection, PythonToolSection
from milepost.domain.effects import EffectClass
from milepost.domain.extensions import HttpTool, PythonTool
from milepost.domain.tools import Approval, Parallel, ToolPolicy

Load = Callable[[str], Config]
DOCUMENT = (Path(__file__).parents[2] / "docs" / "tools.md").read_text(encoding="utf-8")
HTTP = "tools:\n  t:\n    {type: http, description: d, url: 'http://x', %s}\n"


def test_the_example_of_the_document_is_valid(load: Load) -> None:
    example = re.search(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    assert example
    config = load(example[1])
    ticket, stock = config.tools["create_ticket"], config.tools["stock_level"]
    assert isinstance(ticket, HttpTool)
    assert ticket.policy == ToolPolicy(EffectClass.KEYED, Parallel.ORDERED, Approval.ASK)
    assert ticket.peer.secret_headers == {"Authorization": "env:TICKETS_TOKEN"} and ticket.peer.headers == {}
    assert stock == PythonTool("stock_level", "stock_level", approval=Approval.ALLOW)
    assert config.agents["coder"].tools == ("read_file", "bash", "create_ticket", "stock_level")


def test_a_tool_without_a_word_is_taken_for_the_strictest(load: Load) -> None:
    tool = load(HTTP % "").tools["t"]
    assert isinstance(tool, HttpTool)
    assert tool.policy == ToolPolicy(EffectClass.AT_MOST_ONCE, Parallel.ORDERED, Approval.ASK)
    assert tool.definition.parameters["additionalProperties"] is False


def test_an_address_is_used_as_it_stands(load: Load) -> None:
    tool = load((HTTP % "method: GET").replace("http://x", "http://x/tickets/?version=2")).tools["t"]
    assert isinstance(tool, HttpTool) and tool.peer.url == "http://x/tickets/?version=2"
    tool = load((HTTP % "method: GET").replace("http://x", "http://x/tickets/")).tools["t"]
    assert isinstance(tool, HttpTool) and tool.peer.url == "http://x/tickets/", "many peers redirect without the slash"


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        (HTTP % "effect: keyd", "tools.t.effect", "Did you mean 'keyed'?"),
        (HTTP % "effect: model", "tools.t.effect", "must be"),
        (HTTP % "timeout: 9999", "tools.t.timeout", "less than or equal"),
        (HTTP % "headers: {Authorization: canary-value}", "tools.t.headers", "secret"),
        (HTTP % "headers: {transfer-encoding: chunked}", "tools.t.headers", "set by Milepost"),
        (HTTP % 'headers: {X-A: "a\\r\\nX-B: b"}', "tools.t.headers", "control character"),
        (HTTP % 'headers: {"X-A: b\\r\\nX-C": d}', "tools.t.headers", "no HTTP header name"),
        (HTTP % "parameters: {type: string}", "tools.t.parameters", "type: object"),
        (HTTP % "parameters: {type: object, properties: 7}", "tools.t.parameters", "properties"),
        (HTTP % "parameters: {type: object, $ref: 'http://x/y'}", "tools.t.parameters", "into the schema itself"),
        ("tools: {t: {type: htpp}}\n", "tools.t", "Did you mean 'http'?"),
        ("tools: {bash: {type: python}}\n", "tools.bash", "name of a built-in tool"),
        ("tools: {'a b': {type: python}}\n", "tools.a b", "pattern"),
        ("tools: {ticket: {type: python}}\nagents: {a: {tools: [tiket]}}\n", "agents.a.tools.0", "'ticket'?"),
        ("agents: {a: {approvals: {bahs: ask}}}\n", "agents.a.approvals.bahs", "Did you mean 'bash'?"),
    ],
)
def test_a_fault_is_told_with_its_place(load: Load, text: str, key: str, said: str) -> None:
    with pytest.raises(ConfigProblems) as caught:
        load(text)
    problem = caught.value.problems[0]
    assert (problem.key, problem.line is not None) == (key, True)
    assert said in f"{problem.message} {problem.fix}"
    assert "canary" not in str(caught.value)


def test_every_key_is_documented() -> None:
    http, python = DOCUMENT.split("### HTTP", 1)[1].split("### Python", 1)
    for text, section in ((http, HttpToolSection), (python, PythonToolSection)):
        rows = re.findall(r"^\| (`[a-z_`, ]+`) \| .* \|$", text, re.MULTILINE)
        named = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
        assert named == set(section.model_fields)
