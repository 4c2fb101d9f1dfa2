"""Leases and states of Workspaces, and file operations to be carried out."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from sqlalchemy import BigInteger, Connection, Row, bindparam, delete, insert, select, update

from milepost.domain.sessions import Workspace
from milepost.domain.workspaces import (
    LeasePurpose,
    Restore,
    RestoreKind,
    RestoreState,
    WorkspaceHead,
    WorkspaceLease,
    workspace_busy,
)
from milepost.storage.statements import PerDialect, insert_ignore
from milepost.storage.tables import (
    ledger_meta,
    turns,
    workspace_restores,
    workspace_states,
    workspace_waits,
    workspaces,
)

_FREE = {"holder": None, "purpose": None, "session_id": None, "since": None, "expires_at": None}
_THIS = workspace_states.c.workspace_id == bindparam("workspace")
_HELD_BY = workspace_states.c.holder == bindparam("by")
_ADD = insert_ignore(workspace_states)
# Whoever takes a lease looks at those of other folders too, so takers wait for each other. On SQLite they do anyway.
_ONE_TAKER = select(ledger_meta.c.id).with_for_update()
_HELD = (
    select(workspace_states, workspaces.c.path, turns.c.state.label("turn_state"))
    .join_from(workspace_states, workspaces)
    .join(turns, turns.c.turn_id == workspace_states.c.holder, isouter=True)
    .where(workspace_states.c.holder.is_not(None))
)
_TAKE = (
    update(workspace_states)
    .where(_THIS)
    .values(
        holder=bindparam("by"),
        purpose=bindparam("for_purpose"),
        session_id=bindparam("of_session"),
        since=bindparam("at"),
        expires_at=bindparam("until"),
        fence=workspace_states.c.fence + 1,
    )
)
_RENEW = update(workspace_states).where(_THIS, _HELD_BY).values(expires_at=bindparam("until"))
_GET = select(workspace_states).where(_THIS)
_RELEASE = update(workspace_states).where(_HELD_BY).values(**_FREE)
_FORGET = update(workspace_states).where(workspace_states.c.purpose != LeasePurpose.TURN.value).values(**_FREE)
_UNWAIT = delete(workspace_waits).where(workspace_waits.c.holder == bindparam("by"))
_WAIT = PerDialect(
    workspace_waits,
    lambda insert: insert.on_conflict_do_update(
        index_elements=[workspace_waits.c.holder],
        set_={"workspace_id": insert.excluded.workspace_id, "until": insert.excluded.until},
    ),
)
_WAITS = select(workspace_waits.c.until).where(workspace_waits.c.holder == bindparam("by"))
_HEAD = update(workspace_states).where(_THIS).values(tree=bindparam("new_tree"), turn_id=bindparam("by_turn"))
_RESTORES = (
    select(workspace_restores)
    .where(workspace_restores.c.state == RestoreState.PENDING.value)
    .order_by(workspace_restores.c.created_at, workspace_restores.c.restore_id)
    .limit(bindparam("page", type_=BigInteger))
)
_RESTORE = select(workspace_restores).where(workspace_restores.c.restore_id == bindparam("restore"))
_END = (
    update(workspace_restores)
    .where(
        workspace_restores.c.restore_id == bindparam("restore"),
        workspace_restores.c.state == RestoreState.PENDING.value,
    )
    .values(state=bindparam("new_state"), ended_at=bindparam("at"), error=bindparam("why"))
)


class SqlWorkspaces:
    """`ports.ledger.Workspaces`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def acquire(
        self, workspace: Workspace, holder: str, purpose: LeasePurpose, session_id: str, at: int, expires_at: int | None
    ) -> WorkspaceLease:
        self._conn.execute(_ONE_TAKER).all()
        self._row(workspace.workspace_id)
        found = self._in_the_way(workspace, at)
        other = next((lease for lease in found if lease.holder != holder), None)
        if other is not None:
            raise workspace_busy(other, workspace)
        params = {"workspace": workspace.workspace_id, "by": holder, "until": expires_at}
        if any(lease.workspace_id == workspace.workspace_id for lease in found):
            self._conn.execute(_RENEW, params)
        else:
            of = {"for_purpose": purpose.value, "of_session": session_id, "at": at}
            self._conn.execute(_TAKE, params | of)
        self._conn.execute(_UNWAIT, {"by": holder})
        return _lease(self._conn.execute(_GET, {"workspace": workspace.workspace_id}).one())

    def holder(self, workspace: Workspace, at: int) -> WorkspaceLease | None:
        return next(iter(self._in_the_way(workspace, at)), None)

    def _in_the_way(self, workspace: Workspace, at: int) -> list[WorkspaceLease]:
        found: list[WorkspaceLease] = []
        for row in self._conn.execute(_HELD):
            over = row.expires_at is not None and row.expires_at <= at
            # A turn gives its lease up when it ends; this is for one that could not.
            ended = row.purpose == LeasePurpose.TURN.value and row.turn_state != "running"
            if not over and not ended and _overlap(row.path, workspace.path):
                found.append(_lease(row))
        return found

    def held(self, workspace_id: str, holder: str, fence: int | None = None) -> bool:
        row = self._conn.execute(_GET, {"workspace": workspace_id}).first()
        return row is not None and row.holder == holder and fence in (None, row.fence)

    def release(self, holder: str) -> None:
        self._conn.execute(_RELEASE, {"by": holder})
        self._conn.execute(_UNWAIT, {"by": holder})

    def forget_operations(self) -> None:
        self._conn.execute(_FORGET)

    def wait(self, holder: str, workspace_id: str, until: int) -> None:
        self._conn.execute(_WAIT.on(self._conn), {"holder": holder, "workspace_id": workspace_id, "until": until})

    def waits(self, holder: str, at: int) -> bool:
        until = self._conn.execute(_WAITS, {"by": holder}).scalar()
        return until is not None and until > at

    def head(self, workspace_id: str) -> WorkspaceHead | None:
        row = self._conn.execute(_GET, {"workspace": workspace_id}).first()
        return None if row is None or row.tree is None else WorkspaceHead(row.tree, row.turn_id)

    def move_head(self, workspace_id: str, tree: str, turn_id: str | None) -> None:
        self._row(workspace_id)
        self._conn.execute(_HEAD, {"workspace": workspace_id, "new_tree": tree, "by_turn": turn_id})

    def add_restore(self, restore: Restore) -> None:
        values = {
            column.name: getattr(restore, column.name) for column in workspace_restores.c if column.name != "ended_at"
        }
        values |= {"kind": restore.kind.value, "state": restore.state.value}
        self._conn.execute(insert(workspace_restores), values)

    def restores(self, workspace_id: str | None = None, limit: int = 100) -> list[Restore]:
        query = _RESTORES
        if workspace_id is not None:
            query = query.where(workspace_restores.c.workspace_id == workspace_id)
        return [_restore(row) for row in self._conn.execute(query, {"page": limit})]

    def restore(self, restore_id: str) -> Restore | None:
        row = self._conn.execute(_RESTORE, {"restore": restore_id}).first()
        return None if row is None else _restore(row)

    def end_restore(self, restore_id: str, state: RestoreState, at: int, error: str | None = None) -> bool:
        params = {"restore": restore_id, "new_state": state.value, "at": at, "why": error}
        return self._conn.execute(_END, params).rowcount == 1

    def _row(self, workspace_id: str) -> None:
        self._conn.execute(_ADD.on(self._conn), {"workspace_id": workspace_id, "fence": 0})


def _overlap(one: str, other: str) -> bool:
    first, second = PurePosixPath(one), PurePosixPath(other)
    return first.is_relative_to(second) or second.is_relative_to(first)


def _lease(row: Row[Any]) -> WorkspaceLease:
    return WorkspaceLease(
        row.workspace_id, row.holder, LeasePurpose(row.purpose), row.session_id, row.fence, row.since, row.expires_at
    )


def _restore(row: Row[Any]) -> Restore:
    values = {name: value for name, value in row._mapping.items() if name != "ended_at"}
    return Restore(**{**values, "kind": RestoreKind(row.kind), "state": RestoreState(row.state)})
