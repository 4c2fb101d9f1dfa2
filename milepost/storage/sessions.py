"""Workspaces and Sessions."""

from __future__ import annotations

import hashlib
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, delete, insert, or_, select, update

from milepost.domain.errors import SessionNotFound
from milepost.domain.sessions import Session, SessionMode, SessionStatus, Workspace
from milepost.ledger.codec import canonical_bytes, parse
from milepost.storage.statements import insert_ignore
from milepost.storage.tables import session_skills, sessions, workspaces

_ADD = insert(sessions)
_ADD_WORKSPACE = insert_ignore(workspaces)
_WORKSPACE = select(workspaces.c.workspace_id, workspaces.c.path, workspaces.c.created_at).where(
    workspaces.c.path_digest == bindparam("digest")
)
_SELECT = select(
    sessions,
    session_skills.c.skills,
    workspaces.c.path.label("workspace_path"),
    workspaces.c.created_at.label("workspace_created_at"),
).select_from(sessions.join(workspaces).outerjoin(session_skills))
_GET = _SELECT.where(sessions.c.session_id == bindparam("session"))
_PAGE = _SELECT.order_by(sessions.c.created_at.desc(), sessions.c.session_id.desc())
_ADD_SKILLS = insert(session_skills)
_DROP_SKILLS = delete(session_skills).where(session_skills.c.session_id == bindparam("session"))
_SET_STATUS = (
    update(sessions)
    .where(sessions.c.session_id == bindparam("session"))
    .values(status=bindparam("new_status"), closed_at=bindparam("new_closed_at"))
)


class SqlSessions:
    """`ports.ledger.Sessions`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def add(self, session: Session) -> None:
        self._conn.execute(
            _ADD,
            {
                "session_id": session.session_id,
                "workspace_id": session.workspace.workspace_id,
                "title": session.title,
                "mode": session.mode.value,
                "status": session.status.value,
                "agents": canonical_bytes(list(session.agents)),
                "image": session.image,
                "created_at": session.created_at,
                "closed_at": session.closed_at,
            },
        )
        if session.skills is not None:
            self.set_skills(session.session_id, session.skills)

    def set_skills(self, session_id: str, skills: tuple[str, ...] | None) -> None:
        self._conn.execute(_DROP_SKILLS, {"session": session_id})
        if skills is not None:
            self._conn.execute(_ADD_SKILLS, {"session_id": session_id, "skills": canonical_bytes(list(skills))})

    def get(self, session_id: str) -> Session:
        row = self._conn.execute(_GET, {"session": session_id}).first()
        if row is None:
            raise missing(session_id)
        return _session(row)

    def exists(self, session_id: str) -> bool:
        return self._conn.execute(_GET, {"session": session_id}).first() is not None

    def has_workspace(self, path: str) -> bool:
        digest = hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()
        return self._conn.execute(_WORKSPACE, {"digest": digest}).first() is not None

    def page(self, *, status: SessionStatus | None, before: str | None, limit: int) -> list[Session]:
        query = _PAGE.limit(limit)
        if status is not None:
            query = query.where(sessions.c.status == status.value)
        if before is not None:
            last = self.get(before)
            query = query.where(
                or_(
                    sessions.c.created_at < last.created_at,
                    and_(sessions.c.created_at == last.created_at, sessions.c.session_id < before),
                )
            )
        return [_session(row) for row in self._conn.execute(query)]

    def set_status(self, session_id: str, status: SessionStatus, closed_at: int | None) -> None:
        done = self._conn.execute(
            _SET_STATUS, {"session": session_id, "new_status": status.value, "new_closed_at": closed_at}
        )
        if done.rowcount == 0:
            raise missing(session_id)

    def workspace(self, path: str, new: Workspace) -> Workspace:
        digest = hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()
        row = self._conn.execute(_WORKSPACE, {"digest": digest}).first()
        if row is None:
            self._conn.execute(
                _ADD_WORKSPACE.on(self._conn),
                {
                    "workspace_id": new.workspace_id,
                    "path": path,
                    "path_digest": digest,
                    "created_at": new.created_at,
                },
            )
            # Read again: another writer may have been first.
            row = self._conn.execute(_WORKSPACE, {"digest": digest}).one()
        return Workspace(row.workspace_id, row.path, row.created_at)


def missing(session_id: str) -> SessionNotFound:
    return SessionNotFound(f"There is no Session {session_id}.", fix="List Sessions with `milepost session list`.")


def _session(row: Row[Any]) -> Session:
    return Session(
        session_id=row.session_id,
        workspace=Workspace(row.workspace_id, row.workspace_path, row.workspace_created_at),
        title=row.title,
        mode=SessionMode(row.mode),
        status=SessionStatus(row.status),
        agents=tuple(parse(row.agents)),
        image=row.image,
        created_at=row.created_at,
        closed_at=row.closed_at,
        skills=None if row.skills is None else tuple(parse(row.skills)),
    )
