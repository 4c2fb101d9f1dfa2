"""A turn's events as the copy of a fork has them. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from typing import Any

from milepost.domain.attachments import AttachmentRef
from milepost.domain.events import Event, TurnBegun, WorkspaceSnapshotted
from milepost.domain.git import GitDone
from milepost.domain.processes import ProcessEnded, ProcessStarted
from milepost.domain.turns import TurnRequest

NOT_COPIED = frozenset({WorkspaceSnapshotted.TYPE, ProcessStarted.TYPE, ProcessEnded.TYPE, GitDone.TYPE})
"""A copied turn did nothing to the files of the fork's Workspace, and started nothing in its sandbox."""


def copied_id(fork: str, original: str, prefix: str = "") -> str:
    """The id of a copy, the same whenever it is made."""
    digest = hashlib.sha256(f"fork:{fork}:{original}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"{prefix}{digest[:32]}" if prefix else digest


def copied_ref(ref: AttachmentRef, fork: str) -> AttachmentRef:
    """The reference to the fork's own attachment, of the same content."""
    return replace(ref, attachment_id=copied_id(fork, ref.attachment_id, "att_"))


def copied_request(request: TurnRequest, fork: str) -> TurnRequest:
    """The request with references to the fork's attachments."""
    return replace(request, attachments=tuple(copied_ref(ref, fork) for ref in request.attachments))


def copied_event(event: Event, fork: str, turn_id: str, number: int, workflow_id: str) -> Event:
    """The event under the copy's ids."""
    changes: dict[str, Any] = {}
    for item in fields(event):
        if item.name == "turn_id":
            changes[item.name] = turn_id
        elif item.name == "base_turn_id":
            changes[item.name] = copied_id(fork, getattr(event, item.name), "trn_")
        elif item.name == "effect_id":
            found = getattr(event, item.name)
            changes[item.name] = copied_id(fork, found) if found else found
        elif item.name == "attachment_id":
            changes[item.name] = copied_id(fork, getattr(event, item.name), "att_")
    if isinstance(event, TurnBegun):
        request = copied_request(event.request, fork)
        changes |= {"number": number, "request": request, "workflow_id": workflow_id, "idempotency_key": None}
    return replace(event, **changes)


def copied_key(key: str, fork: str, old_turn: str, new_turn: str, effects: dict[str, str]) -> str:
    """The event's key: unique in the new stream, and where later lookups expect it."""
    head, slash, rest = key.partition("/")
    if head == old_turn:
        return f"{new_turn}{slash}{rest}"
    return f"{effects[head]}{slash}{rest}" if head in effects else key
