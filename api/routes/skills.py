"""Skills, and which ones a Session has."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from api.dependencies import Actor, AppServices, SessionId
from api.documentation import problems
from api.responses import reply
from api.schemas.sessions import SessionShape
from api.schemas.skills import SessionSkills, SkillList, SkillShape

router = APIRouter(prefix="/api/v1", tags=["skills"])


@router.get("/skills", response_model=SkillList, responses=problems(), summary="List skills")
async def list_skills(services: AppServices) -> Response:
    """Those that come along and those of the configured folders, as they were when the instance started."""
    found = services.skills
    return reply(
        SkillList(skills=[SkillShape.of(skill) for skill in found.skills.values()], problems=list(found.problems))
    )


@router.put(
    "/sessions/{session_id}/skills",
    response_model=SessionShape,
    responses=problems(400, 404, 409, 413, 422),
    summary="Set the skills of a Session",
)
async def set_skills(session_id: SessionId, body: SessionSkills, services: AppServices, actor: Actor) -> Response:
    """In place of those that its agents have. Counts from the next turn on."""
    return reply(SessionShape.of(await services.skills.set(session_id, body.skills, actor=actor)))
