"""Skills: read from folders, named by agents, chosen by Sessions, loaded by models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import commands
from milepost.bootstrap.system import UuidIds
from milepost.config.loading import load_config
from milepost.config.skills import read_skills
from milepost.domain.agents import AgentConfig
from milepost.domain.errors import ConfigInvalid, InvalidInput
from milepost.domain.events import AgentStarted, SessionSkillsSet, ToolFinished
from milepost.domain.skills import MAX_SKILL_BYTES, Skill
from milepost.ports.tools import NoCustomTools
from milepost.services.skills import SkillService, SkillTools
from tests.context.plays import Model, driven, events_of

HEAD = "---\nname: x\ndescription: What it is for.\n---\n"


def write(folder: Path, skill: str, text: str) -> None:
    (folder / skill).mkdir(parents=True)
    (folder / skill / "SKILL.md").write_text(text, encoding="utf-8")


def test_what_comes_along_can_be_used() -> None:
    book = read_skills([])
    assert set(book.skills) == {"debugging", "code-review", "writing-tests"} and book.problems == ()
    assert all(skill.built_in and skill.text.startswith("# ") for skill in book.skills.values())


def test_own_skills_are_read_and_faults_are_told(tmp_path: Path) -> None:
    write(tmp_path, "good", HEAD + "Do this.\n")
    write(tmp_path, "debugging", HEAD.replace("\n", "\r\n") + "Ours.")
    for skill, text in {
        "No_Good": HEAD + "x",
        "headless": "Do this.",
        "nameless": "---\nname: y\n---\nx",
        "broken": "---\n{\n---\nx",
        "empty": HEAD,
        "long": HEAD + "x" * MAX_SKILL_BYTES,
        "wordy": f"---\ndescription: {'x' * 1025}\n---\nx",
    }.items():
        write(tmp_path, skill, text)
    (tmp_path / "no-skill").mkdir()
    book = read_skills([tmp_path, tmp_path / "nowhere"])
    assert book.skills["good"] == Skill("good", "What it is for.", "Do this.", str(tmp_path / "good" / "SKILL.md"))
    assert book.skills["debugging"].text == "Ours." and not book.skills["debugging"].built_in
    assert len(book.problems) == 8, book.problems
    for part in ("lower-case", "must begin with a head", "no description", "no YAML", "no text", "bytes", "over 1024"):
        assert any(part in problem for problem in book.problems), part


def test_an_agent_names_skills_that_are_there(tmp_path: Path) -> None:
    write(tmp_path / "ours", "release", HEAD + "x")
    path = tmp_path / "milepost.yaml"
    path.write_text("skills: {folders: [ours]}\nagents: {default: {skills: [release, debugging]}}\n", encoding="utf-8")
    assert load_config(path).agents["default"].skills == ("release", "debugging")
    path.write_text("agents:\n  default:\n    skills: [debuging]\n", encoding="utf-8")
    with pytest.raises(ConfigInvalid) as refused:
        load_config(path)
    assert refused.value.fix == "Did you mean 'debugging'?" and "line 3" in refused.value.message
    tool = "{type: python, effect: observe}"
    path.write_text(f"tools: {{skill_x: {tool}}}\n", encoding="utf-8")
    with pytest.raises(ConfigInvalid, match="skill_"):
        load_config(path)


async def test_a_session_chooses_and_a_model_loads(sqlite_url: str, tmp_path: Path) -> None:
    def answer(request: object) -> tuple[str, list[tuple[str, dict[str, object]]]]:
        names = [tool.name for tool in model.requests[-1].tools]
        wanted = [name for name in names if name.startswith("skill_")]
        first = model.requests[-1].call_number == 1
        return ("", [(wanted[0], {})]) if wanted and first else ("Done.", [])

    model = Model(answer)
    book = read_skills([])
    async with driven(sqlite_url, tmp_path, model, tools=SkillTools(NoCustomTools(), book.skills)) as driver:
        driver.agents["default"] = AgentConfig("default", "instant", "instant", skills=("debugging",))
        service = SkillService(driver.ledger, driver.clock, UuidIds(), book.skills)
        session = await driver.open()
        await driver.play(session, "One.")
        set_ = await service.set(session, ["writing-tests", "code-review", "code-review"], actor="test")
        assert set_.skills == ("code-review", "writing-tests")
        await service.set(session, ["code-review", "writing-tests"], actor="test")
        await driver.play(session, "Two.")
        await service.set(session, [], actor="test")
        await driver.play(session, "Three.")
        await service.set(session, None, actor="test")
        await driver.play(session, "Four.")
        with pytest.raises(InvalidInput) as refused:
            await service.set(session, ["code-reviev"], actor="test")
        assert refused.value.fix == "Did you mean 'code-review'?"
        events = await events_of(driver, session)
    started = [event for event in events if isinstance(event, AgentStarted)]
    offered = [[tool.name for tool in each.tools if tool.name.startswith("skill_")] for each in started]
    assert offered == [["skill_debugging"], ["skill_code-review", "skill_writing-tests"], [], ["skill_debugging"]]
    described = next(tool for tool in started[0].tools if tool.name == "skill_debugging")
    assert "find the cause" in described.description
    loaded = [event for event in events if isinstance(event, ToolFinished)]
    assert [event.tool for event in loaded] == ["skill_debugging", "skill_code-review", "skill_debugging"]
    assert loaded[0].output.text == book.skills["debugging"].text and not loaded[0].is_error
    assert len([event for event in events if isinstance(event, SessionSkillsSet)]) == 3, "the same again is no change"


def test_skills_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILEPOST_HOME", str(tmp_path / "home"))
    write(tmp_path / "ours", "release", "no head")
    (tmp_path / "milepost.yaml").write_text("skills: {folders: [ours]}\n", encoding="utf-8")

    def run(*arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(commands, ["skills", *arguments])
        assert done.exit_code == code, done.output
        return done.output

    found = json.loads(run("list", "--json"))
    assert [each["skill_id"] for each in found["skills"]] == ["code-review", "debugging", "writing-tests"]
    assert len(found["problems"]) == 1 and "must begin with a head" in run("list")
    assert run("show", "debugging").startswith("# Debugging")
    assert "milepost skills list" in run("show", "nothing", code=2)
