"""The `hooks` section: what it makes, what it refuses, and that docs/hooks.md tells all of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from milepost.config.hooks import HttpHookSection, PythonHookSection
from milepost.config.loading import Config
from milepost.config.problems import ConfigProblems
from milepost.domain.extensions import HttpHook, PythonHook
from milepost.domain.hooks import HookRule, HookWhen, OnFailure

Load = Callable[[str], Config]
DOCUMENT = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text(encoding="utf-8")
HTTP = "hooks:\n  h:\n    {type: http, when: before, url: 'http://x', %s}\n"


def test_the_example_of_the_document_is_valid(load: Load) -> None:
    example = re.search(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    assert example
    config = load(example[1])
    guard, scrub = config.hooks["guard"], config.hooks["scrub"]
    assert isinstance(guard, HttpHook) and isinstance(scrub, PythonHook)
    assert guard.rule == HookRule("guard", HookWhen.BEFORE, ("bash", "write_file"))
    assert guard.peer.secret_headers == {"Authorization": "env:POLICY_TOKEN"}
    assert scrub.entry_point == "scrub"
    assert [rule.name for rule in config.agents["coder"].hooks] == ["guard", "scrub", "audit"]
    assert config.agents["coder"].hooks[2].on_failure is OnFailure.ALLOW


def test_hooks_of_one_agent_are_not_asked_about_another(load: Load) -> None:
    config = load((HTTP % "agents: [a]") + "agents: {a: {}, b: {}}\ndefault_agent: a\n")
    assert [rule.name for rule in config.agents["a"].hooks] == ["h"]
    assert config.agents["b"].hooks == ()
    assert [rule.name for rule in load(HTTP % "").agents["default"].hooks] == ["h"]


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        (HTTP % "tools: [bahs]", "hooks.h.tools.0", "Did you mean 'bash'?"),
        (HTTP % "agents: [defualt]", "hooks.h.agents.0", "Did you mean 'default'?"),
        (HTTP % "on_failure: alow", "hooks.h.on_failure", "Did you mean 'allow'?"),
        (HTTP % "timeout: 301", "hooks.h.timeout", "less than or equal"),
        (HTTP % "headers: {Authorization: canary-value}", "hooks.h.headers", "secret"),
        (HTTP % "keep_original: true", "hooks.h.keep_original", "when: after"),
        (HTTP % "tools: []", "hooks.h.tools", "at least 1"),
        ("hooks: {h: {type: python, when: befor}}\n", "hooks.h.when", "Did you mean 'before'?"),
        ("hooks: {h: {type: pyton, when: before}}\n", "hooks.h", "Did you mean 'python'?"),
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
    table = DOCUMENT.split("## What a hook", 1)[0]
    named = set(re.findall(r"^\| `([a-z_]+)` \|.*\|.*\|$", table, re.MULTILINE))
    assert named == {*HttpHookSection.model_fields, *PythonHookSection.model_fields}
