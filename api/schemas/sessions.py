"""Sessions."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import Field

from api.schemas.base import Body, Query, Shape, at_most
from api.schemas.budgets import BudgetBody
from api.schemas.skills import SkillIds
from api.times import rfc3339, rfc3339_or_none
from milepost.domain.errors import InvalidInput
from milepost.domain.sessions import Session, SessionMode, SessionStatus
from milepost.services.sessions import OpenSession

MAX_LIMIT = 100
ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
IMAGE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}$"

PathText = Annotated[str, *at_most(4096)]
Title = Annotated[str, *at_most(1000)]
AgentName = Annotated[str, *at_most(200)]


class SessionOpen(Body):
    """What a person chooses when opening a Session."""

    workspace: Annotated[PathText, Field(description="Absolute path of a folder on the instance's host.")]
    title: Title | None = None
    agents: Annotated[list[AgentName], Field(max_length=32, default_factory=list)]
    mode: Literal["single", "multi", "coordinator"] | None = None
    image: Annotated[str | None, Field(pattern=IMAGE_PATTERN)] = None
    budget: BudgetBody | None = None
    ports: Annotated[
        list[Annotated[int, Field(ge=1, le=65535)]],
        Field(max_length=20, default_factory=list, description="Ports of the sandbox to publish on loopback."),
    ]

    skills: Annotated[SkillIds | None, Field(description="Skills of the Session; without it those of its agents.")] = (
        None
    )

    def command(self) -> OpenSession:
        """Raises InvalidInput for a path that is not absolute (the caller's folder is not the server's)."""
        absolute_path(self.workspace)
        limits = None if self.budget is None else self.budget.limits()
        mode = None if self.mode is None else SessionMode(self.mode)
        ports, skills = tuple(self.ports), None if self.skills is None else tuple(self.skills)
        return OpenSession(self.workspace, self.title, tuple(self.agents), mode, self.image, limits, ports, skills)


def absolute_path(path: str) -> str:
    """The path. Raises InvalidInput unless it is absolute."""
    if not path.startswith("/") or not _encodable(path):
        raise InvalidInput(
            "The workspace must be an absolute path.",
            field="workspace",
            fix="Send the full path of the folder, beginning with '/'.",
        )
    return path


def _encodable(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


class SessionsQuery(Query):
    """A page of Sessions."""

    status: Literal["active", "closed"] | None = None
    cursor: Annotated[str | None, Field(pattern=ID_PATTERN)] = None
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 50

    def wanted(self) -> SessionStatus | None:
        return None if self.status is None else SessionStatus(self.status)


class WorkspaceShape(Shape):
    """A folder: the repository boundary."""

    workspace_id: str
    path: str


class SessionShape(Shape):
    """A Session. Times are RFC 3339 in UTC."""

    session_id: str
    title: str
    mode: str
    status: str
    agents: list[str]
    workspace: WorkspaceShape
    image: str | None
    skills: list[str] | None
    created_at: str
    closed_at: str | None

    @classmethod
    def of(cls, session: Session) -> SessionShape:
        return cls(
            session_id=session.session_id,
            title=session.title,
            mode=session.mode.value,
            status=session.status.value,
            agents=list(session.agents),
            workspace=WorkspaceShape(workspace_id=session.workspace.workspace_id, path=session.workspace.path),
            image=session.image,
            skills=None if session.skills is None else list(session.skills),
            created_at=rfc3339(session.created_at),
            closed_at=rfc3339_or_none(session.closed_at),
        )


class SessionPage(Shape):
    """Newest first. `next_cursor` continues the list, null at its end."""

    sessions: list[SessionShape]
    next_cursor: str | None
