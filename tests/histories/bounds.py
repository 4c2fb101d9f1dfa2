"""How large the events of a history are."""

from __future__ import annotations

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory

MAX_EVENT_BYTES = 64 * 1024


def event_sizes(history: WorkflowHistory) -> list[tuple[str, int]]:
    """Type and serialized size in bytes of every event."""
    return [(EventType.Name(event.event_type), event.ByteSize()) for event in history.events]


def oversize(history: WorkflowHistory) -> list[tuple[str, int]]:
    """The events over the bound."""
    return [(name, size) for name, size in event_sizes(history) if size > MAX_EVENT_BYTES]
