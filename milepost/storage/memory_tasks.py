"""Work on memory that is to be done: at least once, by leased loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import BigInteger, Connection, and_, bindparam, delete, func, or_, select, update

from milepost.ports.memory_rows import MemoryTask, MemoryTaskKind
from milepost.ports.notifier import MEMORY_TOPIC
from milepost.storage.outbox import CLOCK_STEP_US
from milepost.storage.statements import insert_ignore
from milepost.storage.tables import memory_tasks

_TASK = (
    memory_tasks.c.kind,
    memory_tasks.c.subject,
    memory_tasks.c.session_id,
    memory_tasks.c.created_at,
    memory_tasks.c.attempts,
    memory_tasks.c.last_error,
)
_THIS = and_(memory_tasks.c.kind == bindparam("this_kind"), memory_tasks.c.subject == bindparam("this_subject"))
_ADD_TASK = insert_ignore(memory_tasks)
_DUE = (
    select(memory_tasks.c.kind, memory_tasks.c.subject)
    .where(
        # What lies further ahead was written before the clock went back.
        or_(memory_tasks.c.due_at <= bindparam("now"), memory_tasks.c.due_at > bindparam("never")),
        or_(
            memory_tasks.c.leased_until.is_(None),
            memory_tasks.c.leased_until <= bindparam("now"),
            memory_tasks.c.leased_until > bindparam("never"),
        ),
    )
    .order_by(memory_tasks.c.created_at, memory_tasks.c.subject)
    .limit(bindparam("page", type_=BigInteger))
    .with_for_update(skip_locked=True)
)
_TAKE = (
    update(memory_tasks)
    .where(_THIS)
    .values(leased_by=bindparam("owner"), leased_until=bindparam("until"), attempts=memory_tasks.c.attempts + 1)
    .returning(*_TASK)
)
_RENEW = (
    update(memory_tasks)
    .where(_THIS, memory_tasks.c.leased_by == bindparam("owner"))
    .values(leased_until=bindparam("until"))
)
_DONE = delete(memory_tasks).where(_THIS)
_RETRY = (
    update(memory_tasks)
    .where(_THIS)
    .values(due_at=bindparam("due"), last_error=bindparam("error"), leased_by=None, leased_until=None)
)
_OF_SESSION = (
    select(*_TASK)
    .where(memory_tasks.c.session_id == bindparam("session"))
    .order_by(memory_tasks.c.created_at, memory_tasks.c.subject)
    .limit(1000)
)
_FORGET_LEASES = update(memory_tasks).values(leased_by=None, leased_until=None)
_COUNT = select(func.count()).select_from(memory_tasks)


class SqlMemoryTasks:
    """`ports.memory_rows.MemoryTasks`. A new task wakes the loops after the commit."""

    def __init__(self, conn: Connection, notify: Callable[[str], None]) -> None:
        self._conn = conn
        self._notify = notify

    def add(self, kind: MemoryTaskKind, subject: str, session_id: str, at: int) -> None:
        row = {
            "kind": kind.value,
            "subject": subject,
            "session_id": session_id,
            "created_at": at,
            "due_at": at,
            "attempts": 0,
        }
        if self._conn.execute(_ADD_TASK.on(self._conn), row).rowcount:
            self._notify(MEMORY_TOPIC)

    def lease(self, owner: str, at: int, lease_us: int, limit: int) -> list[MemoryTask]:
        due = self._conn.execute(_DUE, {"now": at, "never": at + CLOCK_STEP_US, "page": limit}).all()
        taken = []
        for kind, subject in due:
            params = {"this_kind": kind, "this_subject": subject, "owner": owner, "until": at + lease_us}
            taken.append(_task(self._conn.execute(_TAKE, params).one()))
        return taken

    def renew(self, task: MemoryTask, owner: str, until: int) -> bool:
        return self._conn.execute(_RENEW, {**_this(task), "owner": owner, "until": until}).rowcount == 1

    def done(self, task: MemoryTask) -> None:
        self._conn.execute(_DONE, _this(task))

    def retry(self, task: MemoryTask, due_at: int, error: str) -> None:
        self._conn.execute(_RETRY, {**_this(task), "due": due_at, "error": error})

    def of_session(self, session_id: str) -> list[MemoryTask]:
        return [_task(row) for row in self._conn.execute(_OF_SESSION, {"session": session_id})]

    def forget_leases(self) -> None:
        self._conn.execute(_FORGET_LEASES)

    def count(self) -> int:
        return self._conn.execute(_COUNT).scalar_one()


def _this(task: MemoryTask) -> dict[str, str]:
    return {"this_kind": task.kind.value, "this_subject": task.subject}


def _task(row: Any) -> MemoryTask:
    return MemoryTask(
        kind=MemoryTaskKind(row.kind),
        subject=row.subject,
        session_id=row.session_id,
        created_at=row.created_at,
        attempts=row.attempts,
        last_error=row.last_error,
    )
