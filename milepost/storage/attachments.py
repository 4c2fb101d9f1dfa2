"""Attachments of Sessions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, and_, delete, insert, or_, select, update

from milepost.domain.attachments import Attachment, AttachmentRef, AttachmentScope, AttachmentState
from milepost.domain.errors import AttachmentNotFound
from milepost.ledger.codec import decode, encode
from milepost.storage.tables import attachments

_ONCE = AttachmentScope.ONCE.value
_OPEN = (AttachmentState.PENDING.value, AttachmentState.EXTRACTING.value)
_SELECTED = and_(attachments.c.removed_at.is_(None), or_(attachments.c.scope != _ONCE, attachments.c.used_by.is_(None)))
_COLUMNS = [column for column in attachments.columns if column.name != "text"]


class SqlAttachments:
    """`ports.ledger.Attachments`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def add(self, attachment: Attachment, text: str | None = None) -> None:
        values = {
            "attachment_id": attachment.ref.attachment_id,
            "session_id": attachment.session_id,
            "scope": attachment.scope.value,
            "created_at": attachment.created_at,
            "tried_at": attachment.tried_at,
            "used_by": attachment.used_by,
            "removed_at": attachment.removed_at,
        }
        self._conn.execute(insert(attachments), values | _settled(attachment.ref, text))

    def get(self, attachment_id: str) -> Attachment:
        found = self.find(attachment_id)
        if found is None:
            raise AttachmentNotFound(
                f"There is no attachment '{attachment_id}'.",
                fix="List a Session's attachments: milepost attachments list SESSION",
            )
        return found

    def find(self, attachment_id: str) -> Attachment | None:
        row = self._conn.execute(select(*_COLUMNS).where(attachments.c.attachment_id == attachment_id)).first()
        return None if row is None else _attachment(row)

    def text(self, attachment_id: str) -> str | None:
        query = select(attachments.c.text).where(attachments.c.attachment_id == attachment_id)
        return self._conn.execute(query).scalar()

    def selected(self, session_id: str, limit: int) -> list[Attachment]:
        query = select(*_COLUMNS).where(attachments.c.session_id == session_id, _SELECTED)
        query = query.order_by(attachments.c.created_at, attachments.c.attachment_id)
        return [_attachment(row) for row in self._conn.execute(query.limit(limit))]

    def page(self, session_id: str, *, before: str | None, limit: int) -> list[Attachment]:
        query = select(*_COLUMNS).where(attachments.c.session_id == session_id)
        if before is not None:
            last = self.get(before)
            at, key = attachments.c.created_at, attachments.c.attachment_id
            query = query.where(or_(at < last.created_at, and_(at == last.created_at, key < before)))
        query = query.order_by(attachments.c.created_at.desc(), attachments.c.attachment_id.desc())
        return [_attachment(row) for row in self._conn.execute(query.limit(limit))]

    def count(self, session_id: str, limit: int) -> int:
        query = select(attachments.c.attachment_id).where(attachments.c.session_id == session_id).limit(limit)
        return len(self._conn.execute(query).all())

    def take(self, attachment_id: str, at: int, before: int) -> bool:
        free = or_(attachments.c.state == AttachmentState.PENDING.value, attachments.c.tried_at < before)
        where = (attachments.c.attachment_id == attachment_id, attachments.c.state.in_(_OPEN), free)
        values = {"state": AttachmentState.EXTRACTING.value, "tried_at": at}
        return self._conn.execute(update(attachments).where(*where).values(values)).rowcount == 1

    def settle(self, ref: AttachmentRef, text: str | None) -> bool:
        where = (attachments.c.attachment_id == ref.attachment_id, attachments.c.state.in_(_OPEN))
        return self._conn.execute(update(attachments).where(*where).values(_settled(ref, text))).rowcount == 1

    def release(self) -> None:
        open_ = attachments.c.state == AttachmentState.EXTRACTING.value
        self._conn.execute(update(attachments).where(open_).values(tried_at=0))

    def use(self, attachment_id: str, turn_id: str) -> None:
        self._change(attachment_id, used_by=turn_id)

    def remove(self, attachment_id: str, at: int) -> None:
        self._change(attachment_id, removed_at=at)

    def delete(self, attachment_id: str) -> None:
        self._conn.execute(delete(attachments).where(attachments.c.attachment_id == attachment_id))

    def _change(self, attachment_id: str, **values: Any) -> None:
        self._conn.execute(update(attachments).where(attachments.c.attachment_id == attachment_id).values(values))


def _settled(ref: AttachmentRef, text: str | None) -> dict[str, Any]:
    return {"state": ref.state.value, "ref": encode(ref), "text": text}


def _attachment(row: Row[Any]) -> Attachment:
    return Attachment(
        session_id=row.session_id,
        scope=AttachmentScope(row.scope),
        ref=replace(decode(row.ref, AttachmentRef), state=AttachmentState(row.state)),
        created_at=row.created_at,
        tried_at=row.tried_at,
        used_by=row.used_by,
        removed_at=row.removed_at,
    )
