"""What the auction remembers of declared workers."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, select

from milepost.ports.ledger import WorkerRecord
from milepost.storage.columns import Utf8
from milepost.storage.statements import PerDialect
from milepost.storage.tables import worker_records as records

_GET = select(records.c.finished, records.c.succeeded).where(records.c.agent == bindparam("of", type_=Utf8))
_COUNT = PerDialect(
    records,
    lambda insert: insert.on_conflict_do_update(
        index_elements=[records.c.agent],
        set_={
            "finished": records.c.finished + insert.excluded.finished,
            "succeeded": records.c.succeeded + insert.excluded.succeeded,
            "updated_at": insert.excluded.updated_at,
        },
    ),
)


class SqlWorkerRecords:
    """`ports.ledger.WorkerRecords`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def get(self, agent: str) -> WorkerRecord:
        row = self._conn.execute(_GET, {"of": agent}).first()
        return WorkerRecord() if row is None else WorkerRecord(row.finished, row.succeeded)

    def count(self, agent: str, succeeded: bool, at: int) -> None:
        values = {"agent": agent, "finished": 1, "succeeded": int(succeeded), "updated_at": at}
        self._conn.execute(_COUNT.on(self._conn), values)
