"""Worker heartbeats, from which readers derive that a turn is recovering."""

from __future__ import annotations

from sqlalchemy import Connection, and_, bindparam, delete, func, select

from milepost.domain.effects import EffectState
from milepost.domain.tools import MAX_CALLS_PER_RESPONSE
from milepost.ledger.codec import canonical_bytes, parse
from milepost.ports.ledger import WorkerBeat
from milepost.storage.statements import PerDialect
from milepost.storage.tables import effects, workers

KEEP_SILENT_US = 7 * 24 * 3600 * 1_000_000
"""A worker that died without a goodbye is forgotten after a week, so that the table stays small."""

_BEAT = PerDialect(
    workers,
    lambda insert: insert.on_conflict_do_update(
        index_elements=[workers.c.worker],
        set_={"host": insert.excluded.host, "queues": insert.excluded.queues, "at": insert.excluded.at},
    ),
)
_FORGET = delete(workers).where(workers.c.at < bindparam("before"))
_GONE = delete(workers).where(workers.c.worker == bindparam("name"))
_LIVE = select(workers).where(workers.c.at >= bindparam("since")).order_by(workers.c.worker)
_LAST = select(func.max(workers.c.at))
# No more calls than one answer's can be open or can have ended last.
_STEPS = (
    select(
        effects.c.worker,
        effects.c.state,
        func.coalesce(effects.c.finished_at, effects.c.dispatched_at, effects.c.created_at).label("at"),
    )
    .where(effects.c.turn_id == bindparam("turn"))
    .order_by(effects.c.created_at.desc())
    .limit(MAX_CALLS_PER_RESPONSE)
    .subquery()
)
_OWNER = select(func.max(_STEPS.c.at), func.max(workers.c.at)).select_from(
    _STEPS.outerjoin(workers, and_(_STEPS.c.worker == workers.c.worker, _STEPS.c.state == EffectState.DISPATCHED.value))
)


class SqlWorkers:
    """`ports.ledger.Workers`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def beat(self, beat: WorkerBeat) -> None:
        self._conn.execute(
            _BEAT.on(self._conn),
            {
                "worker": beat.worker,
                "host": beat.host,
                "queues": canonical_bytes(list(beat.queues)),
                "at": beat.at,
            },
        )
        self._conn.execute(_FORGET, {"before": beat.at - KEEP_SILENT_US})

    def gone(self, worker: str) -> None:
        self._conn.execute(_GONE, {"name": worker})

    def live(self, since: int) -> list[WorkerBeat]:
        rows = self._conn.execute(_LIVE, {"since": since})
        return [WorkerBeat(row.worker, row.host, tuple(parse(row.queues)), row.at) for row in rows]

    def last_beat(self) -> int | None:
        return self._conn.execute(_LAST).scalar()

    def owner_seen(self, turn_id: str) -> int | None:
        step, beat = self._conn.execute(_OWNER, {"turn": turn_id}).one()
        return max((at for at in (step, beat) if at is not None), default=None)
