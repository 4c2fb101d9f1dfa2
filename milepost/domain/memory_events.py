"""What a Session's stream records of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from milepost.domain.memory import Recalled


@dataclass(frozen=True, slots=True)
class BlockSeen:
    """The state of a core block that a turn began with. `digest` is the SHA-256 of its value."""

    label: str
    version: int
    digest: str
    characters: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class MemoryRecalled:
    """What an agent is reminded of in a turn: recorded once, before its first model call, and sent ever after.

    `base` is the text of the core blocks that follows the system prompt; it is told by the turn that made it and is
    empty in those that go on with it, which name that turn (`base_turn_id`). `text` precedes the request: blocks that
    changed since (`changed`) and the `items` that were recalled. `shape` is the SHA-256 of how the blocks are declared.
    `notes` say what did not work.
    """

    TYPE: ClassVar[str] = "memory.recalled"
    VERSION: ClassVar[int] = 1
    turn_id: str
    agent: str
    shape: str
    blocks: tuple[BlockSeen, ...]
    base_turn_id: str
    base: str
    text: str
    changed: tuple[str, ...] = ()
    items: tuple[Recalled, ...] = ()
    incomplete: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WrittenEntry:
    """A record that went into the daily log and the semantic store.

    `source` says where its whole text is: `request` (the turn's `turn.begun`), `answer` (the agent's `agent.output`);
    else it is empty, and `text` is the whole text.
    """

    id: str
    kind: str
    speaker: str
    at: int
    source: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class MemoryWritten:
    """A turn was written into the memory of `owner` (see `Scope.owner`); comes after the turn's end.

    `notes` say what did not work.
    """

    TYPE: ClassVar[str] = "memory.written"
    VERSION: ClassVar[int] = 1
    turn_id: str
    agent: str
    owner: str
    entries: tuple[WrittenEntry, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockWritten:
    """A new version of a core block, whole. `turn_id` and `effect_id` are None if a person wrote it (`by`)."""

    TYPE: ClassVar[str] = "memory.block_written"
    VERSION: ClassVar[int] = 1
    turn_id: str | None
    effect_id: str | None
    owner: str
    label: str
    shared: bool
    number: int
    value: str
    by: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class MemoryForgotten:
    """Records that are recalled no more. `turn_id` and `effect_id` are None if a person forgot them (`by`)."""

    TYPE: ClassVar[str] = "memory.forgotten"
    VERSION: ClassVar[int] = 1
    turn_id: str | None
    effect_id: str | None
    owner: str
    ids: tuple[str, ...]
    by: str


MemoryEvent = MemoryRecalled | MemoryWritten | BlockWritten | MemoryForgotten
MEMORY_EVENTS = (MemoryRecalled, MemoryWritten, BlockWritten, MemoryForgotten)
