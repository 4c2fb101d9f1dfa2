"""Terminals and background commands of Sessions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import BigInteger, Connection, Row, bindparam, select, update

from milepost.domain.processes import ProcessRecord
from milepost.ledger.codec import decode, encode
from milepost.storage.statements import insert_ignore
from milepost.storage.tables import processes

_ADD = insert_ignore(processes)
_THIS = processes.c.process_id == bindparam("of_process")
_PAGE = bindparam("page", type_=BigInteger)
_NEWEST = (processes.c.started_at.desc(), processes.c.process_id.desc())
_GET = select(processes.c.record).where(_THIS)
_OF = select(processes.c.record).where(processes.c.session_id == bindparam("session")).order_by(*_NEWEST).limit(_PAGE)
_RUNS = processes.c.ended_at.is_(None)
_RUNNING_OF = _OF.where(_RUNS)
_RUNNING_ON = select(processes.c.record).where(_RUNS, processes.c.host == bindparam("of_host")).limit(_PAGE)
_SAVE = (
    update(processes)
    .where(_THIS, _RUNS)
    .values(record=bindparam("new_record"), ended_at=bindparam("new_ended_at", type_=BigInteger))
)


class SqlProcesses:
    """`ports.ledger.Processes`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def add(self, record: ProcessRecord) -> bool:
        values: dict[str, Any] = {"process_id": record.process_id, "session_id": record.session_id, "host": record.host}
        values |= {"started_at": record.started_at, "ended_at": record.ended_at, "record": encode(record)}
        return self._conn.execute(_ADD.on(self._conn), values).rowcount == 1

    def get(self, process_id: str) -> ProcessRecord | None:
        row = self._conn.execute(_GET, {"of_process": process_id}).first()
        return None if row is None else decode(row.record, ProcessRecord)

    def save(self, record: ProcessRecord) -> bool:
        values = {"of_process": record.process_id, "new_record": encode(record), "new_ended_at": record.ended_at}
        return self._conn.execute(_SAVE, values).rowcount == 1

    def of_session(self, session_id: str, *, running: bool = False, limit: int = 200) -> list[ProcessRecord]:
        statement = _RUNNING_OF if running else _OF
        return _records(self._conn.execute(statement, {"session": session_id, "page": limit}))

    def running_on(self, host: str, limit: int = 1000) -> list[ProcessRecord]:
        return _records(self._conn.execute(_RUNNING_ON, {"of_host": host, "page": limit}))


def _records(rows: Iterable[Row[Any]]) -> list[ProcessRecord]:
    return [decode(row.record, ProcessRecord) for row in rows]
