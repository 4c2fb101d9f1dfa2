"""Which files a turn that is accepted now refers to."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.domain.attachments import MAX_SELECTED, Attachment, AttachmentRef, AttachmentScope
from milepost.domain.content import Content
from milepost.domain.events import AttachmentConsumed
from milepost.ports.ledger import LedgerTx, NewEvent


@dataclass(frozen=True, slots=True)
class Selection:
    """`refs` are a part of the request; `consumed` are events that follow the turn's begin."""

    refs: tuple[AttachmentRef, ...]
    consumed: tuple[NewEvent, ...]


def select_attachments(tx: LedgerTx, session_id: str, turn_id: str, *, once: bool) -> Selection:
    """What the turn refers to; once-scoped files are used up in the same transaction.

    Without `once` (a retry) they are left to the next turn. The caller holds the Session's lock.
    """
    found = [
        item
        for item in tx.attachments.selected(session_id, MAX_SELECTED)
        if once or item.scope is AttachmentScope.SESSION
    ]
    return Selection(
        tuple(item.ref for item in found),
        tuple(_consumed(tx, turn_id, item) for item in found if _is_new(tx, item)),
    )


def consumed_key(turn_id: str, attachment_id: str) -> str:
    """The key of the event that a turn has taken a file into the conversation."""
    return f"{turn_id}/attachment/{attachment_id}"


def _is_new(tx: LedgerTx, item: Attachment) -> bool:
    """Whether no turn that counts has taken it into the conversation yet."""
    if item.scope is AttachmentScope.ONCE:
        return True
    if not item.ref.state.settled:
        return False
    return item.used_by is None or tx.turns.get(item.used_by).superseded


def _consumed(tx: LedgerTx, turn_id: str, item: Attachment) -> NewEvent:
    ref = item.ref
    tx.attachments.use(ref.attachment_id, turn_id)
    text = tx.attachments.text(ref.attachment_id)
    event = AttachmentConsumed(
        turn_id, ref.attachment_id, ref.name, item.scope, ref.state, None if text is None else Content(text)
    )
    return NewEvent(consumed_key(turn_id, ref.attachment_id), event, turn_id)
