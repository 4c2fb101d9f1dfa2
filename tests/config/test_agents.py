"""Agents are edited in the file, which stays as it was otherwise, and count without a restart."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from milepost.config.agents import AgentFile
from milepost.config.loading import load_config
from milepost.config.registry import LiveAgents
from milepost.domain.errors import AgentExists, AgentUnknown, ConfigInvalid, ConfigReadOnly

TEXT = """\
# The team's file.
providers:
    work:                       # the big one
        type: openai_compatible
        base_url: 'https://models.example.com/v1'   # quoted, and stays so
        model: large

default_agent: coder

agents:
    # Writes code.
    coder:
        provider: work          # not local
        tools: [read_file, bash]
        sampling: {temperature: 0.2}   # low
    reviewer: {provider: work}

api: {port: 9000}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "milepost.yaml"
    path.write_text(TEXT, encoding="utf-8")
    path.chmod(0o640)
    return path


def test_a_change_touches_its_own_lines_alone(path: Path) -> None:
    editor = AgentFile(path)
    changed = editor.change("coder", {"model": "larger", "sampling": {"top_p": 0.9}, "tools": None})
    assert changed.written == {"provider": "work", "model": "larger", "sampling": {"temperature": 0.2, "top_p": 0.9}}
    assert changed.default and changed.effective["max_rounds"] == 64
    before, after = TEXT.splitlines(), path.read_text(encoding="utf-8").splitlines()
    assert [line for line in before if line not in after] == [
        "        tools: [read_file, bash]",
        "        sampling: {temperature: 0.2}   # low",
    ]
    assert [line for line in after if line not in before] == [
        "        sampling: {temperature: 0.2, top_p: 0.9} # low",
        "        model: larger",
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [each.name for each in path.parent.iterdir()] == ["milepost.yaml"], "nothing is left behind"


def test_agents_are_added_and_removed(path: Path) -> None:
    editor = AgentFile(path)
    editor.add("tester", {"provider": "work", "tools": ["bash"], "context": {"threshold": 70}})
    assert [agent.agent_id for agent in editor.list()] == ["coder", "reviewer", "tester"]
    assert load_config(path).agents["tester"].context.threshold == 70
    with pytest.raises(AgentExists):
        editor.add("tester", {})
    editor.remove("tester")
    assert path.read_text(encoding="utf-8") == TEXT
    with pytest.raises(AgentUnknown) as unknown:
        editor.remove("revewer")
    assert unknown.value.fix == "Did you mean 'reviewer'?"


@pytest.mark.parametrize(
    ("agent", "changes", "said", "fix"),
    [
        ("coder", {"modle": "x"}, "'agents.coder.modle' is no known key", "Did you mean 'model'?"),
        ("coder", {"tools": ["red_file"]}, "names a tool 'red_file'", "Did you mean 'read_file'?"),
        ("coder", {"provider": "wrk"}, "names a provider 'wrk'", "Did you mean 'work'?"),
        ("coder", {"max_rounds": "many"}, "'agents.coder.max_rounds' should be a valid integer", None),
        ("coder", {"system_prompt": "x" * 100_001}, "system_prompt", None),
    ],
)
def test_what_is_wrong_is_told_and_changes_nothing(
    path: Path, agent: str, changes: dict[str, object], said: str, fix: str | None
) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        AgentFile(path).change(agent, changes)
    assert said in refused.value.message and refused.value.fix == fix
    assert str(path) in refused.value.message and ".new" not in refused.value.message
    assert path.read_text(encoding="utf-8") == TEXT and [each.name for each in path.parent.iterdir()] == [
        "milepost.yaml"
    ]


@pytest.mark.parametrize("indent", [2, 4])
def test_comments_stay_where_they_are(tmp_path: Path, indent: int) -> None:
    text = """\
# Top.
agents:
  # First.
  one:
    tools:
      - bash  # why
      - grep
    system_prompt: |
      Be kind.

      # Not a comment.

  # Second.

  two: {max_rounds: 3}
  # After two.

# Of the API.
api:
  port: 9000  # mine
default_agent: one
""".replace("  ", " " * indent)
    path = tmp_path / "milepost.yaml"
    path.write_text(text, encoding="utf-8")
    editor = AgentFile(path)
    editor.change("one", {"max_rounds": 4})
    lines = text.splitlines()
    place = lines.index("#".join([" " * 3 * indent, " Not a comment."]))
    expected = [*lines[: place + 1], f"{' ' * 2 * indent}max_rounds: 4", *lines[place + 1 :]]
    assert [line for line in path.read_text(encoding="utf-8").splitlines() if line] == [x for x in expected if x]
    prompt = load_config(path).agents["one"].system_prompt
    assert prompt == "Be kind.\n\n# Not a comment.\n"
    editor.change("one", {"max_rounds": None})
    editor.add("three", {"max_rounds": 6})
    editor.remove("three")
    assert [line for line in path.read_text(encoding="utf-8").splitlines() if line] == [line for line in lines if line]
    editor.remove("two")
    left = path.read_text(encoding="utf-8")
    assert "# After two." in left and "# Of the API." in left and "two:" not in left


def test_agents_on_one_line_or_with_anchors_are_edited_too(tmp_path: Path) -> None:
    path = tmp_path / "milepost.yaml"
    path.write_text("# Top.\nagents: {one: {max_rounds: 3}}   # short\n\n# API\napi: {port: 9000}\n", encoding="utf-8")
    AgentFile(path).change("one", {"max_rounds": 4})
    assert load_config(path).agents["one"].max_rounds == 4
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# Top.\n") and text.endswith("\n# API\napi: {port: 9000}\n")
    path.write_text(
        "agents:\n  one: {sampling: &s {temperature: 0.1}}\n  two: {sampling: *s}\ndefault_agent: one\n",
        encoding="utf-8",
    )
    AgentFile(path).change("two", {"max_rounds": 5})
    found = load_config(path).agents
    assert (found["two"].max_rounds, found["two"].sampling.temperature, found["one"].max_rounds) == (5, 0.1, 64)


def test_an_agent_that_is_needed_stays(path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="default_agent"):
        AgentFile(path).remove("coder")
    assert path.read_text(encoding="utf-8") == TEXT


def test_without_a_file_nothing_can_be_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILEPOST_HOME", str(tmp_path))
    with pytest.raises(ConfigReadOnly, match="no configuration file") as refused:
        AgentFile(None).change("default", {"model": "x"})
    assert refused.value.fix is not None and "milepost init" in refused.value.fix


def test_the_built_in_agent_can_be_changed_and_a_link_stays_one(tmp_path: Path) -> None:
    real = tmp_path / "real.yaml"
    real.write_text("# Nothing yet.\n", encoding="utf-8")
    link = tmp_path / "milepost.yaml"
    link.symlink_to(real)
    AgentFile(link).change("default", {"max_rounds": 5})
    assert link.is_symlink() and load_config(link).agents["default"].max_rounds == 5
    assert "# Nothing yet." in real.read_text(encoding="utf-8")


def test_editors_at_the_same_time_lose_nothing(path: Path) -> None:
    def add(number: int) -> None:
        AgentFile(path).add(f"agent{number}", {"provider": "work"})

    threads = [threading.Thread(target=add, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(load_config(path).agents) == 8


def test_an_edit_counts_in_a_process_that_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milepost.config.registry.LOOK_SECONDS", 0.0)
    agents = LiveAgents(load_config(path))
    AgentFile(path).change("coder", {"max_rounds": 7})
    assert agents["coder"].max_rounds == 7
    AgentFile(path).add("tester", {"provider": "work"})
    assert set(agents) == {"coder", "reviewer", "tester"} and len(agents) == 3
    good = path.read_text(encoding="utf-8")
    path.write_text("agents: {coder: {modle: x}}\n", encoding="utf-8")
    assert agents["coder"].max_rounds == 7, "a file at fault changes nothing"
    path.write_text(good.replace("max_rounds: 7", "max_rounds: 8"), encoding="utf-8")
    assert agents["coder"].max_rounds == 8
    path.unlink()
    assert agents["coder"].max_rounds == 8


def test_an_edit_of_ones_own_counts_at_once(path: Path) -> None:
    agents = LiveAgents(load_config(path))
    AgentFile(path, agents.refresh).change("coder", {"max_rounds": 9})
    assert agents["coder"].max_rounds == 9


def test_only_what_needs_a_restart_makes_another_configuration(path: Path) -> None:
    before = load_config(path).digest
    AgentFile(path).change("coder", {"max_rounds": 9})
    after = load_config(path).digest
    assert before.partition(".")[0] == after.partition(".")[0] and before != after
    path.write_text(path.read_text(encoding="utf-8").replace("9000", "9001"), encoding="utf-8")
    assert load_config(path).digest.partition(".")[0] != before.partition(".")[0]
