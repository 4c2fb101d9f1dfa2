"""Skills: instructions for a kind of work, which an agent loads when it needs them."""

from __future__ import annotations

from dataclasses import dataclass

SKILL_ID = r"^[a-z0-9][a-z0-9-]{0,47}$"
SKILL_TOOL = "skill_"
"""A skill's tool is this and its id."""

MAX_SKILL_BYTES = 64 * 1024
MAX_SKILLS = 200
MAX_DESCRIPTION_CHARACTERS = 1024


@dataclass(frozen=True, slots=True)
class Skill:
    """`description` is what the model is told beforehand, `text` what it loads. `source` is the file, for people."""

    skill_id: str
    description: str
    text: str
    source: str
    built_in: bool = False

    @property
    def tool(self) -> str:
        """Name of the tool that loads it."""
        return f"{SKILL_TOOL}{self.skill_id}"


def skill_tools(skills: tuple[str, ...]) -> tuple[str, ...]:
    """The tools of skills, in a fixed order: the same skills make the same request."""
    return tuple(f"{SKILL_TOOL}{skill}" for skill in sorted(set(skills)))
