"""Memory: whose it is, and what core blocks, the daily log and recall hold."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from enum import StrEnum

from milepost.domain.errors import InvalidInput
from milepost.domain.teams import agent_id_of, coordinator_of, is_worker

SLUG_CHARACTERS = 64
_WORKER = "worker"


class OwnerKind(StrEnum):
    AGENT = "agent"
    WORKER = "worker"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class Scope:
    """The owner of a part of memory. Make one with `agent`, `worker` or `shared`."""

    kind: OwnerKind
    parts: tuple[str, ...]

    def __post_init__(self) -> None:
        if not all(self.parts):
            raise InvalidInput("No part of a memory's owner may be empty.", field="owner")

    @classmethod
    def agent(cls, session_id: str, agent: str) -> Scope:
        """An agent's memory in a Session."""
        return cls(OwnerKind.AGENT, (session_id, agent))

    @classmethod
    def worker(cls, session_id: str, coordinator: str, worker: str) -> Scope:
        """The memory of a worker that a coordinator declares."""
        return cls(OwnerKind.WORKER, (session_id, coordinator, worker))

    @classmethod
    def of_part(cls, session_id: str, part: str) -> Scope:
        """The memory behind a part of a turn (`domain.teams`)."""
        if is_worker(part):
            return cls.worker(session_id, coordinator_of(part), agent_id_of(part))
        return cls.agent(session_id, part)

    @classmethod
    def shared(cls, label: str) -> Scope:
        """A core block of all agents that declare it."""
        return cls(OwnerKind.SHARED, (label,))

    @classmethod
    def named(cls, session_id: str, owner: str) -> Scope:
        """The owner that `owner` names within a Session: `AGENT` or `COORDINATOR:worker:WORKER`.

        Raises InvalidInput.
        """
        parts = [_unescaped(part) for part in owner.split(":")]
        if len(parts) == 1:
            return cls.agent(session_id, parts[0])
        if len(parts) == 3 and parts[1] == _WORKER:
            return cls.worker(session_id, parts[0], parts[2])
        raise InvalidInput(
            f"{owner[:100]!r} names no owner of memory.",
            field="owner",
            fix="Write the name of an agent, or COORDINATOR:worker:WORKER.",
        )

    @property
    def session_id(self) -> str | None:
        """The Session it belongs to; None for what is shared."""
        return None if self.kind is OwnerKind.SHARED else self.parts[0]

    @property
    def owner(self) -> str:
        """The owner's name within its Session, as `named` reads it; the label of a shared block."""
        own = [_escaped(part) for part in self.parts]
        if self.kind is OwnerKind.WORKER:
            return f"{own[1]}:{_WORKER}:{own[2]}"
        return own[-1]

    @property
    def key(self) -> str:
        """`SESSION:AGENT`, `SESSION:COORDINATOR:worker:WORKER`, or `:LABEL`; one text for one owner.

        A colon or percent sign within a part is written as in an address (`%3A`, `%25`).
        """
        return f"{_escaped(self.session_id or '')}:{self.owner}"

    @property
    def component(self) -> str:
        """The key as a name in any file system: lower-case letters, digits, `-` and `_`, at most 97 characters.

        A readable part, then 128 bits of SHA-256 over the key, which keep owners apart whose readable parts are equal.
        """
        slug = re.sub("[^a-z0-9_]+", "-", self.key.lower()).strip("-")[:SLUG_CHARACTERS].strip("-")
        digest = hashlib.sha256(self.key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return f"{slug}-{digest}" if slug else digest


def _escaped(part: str) -> str:
    return part.replace("%", "%25").replace(":", "%3A")


def _unescaped(part: str) -> str:
    return part.replace("%3A", ":").replace("%25", "%")


# --- core blocks ------------------------------------------------------------------------------------------------

MAX_BLOCKS = 32
MAX_BLOCK_LIMIT = 20_000
MAX_BLOCKS_TOTAL = 50_000
"""Characters that all blocks of an agent may hold together."""

DEFAULT_BLOCK_LIMIT = 2000
BLOCK_LABEL = r"^[a-z][a-z0-9_]{0,63}$"

MAX_BLOCK_VERSIONS = 100
"""How many versions of a block are kept."""


@dataclass(frozen=True, slots=True)
class BlockSpec:
    """A core block as an agent declares it. `limit` counts characters (code points).

    `value` is what it holds until somebody writes to it. `shared`: one block for all agents that declare the label so.
    `read_only`: agents cannot change it, a person can.
    """

    label: str
    description: str
    limit: int = DEFAULT_BLOCK_LIMIT
    value: str = ""
    shared: bool = False
    read_only: bool = False

    def scope(self, owner: Scope) -> Scope:
        """Where it is kept, if `owner` declares it."""
        return Scope.shared(self.label) if self.shared else owner


DEFAULT_BLOCKS = (
    BlockSpec("persona", "Who you are in this Session and how you work."),
    BlockSpec("human", "What you know of the person: name, wishes, ways of working."),
    BlockSpec("project", "What you know of the project: purpose, decisions, conventions, state.", 3000),
)


@dataclass(frozen=True, slots=True)
class BlockVersion:
    """One value of a block. Numbers rise by one; 0 is what the configuration says, and is not stored.

    `key` makes writing it again harmless: the effect of a tool call, or an id of a person's edit. `by` says who wrote
    it. `turn_id` is empty if no turn did. `at` is microseconds since the epoch.
    """

    number: int
    value: str
    at: int
    by: str
    key: str
    turn_id: str = ""
    turn_number: int = 0
    note: str = ""


# --- daily log --------------------------------------------------------------------------------------------------

MAX_DAILY_TEXT = 4000
"""Characters of an entry's text; the whole text is in the ledger, under the entry's turn."""

MAX_DAILY_DAYS = 31
MAX_DAILY_ENTRIES = 40
DAILY_PREVIEW_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class DailyEntry:
    """A dated record. `id` is unique for its owner; `at` is microseconds since the epoch. `cut`: the text was longer.

    `kind` says what it is: `request`, `answer`, or a word of whoever else writes to the log.
    """

    id: str
    at: int
    kind: str
    speaker: str
    text: str
    turn_id: str = ""
    turn_number: int = 0
    cut: bool = False


# --- recall -----------------------------------------------------------------------------------------------------

MILLIONTHS = 1_000_000
DEFAULT_RECALL = 5
MAX_RECALL = 20
DEFAULT_MIN_SCORE = 150_000


@dataclass(frozen=True, slots=True)
class Recalled:
    """A record that recall found. `score` and its `parts` are millionths; `reason` says in words why it is here."""

    id: str
    text: str
    score: int
    turn_id: str
    turn_number: int
    at: int
    kind: str = ""
    speaker: str = ""
    parts: dict[str, int] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Recall:
    """What a search found, best first.

    `searched` counts records that could have been found, `incomplete` those of them that have no vector (yet), so that
    only their words were compared. `problem` says why no meaning was compared at all.
    """

    items: tuple[Recalled, ...] = ()
    incomplete: int = 0
    searched: int = 0
    problem: str = ""


# --- what an agent is given -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """An agent's memory. `recall` records at most are recalled at a turn's start (0: none), from `min_score` on."""

    blocks: tuple[BlockSpec, ...] = DEFAULT_BLOCKS
    recall: int = DEFAULT_RECALL
    min_score: int = DEFAULT_MIN_SCORE

    def block(self, label: str) -> BlockSpec | None:
        """The block of this label, if the agent has one."""
        return next((spec for spec in self.blocks if spec.label == label), None)
