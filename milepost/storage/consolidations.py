"""Consolidations of memory."""

from __future__ import annotations

from sqlalchemy import BigInteger, Connection, bindparam, select, update

from milepost.domain.consolidation import Consolidation, ConsolidationState
from milepost.domain.errors import ConsolidationNotFound
from milepost.ledger.codec import decode, encode
from milepost.storage.columns import Utf8
from milepost.storage.statements import insert_ignore
from milepost.storage.tables import consolidations

_THIS = consolidations.c.consolidation_id == bindparam("this")
_ADD = insert_ignore(consolidations)
_GET = select(consolidations.c.detail).where(_THIS)
_LOCK = _GET.with_for_update()
_SAVE = (
    update(consolidations)
    .where(_THIS)
    .values(
        state=bindparam("new_state"),
        updated_at=bindparam("now", type_=BigInteger),
        detail=bindparam("new_detail"),
    )
)
_PAGE = select(consolidations.c.detail).order_by(
    consolidations.c.created_at.desc(), consolidations.c.consolidation_id.desc()
)
_NEWEST = _PAGE.where(
    consolidations.c.session_id == bindparam("session"),
    consolidations.c.agent == bindparam("of_agent", type_=Utf8),
).limit(bindparam("page", type_=BigInteger))


class SqlConsolidations:
    """`ports.ledger.Consolidations`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def add(self, new: Consolidation) -> Consolidation:
        row = {
            "consolidation_id": new.consolidation_id,
            "session_id": new.session_id,
            "agent": new.agent,
            "state": new.state.value,
            "created_at": new.created_at,
            "updated_at": new.updated_at,
            "detail": encode(new),
        }
        self._conn.execute(_ADD.on(self._conn), row)
        return self.lock(new.consolidation_id)

    def get(self, consolidation_id: str) -> Consolidation:
        return self._one(_GET, consolidation_id)

    def lock(self, consolidation_id: str) -> Consolidation:
        return self._one(_LOCK, consolidation_id)

    def _one(self, query: object, consolidation_id: str) -> Consolidation:
        row = self._conn.execute(query, {"this": consolidation_id}).first()  # type: ignore[call-overload]
        if row is None:
            raise ConsolidationNotFound(
                f"There is no consolidation {consolidation_id}.",
                field="consolidation_id",
                fix="List them with `milepost consolidations list`.",
            )
        return decode(row.detail, Consolidation)

    def save(self, changed: Consolidation) -> None:
        self._conn.execute(
            _SAVE,
            {
                "this": changed.consolidation_id,
                "new_state": changed.state.value,
                "now": changed.updated_at,
                "new_detail": encode(changed),
            },
        )

    def newest(self, session_id: str, agent: str, limit: int) -> list[Consolidation]:
        rows = self._conn.execute(_NEWEST, {"session": session_id, "of_agent": agent, "page": limit})
        return [decode(row.detail, Consolidation) for row in rows]

    def page(
        self, *, session_id: str | None, state: ConsolidationState | None, before: str | None, limit: int
    ) -> list[Consolidation]:
        query = _PAGE.limit(limit)
        if session_id is not None:
            query = query.where(consolidations.c.session_id == session_id)
        if state is not None:
            query = query.where(consolidations.c.state == state.value)
        if before is not None:
            last = self.get(before)
            query = query.where(
                (consolidations.c.created_at < last.created_at)
                | (
                    (consolidations.c.created_at == last.created_at)
                    & (consolidations.c.consolidation_id < last.consolidation_id)
                )
            )
        return [decode(row.detail, Consolidation) for row in self._conn.execute(query)]
