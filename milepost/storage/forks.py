"""Forks of Sessions."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Connection, Row, bindparam, insert, select, update

from milepost.domain.forks import Fork, ForkState
from milepost.storage.tables import forks

_GET = select(forks).where(forks.c.session_id == bindparam("session"))
_SAVE = (
    update(forks)
    .where(forks.c.session_id == bindparam("session"))
    .values(
        done_number=bindparam("new_done"),
        copied=bindparam("new_copied"),
        state=bindparam("new_state"),
        error=bindparam("new_error"),
    )
)
_COPYING = (
    select(forks)
    .where(forks.c.state == ForkState.COPYING.value, forks.c.created_at < bindparam("before"))
    .order_by(forks.c.created_at, forks.c.session_id)
    .limit(bindparam("page", type_=BigInteger))
)


class SqlForks:
    """`ports.ledger.Forks`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def add(self, fork: Fork) -> None:
        values = {column.name: getattr(fork, column.name) for column in forks.c}
        self._conn.execute(insert(forks), {**values, "state": fork.state.value})

    def get(self, session_id: str) -> Fork | None:
        row = self._conn.execute(_GET, {"session": session_id}).first()
        return None if row is None else _fork(row)

    def save(self, fork: Fork) -> None:
        values = {
            "session": fork.session_id,
            "new_done": fork.done_number,
            "new_copied": fork.copied,
            "new_state": fork.state.value,
            "new_error": fork.error,
        }
        self._conn.execute(_SAVE, values)

    def copying(self, before: int, limit: int = 100) -> list[Fork]:
        return [_fork(row) for row in self._conn.execute(_COPYING, {"before": before, "page": limit})]


def _fork(row: Row[Any]) -> Fork:
    return Fork(**{**row._mapping, "state": ForkState(row.state)})
