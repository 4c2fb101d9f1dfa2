"""The outbox: commands for peers, delivered at least once by leased loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import BigInteger, Connection, and_, bindparam, delete, or_, select, update

from milepost.ports.ledger import OutboxItem, OutboxKind
from milepost.ports.notifier import OUTBOX_TOPIC
from milepost.storage.statements import insert_ignore
from milepost.storage.tables import outbox

CLOCK_STEP_US = 600_000_000
"""Nothing is due or leased further ahead than this: what claims to be was written before the clock went back."""

_OPEN = and_(outbox.c.delivered_at.is_(None), outbox.c.dropped_at.is_(None))
_ITEM = (
    outbox.c.item_id,
    outbox.c.kind,
    outbox.c.subject,
    outbox.c.created_at,
    outbox.c.attempts,
    outbox.c.last_error,
)
_ADD = insert_ignore(outbox)
_DUE = (
    select(outbox.c.item_id)
    .where(
        _OPEN,
        or_(outbox.c.due_at <= bindparam("now"), outbox.c.due_at > bindparam("never")),
        or_(
            outbox.c.leased_until.is_(None),
            outbox.c.leased_until <= bindparam("now"),
            outbox.c.leased_until > bindparam("never"),
        ),
    )
    .order_by(outbox.c.created_at, outbox.c.item_id)
    .limit(bindparam("page", type_=BigInteger))
    .with_for_update(skip_locked=True)
)
_TAKE = (
    update(outbox)
    .where(outbox.c.item_id.in_(bindparam("items", expanding=True)))
    .values(leased_by=bindparam("owner"), leased_until=bindparam("until"), attempts=outbox.c.attempts + 1)
    .returning(*_ITEM)
)
_DELIVERED = (
    update(outbox)
    .where(outbox.c.item_id == bindparam("item"), outbox.c.delivered_at.is_(None))
    .values(delivered_at=bindparam("now"), leased_by=None, leased_until=None)
)
_RETRY = (
    update(outbox)
    .where(outbox.c.item_id == bindparam("item"), _OPEN)
    .values(due_at=bindparam("due"), last_error=bindparam("error"), leased_by=None, leased_until=None)
)
_DROP = delete(outbox).where(outbox.c.subject == bindparam("of"))
_PENDING = (
    select(*_ITEM)
    .where(outbox.c.subject == bindparam("of"), _OPEN)
    .order_by(outbox.c.created_at, outbox.c.item_id)
    .limit(1)
)


class SqlOutbox:
    """`ports.ledger.Outbox`. A new item wakes the dispatchers after the commit."""

    def __init__(self, conn: Connection, notify: Callable[[str], None]) -> None:
        self._conn = conn
        self._notify = notify

    def add(self, kind: OutboxKind, subject: str, at: int) -> None:
        added = self._conn.execute(
            _ADD.on(self._conn),
            {
                "item_id": f"{kind.value}:{subject}",
                "kind": kind.value,
                "subject": subject,
                "created_at": at,
                "due_at": at,
                "attempts": 0,
            },
        )
        if added.rowcount:
            self._notify(OUTBOX_TOPIC)

    def lease(self, owner: str, at: int, lease_us: int, limit: int) -> list[OutboxItem]:
        due = list(self._conn.execute(_DUE, {"now": at, "never": at + CLOCK_STEP_US, "page": limit}).scalars())
        if not due:
            return []
        taken = self._conn.execute(_TAKE, {"items": due, "owner": owner, "until": at + lease_us})
        # RETURNING promises no order.
        return sorted((_item(row) for row in taken), key=lambda item: (item.created_at, item.item_id))

    def delivered(self, item_id: str, at: int) -> None:
        self._conn.execute(_DELIVERED, {"item": item_id, "now": at})

    def retry(self, item_id: str, due_at: int, error: str) -> None:
        self._conn.execute(_RETRY, {"item": item_id, "due": due_at, "error": error})

    def drop(self, subject: str) -> None:
        self._conn.execute(_DROP, {"of": subject})

    def pending(self, subject: str) -> OutboxItem | None:
        row = self._conn.execute(_PENDING, {"of": subject}).first()
        return None if row is None else _item(row)


def _item(row: Any) -> OutboxItem:
    return OutboxItem(
        item_id=row.item_id,
        kind=OutboxKind(row.kind),
        subject=row.subject,
        created_at=row.created_at,
        attempts=row.attempts,
        last_error=row.last_error,
    )
