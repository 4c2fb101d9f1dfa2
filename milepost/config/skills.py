"""Reading skills: those that come along, and folders of `ID/SKILL.md`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from milepost.domain.skills import MAX_DESCRIPTION_CHARACTERS, MAX_SKILL_BYTES, MAX_SKILLS, SKILL_ID, Skill

BUILT_IN = Path(__file__).parent / "builtin_skills"
FILE_NAME = "SKILL.md"

_HEAD = re.compile(r"\A---[ \t]*\n(.*?\n)---[ \t]*(?:\n|\Z)(.*)\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SkillBook:
    """The skills there are, by id, and what is wrong with those that cannot be used."""

    skills: Mapping[str, Skill] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def read_skills(folders: Sequence[Path]) -> SkillBook:
    """Read all of them; one in a later folder replaces one of the same id before it."""
    found: dict[str, Skill] = {}
    problems: list[str] = []
    for folder in (BUILT_IN, *folders):
        if not folder.is_dir():
            problems.append(f"{folder}: there is no such folder.")
            continue
        for path in _files(folder):
            skill = _read(path, built_in=folder == BUILT_IN)
            if isinstance(skill, str):
                problems.append(skill)
            elif len(found) >= MAX_SKILLS and skill.skill_id not in found:
                problems.append(f"{path}: there are over {MAX_SKILLS} skills.")
            else:
                found[skill.skill_id] = skill
    return SkillBook(dict(sorted(found.items())), tuple(problems[:MAX_SKILLS]))


def _files(folder: Path) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())[: 4 * MAX_SKILLS]
    except OSError:
        entries = []
    return (entry / FILE_NAME for entry in entries if (entry / FILE_NAME).is_file())


def _read(path: Path, *, built_in: bool) -> Skill | str:
    """The skill of a file, or what is wrong with it."""
    skill_id = path.parent.name
    if not re.fullmatch(SKILL_ID, skill_id):
        return f"{path}: a skill's folder is named with lower-case letters, digits and '-', at most 48."
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SKILL_BYTES + 1)
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        return f"{path}: it cannot be read ({type(error).__name__})."
    if len(data) > MAX_SKILL_BYTES:
        return f"{path}: it is over {MAX_SKILL_BYTES} bytes."
    parts = _HEAD.match(text)
    if parts is None:
        return f"{path}: it must begin with a head between two lines '---' that has a description."
    try:
        head = YAML(typ="safe", pure=True).load(parts[1])
    except (YAMLError, ValueError, RecursionError):
        return f"{path}: its head is no YAML."
    description = head.get("description") if isinstance(head, dict) else None
    if not isinstance(description, str) or not description.strip():
        return f"{path}: its head has no description."
    if len(description) > MAX_DESCRIPTION_CHARACTERS:
        return f"{path}: its description is over {MAX_DESCRIPTION_CHARACTERS} characters."
    body = parts[2].strip()
    if not body:
        return f"{path}: it has no text."
    return Skill(skill_id, " ".join(description.split()), body, str(path), built_in)
