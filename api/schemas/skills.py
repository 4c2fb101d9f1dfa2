"""Skills."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.schemas.base import Body, Shape, at_most
from milepost.domain.skills import MAX_SKILLS, Skill

SkillId = Annotated[str, *at_most(100)]
SkillIds = Annotated[list[SkillId], Field(max_length=MAX_SKILLS)]


class SkillShape(Shape):
    """A skill. `source` is its file."""

    skill_id: str
    description: str
    built_in: bool
    source: str

    @classmethod
    def of(cls, skill: Skill) -> SkillShape:
        return cls(skill_id=skill.skill_id, description=skill.description, built_in=skill.built_in, source=skill.source)


class SkillList(Shape):
    """`problems` say which files cannot be used, and why."""

    skills: list[SkillShape]
    problems: list[str]


class SessionSkills(Body):
    """The skills of a Session; null: each agent has its own."""

    skills: SkillIds | None
