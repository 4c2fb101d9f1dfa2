"""Checkpoints: a cache of the conversation that an agent's model gets. Never an authority; the ledger is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from milepost.domain.events import ContextCompacted
from milepost.domain.messages import Message
from milepost.domain.usage import Usage

MAX_ENCODED_BYTES = 64 * 1024 * 1024
KEPT = 3
"""Newest checkpoints of an agent in a Session that are kept."""


class CheckpointPolicy(StrEnum):
    """When checkpoints are written. `NONE` also reads none; `MANUAL` writes when a person asks for it."""

    EVERY_RESPONSE = "every_response"
    EVERY_N = "every_n"
    MANUAL = "manual"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Segment:
    """The messages of one whole turn as an agent's model sees them, long texts still in their blobs.

    `size` is bytes of the turn's events that they are made of, which is what the bound on projections counts. A
    segment of a turn that had not `ended` when it was taken is for people to read; the turn is read again.
    `compacted` is the agent's last compaction of the turn; it changes what is sent, not the messages here.
    """

    turn_id: str
    number: int
    size: int
    messages: tuple[Message, ...]
    ended: bool = True
    compacted: ContextCompacted | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The conversation of one agent in a Session as of a position of the Session's stream.

    Attributes:
        view: how its messages were made of the events, beyond what every agent has in common.
        seq, hash: the position: that event's number and its hash in the chain, hexadecimal. Another hash there means
            another ledger.
        at: when it was written, microseconds since the epoch, UTC.
        usage: what the Session had used by then; `complete` is sticky.
        omitted: number of the newest turn that did not fit, 0 if all did.
        segments: oldest first.
    """

    session_id: str
    agent: str
    view: str
    seq: int
    hash: str
    at: int
    usage: Usage
    omitted: int
    segments: tuple[Segment, ...]
