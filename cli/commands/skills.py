"""`milepost skills ...`."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.invocation import Invocation, command
from cli.routes import API
from milepost.domain.errors import InvalidInput
from milepost.domain.suggestions import nearest

SkillName = Annotated[str, typer.Argument(metavar="SKILL", help="Id of the skill.")]
Chosen = Annotated[list[str] | None, typer.Argument(metavar="SKILL...", help="Ids of the skills it shall have.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Skills: instructions that agents load when they need them.", no_args_is_help=True)
    app.add_typer(group, name="skills")
    command(group, "list")(list_skills)
    command(group, "show")(show)
    command(group, "set")(set_skills)


def list_skills(call: Invocation) -> None:
    """List the skills there are: those that come along, and those of the configured folders."""
    book = call.config.skills
    if call.json:
        shown = [
            {
                "skill_id": each.skill_id,
                "description": each.description,
                "built_in": each.built_in,
                "source": each.source,
            }
            for each in book.skills.values()
        ]
        call.out.document({"skills": shown, "problems": list(book.problems)})
        return
    rows = [
        [each.skill_id, "built in" if each.built_in else each.source, each.description[:80]]
        for each in book.skills.values()
    ]
    call.out.table(["SKILL", "FROM", "WHAT IT IS FOR"], rows)
    for problem in book.problems:
        call.out.note(problem, style="yellow")


def show(call: Invocation, skill: SkillName) -> None:
    """Print the text that an agent gets."""
    known = call.config.skills.skills
    found = known.get(skill)
    if found is None:
        fix = f"{nearest(skill, known)}See: milepost skills list"
        raise InvalidInput(f"There is no skill '{skill[:80]}'.", field="skill", fix=fix)
    if call.json:
        call.out.document({"skill_id": found.skill_id, "description": found.description, "text": found.text})
    else:
        call.out.write(f"{found.text}\n")


async def set_skills(
    call: Invocation,
    session: Annotated[str, typer.Argument(metavar="SESSION", help="Id of the Session.")],
    skill: Chosen = None,
    of_agent: Annotated[
        bool, typer.Option("--of-agent", help="Give back those that the Session's agents have by themselves.")
    ] = False,
) -> None:
    """Set which skills a Session has, from its next turn on; without any it has none."""
    from cli.connection import Need, reach

    if skill and of_agent:
        raise InvalidInput("Name skills, or --of-agent.", field="skills")
    async with reach(call, Need.WRITE) as reached:
        found = await reached.client.put(
            f"{API}/sessions/{session}/skills", {"skills": None if of_agent else skill or []}
        )
    if call.json:
        call.out.document(found)
        return
    own = found["skills"]
    said = "those of its agents" if own is None else ", ".join(own) or "none"
    call.out.line(f"The Session has these skills now: {said}.")
