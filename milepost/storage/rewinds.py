"""Rewinds of Sessions."""

from __future__ import annotations

from sqlalchemy import BigInteger, Connection, and_, bindparam, insert, or_, select

from milepost.domain.rewinds import Rewind
from milepost.storage.tables import rewinds

_GET = select(rewinds).where(rewinds.c.rewind_id == bindparam("rewind"))
_PAGE = (
    select(rewinds)
    .where(rewinds.c.session_id == bindparam("session"))
    .order_by(rewinds.c.created_at.desc(), rewinds.c.rewind_id.desc())
    .limit(bindparam("page", type_=BigInteger))
)


class SqlRewinds:
    """`ports.ledger.Rewinds`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def add(self, rewind: Rewind) -> None:
        self._conn.execute(insert(rewinds), {column.name: getattr(rewind, column.name) for column in rewinds.c})

    def get(self, rewind_id: str) -> Rewind | None:
        row = self._conn.execute(_GET, {"rewind": rewind_id}).first()
        return None if row is None else Rewind(**row._mapping)

    def ending_between(self, session_id: str, first: int, last: int, *, limit: int = 200) -> list[Rewind]:
        query = _PAGE.where(rewinds.c.last_number.between(first, last))
        return [Rewind(**row._mapping) for row in self._conn.execute(query, {"session": session_id, "page": limit})]

    def of_session(self, session_id: str, *, before: str | None = None, limit: int = 200) -> list[Rewind]:
        query = _PAGE
        last = None if before is None else self.get(before)
        if last is not None:
            older = and_(rewinds.c.created_at == last.created_at, rewinds.c.rewind_id < last.rewind_id)
            query = query.where(or_(rewinds.c.created_at < last.created_at, older))
        rows = self._conn.execute(query, {"session": session_id, "page": limit})
        return [Rewind(**row._mapping) for row in rows]
