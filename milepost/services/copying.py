"""The files of a fork: what copied turns refer to, and what its next turns get."""

from __future__ import annotations

from dataclasses import replace

from milepost.domain.attachments import MAX_SELECTED, Attachment, AttachmentScope
from milepost.domain.turns import Turn
from milepost.ledger.copies import copied_id, copied_ref
from milepost.ports.ledger import LedgerTx


def copy_selection(tx: LedgerTx, source: str, fork: str) -> None:
    """Select in a new fork what every turn of the source gets; what is meant for its next turn alone stays there."""
    for item in tx.attachments.selected(source, MAX_SELECTED):
        if item.scope is AttachmentScope.SESSION:
            _add(tx, item, fork)


def copy_used(tx: LedgerTx, old: Turn, fork: str, turn_id: str, at: int) -> None:
    """Let the fork have every file that the copy of a turn refers to, to be looked at."""
    for ref in old.request.attachments:
        new_id = copied_id(fork, ref.attachment_id, "att_")
        there = tx.attachments.find(new_id)
        if there is None:
            known = tx.attachments.find(ref.attachment_id)
            scope = AttachmentScope.ONCE if known is None else known.scope
            item = known or Attachment(old.session_id, scope, ref, old.created_at)
            # It is not selected: the source's next turns do not get it either.
            _add(tx, replace(item, ref=ref, removed_at=at if scope is AttachmentScope.SESSION else None), fork)
        if there is None or there.used_by is None:
            tx.attachments.use(new_id, turn_id)


def _add(tx: LedgerTx, item: Attachment, fork: str) -> None:
    copy = replace(item, session_id=fork, ref=copied_ref(item.ref, fork), used_by=None, tried_at=0)
    tx.attachments.add(copy, tx.attachments.text(item.ref.attachment_id))
