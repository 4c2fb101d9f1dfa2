"""Approvals: one question about one effect, with one end."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Connection, and_, bindparam, case, literal, or_, select, update

from milepost.domain.approvals import Approval, ApprovalState
from milepost.domain.errors import ApprovalNotFound
from milepost.storage.statements import insert_ignore
from milepost.storage.tables import approvals

_PENDING = approvals.c.state == ApprovalState.PENDING.value
_THIS = approvals.c.approval_id == bindparam("approval")
_ADD = insert_ignore(approvals)
_GET = select(approvals).where(_THIS)
_OF_EFFECT = select(approvals).where(approvals.c.effect_id == bindparam("effect"))
_RESOLVE = (
    update(approvals)
    .where(_THIS, _PENDING)
    .values(
        state=bindparam("new_state"),
        resolved_at=bindparam("now"),
        actor=bindparam("by"),
        reason=bindparam("why"),
    )
    .returning(*approvals.c)
)
_OF_TURN = (
    select(approvals)
    .where(approvals.c.turn_id == bindparam("turn"), _PENDING)
    .order_by(approvals.c.requested_at, approvals.c.approval_id)
    .limit(bindparam("page", type_=BigInteger))
)
_RANK = case((_PENDING, 0), else_=1)
_PAGE = (
    select(approvals)
    .order_by(_RANK, approvals.c.requested_at.desc(), approvals.c.approval_id.desc())
    .limit(bindparam("page", type_=BigInteger))
)


class SqlApprovals:
    """`ports.ledger.Approvals`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def add(self, approval: Approval) -> None:
        values = {column.name: getattr(approval, column.name) for column in approvals.c}
        self._conn.execute(_ADD.on(self._conn), {**values, "state": approval.state.value})

    def get(self, approval_id: str) -> Approval:
        row = self._conn.execute(_GET, {"approval": approval_id}).first()
        if row is None:
            raise ApprovalNotFound(
                f"There is no approval {approval_id}.", fix="List them with `milepost approvals list`."
            )
        return _approval(row)

    def of_effect(self, effect_id: str) -> Approval | None:
        row = self._conn.execute(_OF_EFFECT, {"effect": effect_id}).first()
        return None if row is None else _approval(row)

    def resolve(
        self, approval_id: str, state: ApprovalState, at: int, actor: str, reason: str | None
    ) -> Approval | None:
        params = {"approval": approval_id, "new_state": state.value, "now": at, "by": actor, "why": reason}
        row = self._conn.execute(_RESOLVE, params).first()
        return None if row is None else _approval(row)

    def pending_of_turn(self, turn_id: str, limit: int) -> list[Approval]:
        return [_approval(row) for row in self._conn.execute(_OF_TURN, {"turn": turn_id, "page": limit})]

    def page(
        self, *, session_id: str | None, state: ApprovalState | None, after: str | None, limit: int
    ) -> list[Approval]:
        query = _PAGE
        if session_id is not None:
            query = query.where(approvals.c.session_id == session_id)
        if state is not None:
            query = query.where(approvals.c.state == state.value)
        if after is not None:
            last = self.get(after)
            rank = literal(0 if last.state is ApprovalState.PENDING else 1)
            earlier = or_(
                approvals.c.requested_at < last.requested_at,
                and_(approvals.c.requested_at == last.requested_at, approvals.c.approval_id < after),
            )
            query = query.where(or_(rank < _RANK, and_(rank == _RANK, earlier)))
        return [_approval(row) for row in self._conn.execute(query, {"page": limit})]


def _approval(row: Any) -> Approval:
    return Approval(**{**row._mapping, "state": ApprovalState(row.state)})
