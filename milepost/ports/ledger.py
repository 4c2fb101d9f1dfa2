"""The ledger port: transactions over streams, rows and queues.

A transaction body is a plain function: it gets a `LedgerTx`, does short database work and returns a value. It never
awaits anything, so no provider, tool or network call can sit inside a transaction. The same bodies run on SQLite (one
writer thread that commits in groups) and on PostgreSQL.

Times are microseconds since the epoch, UTC. Digests are lowercase hexadecimal SHA-256.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

from milepost.domain.approvals import Approval, ApprovalState, PolicyRule
from milepost.domain.attachments import Attachment, AttachmentRef
from milepost.domain.budgets import Limits, Reservation, ReservationState, Spending
from milepost.domain.consolidation import Consolidation, ConsolidationState
from milepost.domain.effects import Effect, EffectClass, EffectSpec, EffectState
from milepost.domain.environments import Environment
from milepost.domain.events import Event, StreamKind
from milepost.domain.forks import Fork
from milepost.domain.lives import AgentStop
from milepost.domain.memory import Scope
from milepost.domain.processes import ProcessRecord
from milepost.domain.rewinds import Rewind
from milepost.domain.sessions import Session, SessionStatus, Workspace
from milepost.domain.turns import Turn, TurnState
from milepost.domain.usage import Usage
from milepost.domain.workspaces import LeasePurpose, Restore, RestoreState, WorkspaceHead, WorkspaceLease
from milepost.ledger.chain import StoredEvent
from milepost.ports.longterm_rows import LongTermRows
from milepost.ports.memory_rows import MemoryRows, MemoryTasks
from milepost.ports.search import SearchIndex
from milepost.ports.semantic_records import SemanticRecords

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to append. `key` is unique in its stream: appending the same key again changes nothing.

    `at` is for what happened before it was written (an import); None is the time of the append.
    """

    key: str
    event: Event
    turn_id: str | None = None
    at: int | None = None


class EventLog(Protocol):
    """Append-only streams. seq starts at 1 and has no gaps; commit order equals seq order."""

    def append(self, stream_id: str, kind: StreamKind, events: Sequence[NewEvent], at: int) -> list[int]:
        """Append in order under the stream's lock; return each event's seq (the existing one for a known key).

        Creates the stream on its first event.

        Raises:
            TurnNotRunning: an event of a turn with a terminal state (other than `LATE_EVENTS`).
            InvalidInput: the event's type does not belong to the stream's kind.
        """

    def read(
        self, stream_id: str, *, after: int = 0, before: int | None = None, limit: int = 1000
    ) -> list[StoredEvent]:
        """Events with after < seq < before, ascending, at most `limit` (bound: 10,000)."""

    def read_turn(
        self, stream_id: str, turn_id: str, *, types: Sequence[str] = (), after: int = 0
    ) -> list[StoredEvent]:
        """All events of a turn with seq > `after`, ascending; only the named types if any are given."""

    def find(self, stream_id: str, key: str) -> StoredEvent | None:
        """The event with this key."""

    def read_turns(self, stream_id: str, turn_ids: Sequence[str], *, types: Sequence[str]) -> list[StoredEvent]:
        """The named types of events of several turns (at most 200) in one query, ascending."""

    def newest_moves(self, stream_id: str, *, before: int | None = None, limit: int) -> list[StoredEvent]:
        """The `shell.moved` events of a stream with seq < `before`, newest first, also those of superseded turns."""

    def head(self, stream_id: str) -> tuple[int, bytes]:
        """Last seq and hash; (0, GENESIS) for a stream that does not exist."""


class Sessions(Protocol):
    def add(self, session: Session) -> None: ...

    def get(self, session_id: str) -> Session:
        """Raises SessionNotFound."""

    def page(self, *, status: SessionStatus | None, before: str | None, limit: int) -> list[Session]:
        """Newest first; `before` is the id of the last Session of the previous page."""

    def exists(self, session_id: str) -> bool: ...

    def has_workspace(self, path: str) -> bool:
        """Whether a Session ever belonged to the folder of this path."""

    def set_status(self, session_id: str, status: SessionStatus, closed_at: int | None) -> None: ...

    def set_skills(self, session_id: str, skills: tuple[str, ...] | None) -> None: ...

    def workspace(self, path: str, new: Workspace) -> Workspace:
        """The Workspace of this path; adds `new` if there is none."""


class Turns(Protocol):
    def add(self, turn: Turn) -> None:
        """Insert a running turn. The number is given by the caller under `lock_session`.

        Raises:
            TurnRunning: the Session has a running turn (partial unique index).
        """

    def restore(self, turn: Turn) -> None:
        """Insert a turn in whatever state it is: for imports and copies, never for one that begins."""

    def lock_session(self, session_id: str) -> int:
        """Lock the Session for a begin; return the number the next turn gets. Raises SessionNotFound."""

    def get(self, turn_id: str) -> Turn:
        """Raises TurnNotFound."""

    def find(self, session_id: str, idempotency_key: str) -> Turn | None: ...

    def running(self, session_id: str) -> Turn | None: ...

    def page(self, session_id: str, *, before_number: int | None, limit: int) -> list[Turn]:
        """Newest first."""

    def live_before(self, session_id: str, number: int, limit: int) -> list[tuple[int, str]]:
        """Number and id of the turns before a number that are not superseded, newest first."""

    def list_running(self, *, after: str | None, limit: int) -> list[Turn]:
        """Running turns of the instance, by turn id ascending, for reconciliation."""

    def claim(self, turn_id: str, run_id: str) -> Turn:
        """Compare-and-set of the owner: free or already this run.

        Raises:
            TurnClaimed: another run owns it, or the turn has a terminal state.
        """

    def mark_dispatched(self, turn_id: str, at: int) -> None:
        """Record that the workflow was started; keeps the first time."""

    def request_stop(self, turn_id: str, at: int) -> None:
        """Set stop_requested_at once. Raises TurnNotRunning for a terminal turn."""

    def finish(
        self,
        turn_id: str,
        state: TurnState,
        at: int,
        usage: Usage,
        error_code: str | None = None,
        error_message: str | None = None,
    ) -> None:
        """Write the one terminal state. Raises TurnNotRunning if there is one already (database constraint)."""

    def numbered(self, session_id: str, number: int) -> Turn:
        """Raises TurnNotFound."""

    def live(self, session_id: str, *, after_number: int) -> tuple[int, int]:
        """How many turns with number > `after_number` are not superseded, and the Session's last number (0: none)."""

    def superseded(self, session_id: str) -> frozenset[str]:
        """Ids of the turns that rewinds took out of the conversation."""

    def supersede(self, session_id: str, *, after_number: int) -> int:
        """Mark the turns with number > `after_number`; return how many were not superseded yet."""


class Rewinds(Protocol):
    def add(self, rewind: Rewind) -> None: ...

    def get(self, rewind_id: str) -> Rewind | None: ...

    def of_session(self, session_id: str, *, before: str | None = None, limit: int = 200) -> list[Rewind]:
        """Newest first; `before` is the id of the last one of the page before."""

    def ending_between(self, session_id: str, first: int, last: int, *, limit: int = 200) -> list[Rewind]:
        """Newest first: those with `first` <= last_number <= `last`, which lie right after that turn."""


class Forks(Protocol):
    def add(self, fork: Fork) -> None: ...

    def get(self, session_id: str) -> Fork | None:
        """How the Session was made, if it is a fork."""

    def save(self, fork: Fork) -> None:
        """Write how far it is; the caller holds the Session's lock."""

    def copying(self, before: int, limit: int = 100) -> list[Fork]:
        """Those that were begun before a time and are not finished, oldest first."""


class Environments(Protocol):
    """Generations of Sessions' environments."""

    def add(self, environment: Environment) -> bool:
        """Insert a generation; False if the Session has it already."""

    def current(self, session_id: str) -> Environment | None:
        """The highest generation."""

    def get(self, session_id: str, generation: int) -> Environment | None: ...

    def save(self, environment: Environment) -> None:
        """Write state, plan and what is known of the outcome; the caller holds the Session's lock."""

    def of_session(self, session_id: str, *, before: int | None = None, limit: int = 200) -> list[Environment]:
        """Newest generation first; `before` is the last generation of the page before."""

    def ending_between(self, session_id: str, first: int, last: int, *, limit: int = 200) -> list[Environment]:
        """Newest first: those that were begun after a turn with `first` <= number <= `last`."""

    def preparing(self, limit: int = 200) -> list[Environment]:
        """What is being prepared in this instance, oldest first."""


class Workspaces(Protocol):
    """Leases of Workspaces, the last states known of their files, and file operations that are not done yet.

    Folders that lie in each other exclude each other.
    """

    def acquire(
        self, workspace: Workspace, holder: str, purpose: LeasePurpose, session_id: str, at: int, expires_at: int | None
    ) -> WorkspaceLease:
        """Take the lease, or move on the end of the one `holder` has. Without `expires_at` it lasts as the turn does.

        Raises:
            WorkspaceBusy: another turn or operation has this Workspace, one above it or one in it.
        """

    def holder(self, workspace: Workspace, at: int) -> WorkspaceLease | None:
        """The lease that stands in the way of a new one."""

    def held(self, workspace_id: str, holder: str, fence: int | None = None) -> bool:
        """Whether this holder has the lease, with this fence if one is given."""

    def release(self, holder: str) -> None:
        """Give up what `holder` has or waits for; idempotent."""

    def forget_operations(self) -> None:
        """Drop the leases of operations. Only for a process that alone may use the ledger: their owners are dead."""

    def wait(self, holder: str, workspace_id: str, until: int) -> None:
        """Show that `holder` waits for the Workspace, until a time that it moves on while it lives."""

    def waits(self, holder: str, at: int) -> bool: ...

    def head(self, workspace_id: str) -> WorkspaceHead | None: ...

    def move_head(self, workspace_id: str, tree: str, turn_id: str | None) -> None: ...

    def add_restore(self, restore: Restore) -> None: ...

    def restores(self, workspace_id: str | None = None, limit: int = 100) -> list[Restore]:
        """Pending ones, oldest first; of one Workspace or of all."""

    def restore(self, restore_id: str) -> Restore | None: ...

    def end_restore(self, restore_id: str, state: RestoreState, at: int, error: str | None = None) -> bool:
        """Give a pending one its end; False if it has one."""


@dataclass(frozen=True, slots=True)
class EffectCount:
    """How many effects there are of an operation, class and state."""

    operation: str
    effect_class: EffectClass
    state: EffectState
    count: int


class Effects(Protocol):
    def get(self, effect_id: str) -> Effect | None: ...

    def lock(self, effect_id: str) -> Effect | None:
        """Like `get`, for a decision about the effect: nobody else changes it until this transaction ends."""

    def page(
        self,
        session_id: str,
        *,
        turn_id: str | None,
        state: EffectState | None,
        limit: int,
        after: str | None = None,
    ) -> list[Effect]:
        """Oldest first; `after` is the id of the last effect of the previous page. Raises EffectNotFound for it."""

    def dispatch(self, spec: EffectSpec, at: int, worker: str) -> Effect:
        """Insert, or re-dispatch an existing row, as `dispatched` with the next attempt number (the fence)."""

    def settle(
        self,
        effect_id: str,
        attempt: int,
        state: EffectState,
        at: int,
        result: bytes | None,
        error_code: str | None = None,
        error_message: str | None = None,
    ) -> Effect:
        """Write the outcome of the attempt that owns the row.

        A late success of an earlier attempt settles an `uncertain` row and nothing else.

        Raises:
            Fenced: a later attempt owns it, or it is settled already.
            IllegalTransition: the state table does not allow it.
        """

    def note(self, effect_id: str, attempt: int, outcome: bytes) -> None:
        """Keep what a dispatched attempt brought, until it is settled: a later attempt goes on with it.

        Raises Fenced: a later attempt owns the effect, or it is settled.
        """

    def hold(self, spec: EffectSpec, at: int) -> Effect:
        """Insert as `awaiting_approval`, attempt 0. An existing row is returned as it is."""

    def deny(self, spec: EffectSpec, at: int, error_code: str, error_message: str) -> Effect:
        """Insert as `denied`, attempt 0. An existing row is returned as it is."""

    def tally(self, session_id: str, *, after_number: int) -> list[EffectCount]:
        """Effects of live (not superseded) turns with number > `after_number`, counted, by operation."""

    def restore(self, effect: Effect) -> None:
        """Insert an effect in whatever state it is: for imports and copies, never for a call that is made."""

    def open_of_turn(self, turn_id: str) -> list[Effect]:
        """Planned, awaiting or dispatched effects of a turn."""


class Approvals(Protocol):
    def add(self, approval: Approval) -> None:
        """Insert; an id that exists changes nothing."""

    def get(self, approval_id: str) -> Approval:
        """Raises ApprovalNotFound."""

    def of_effect(self, effect_id: str) -> Approval | None: ...

    def resolve(
        self, approval_id: str, state: ApprovalState, at: int, actor: str, reason: str | None
    ) -> Approval | None:
        """Give a pending approval its one end; None if it has one already."""

    def pending_of_turn(self, turn_id: str, limit: int) -> list[Approval]:
        """Oldest first."""

    def page(
        self, *, session_id: str | None, state: ApprovalState | None, after: str | None, limit: int
    ) -> list[Approval]:
        """Pending first, newest first; `after` is the id of the last one of the page before.

        Raises ApprovalNotFound for `after`.
        """


class PolicyRules(Protocol):
    def add(self, rule: PolicyRule) -> None: ...

    def get(self, rule_id: str) -> PolicyRule:
        """Raises PolicyRuleNotFound."""

    def matching(self, agent: str, tool: str, effect_id: str) -> list[PolicyRule]:
        """Rules that cover the call (see `engine.policy.matches`), at most 1,000."""

    def use(self, rule_id: str, effect_id: str, at: int) -> bool:
        """Use up a rule that counts once; False if another call did or it was revoked."""

    def revoke(self, rule_id: str, at: int, actor: str) -> PolicyRule:
        """Revoke; a rule that is revoked stays as it is. Raises PolicyRuleNotFound."""

    def page(self, *, active: bool, after: str | None, limit: int) -> list[PolicyRule]:
        """Newest first. Raises PolicyRuleNotFound for `after`."""


class Budgets(Protocol):
    """What scopes have used, what attempts under way may use, and factors of token estimates.

    A scope is named `session/ID`, `turn/ID` or `agent/ID/WINDOW`.
    """

    def lock(self, scopes: Iterable[str], at: int) -> dict[str, Spending]:
        """The scopes' rows, made if missing, until the transaction ends."""

    def save(self, states: Mapping[str, Spending], at: int) -> None:
        """Write rows that were locked."""

    def spending(self, scope: str) -> Spending: ...

    def reserve(self, held: Reservation, at: int) -> None: ...

    def settle(self, effect_id: str, attempt: int, state: ReservationState, at: int) -> Reservation | None:
        """End an open reservation; None if it has ended already, or there is none."""

    def open_of_turn(self, turn_id: str) -> list[Reservation]: ...

    def open_with_excess(self, scopes: Iterable[str]) -> list[Reservation]:
        """Those that are held in any of the scopes, of attempts that may use more than they have reserved."""

    def forget(self, turn_id: str) -> None:
        """Remove the settled reservations of a turn that ends: what they came to is in its events and its scopes."""

    def set_limits(self, session_id: str, limits: Limits) -> None:
        """Keep a new Session's limits."""

    def limits(self, session_id: str) -> Limits: ...

    def factor(self, provider: str, model: str) -> tuple[float, int]:
        """(factor of token estimates, how many calls it was learnt from); (1.0, 0) for an unknown model."""

    def save_factor(self, provider: str, model: str, factor: float, samples: int, at: int) -> None: ...


class Processes(Protocol):
    """Terminals and background commands."""

    def add(self, record: ProcessRecord) -> bool:
        """Insert one; False if its id is there already."""

    def get(self, process_id: str) -> ProcessRecord | None: ...

    def save(self, record: ProcessRecord) -> bool:
        """Write what is known of one that runs; False if its end was written already, which stays as it is."""

    def of_session(self, session_id: str, *, running: bool = False, limit: int = 200) -> list[ProcessRecord]:
        """Newest first; only those that run if `running`."""

    def running_on(self, host: str, limit: int = 1000) -> list[ProcessRecord]:
        """Those of all Sessions that run in containers of a host."""


class AgentLives(Protocol):
    """Agents that a person has stopped."""

    def stop(self, stop: AgentStop) -> bool:
        """False if it is stopped already, which stays as it is."""

    def start(self, agent: str) -> bool:
        """False if it was not stopped."""

    def stopped(self, agent: str) -> AgentStop | None: ...

    def all_stopped(self) -> dict[str, AgentStop]: ...


class Consolidations(Protocol):
    """Consolidations of memory. `get`, `lock` and `page` (for `before`) raise ConsolidationNotFound."""

    def add(self, new: Consolidation) -> Consolidation:
        """Insert and lock; an id that exists is returned as it is."""

    def get(self, consolidation_id: str) -> Consolidation: ...

    def lock(self, consolidation_id: str) -> Consolidation:
        """Like `get`, for a change: nobody else changes it until this transaction ends."""

    def save(self, changed: Consolidation) -> None:
        """Write one that was locked."""

    def newest(self, session_id: str, agent: str, limit: int) -> list[Consolidation]:
        """Of an agent in a Session, newest first."""

    def page(
        self, *, session_id: str | None, state: ConsolidationState | None, before: str | None, limit: int
    ) -> list[Consolidation]:
        """Newest first; `before` is the id of the last one of the page before."""


class OutboxKind(StrEnum):
    ANSWER_APPROVAL = "answer_approval"
    START_TURN = "start_turn"
    CANCEL_TURN = "cancel_turn"
    PREPARE_ENVIRONMENT = "prepare_environment"


@dataclass(frozen=True, slots=True)
class OutboxItem:
    """A command for a peer, written with the fact that caused it.

    `subject` is the id of the turn, of the approval that was answered, or of the environment (SESSION/GENERATION).
    """

    item_id: str
    kind: OutboxKind
    subject: str
    created_at: int
    attempts: int
    last_error: str | None


class Outbox(Protocol):
    """At-least-once delivery by leased loops; receivers deduplicate by subject."""

    def add(self, kind: OutboxKind, subject: str, at: int) -> None:
        """Idempotent per (kind, subject)."""

    def lease(self, owner: str, at: int, lease_us: int, limit: int) -> list[OutboxItem]:
        """Take due items that nobody holds, oldest first (SKIP LOCKED on PostgreSQL)."""

    def delivered(self, item_id: str, at: int) -> None: ...

    def retry(self, item_id: str, due_at: int, error: str) -> None: ...

    def drop(self, subject: str) -> None:
        """Remove the items of an ended subject: nothing of it needs delivery, and nothing is asked for it again."""

    def pending(self, subject: str) -> OutboxItem | None: ...


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of streamed text. `offset` counts characters (code points) of the channel before this piece."""

    turn_id: str
    agent: str
    effect_id: str
    attempt: int
    channel: str
    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class DeltaSpan:
    """Text of one channel of an attempt in the delta log: characters `start` to `end`, the last piece at `position`."""

    agent: str
    effect_id: str
    attempt: int
    channel: str
    start: int
    end: int
    position: int


class Deltas(Protocol):
    """The delta log: text of model calls in flight, deleted when the turn ends."""

    def add(self, session_id: str, deltas: Sequence[Delta], at: int) -> None:
        """Ignores pieces of an ended turn; a repeated (effect, attempt, channel, offset) changes nothing."""

    def read(self, session_id: str, turn_id: str, *, after: int, limit: int) -> list[tuple[int, Delta]]:
        """Pieces of a running turn in order of arrival: (position, piece) with position > after."""

    def drop_turn(self, turn_id: str) -> None: ...

    def partial(self, effect_id: str, attempt: int) -> dict[str, str]:
        """The text of one call so far, by channel."""

    def size_after(self, turn_id: str, position: int) -> tuple[int, int]:
        """How much comes after a position: pieces, and bytes of their text in UTF-8."""

    def spans_after(self, turn_id: str, position: int) -> list[DeltaSpan]:
        """What comes after a position, by attempt and channel, in order of their last pieces."""

    def part(self, effect_id: str, attempt: int, channel: str, start: int, end: int) -> str | None:
        """Characters `start` to `end` of one channel, or as many as there are; None if the log does not have them."""


class Leases(Protocol):
    def acquire(self, name: str, owner: str, at: int, ttl_us: int) -> bool:
        """Take or renew a named lease; False while another owner's lease has not run out."""

    def release(self, name: str, owner: str) -> None: ...

    def clear(self) -> None:
        """Forget all leases. Only for a process that alone may use the ledger: their owners are dead then."""


@dataclass(frozen=True, slots=True)
class WorkerBeat:
    worker: str
    host: str
    queues: tuple[str, ...]
    at: int


class Workers(Protocol):
    def beat(self, beat: WorkerBeat) -> None: ...

    def gone(self, worker: str) -> None: ...

    def live(self, since: int) -> list[WorkerBeat]: ...

    def last_beat(self) -> int | None:
        """Time of the newest beat of any worker that said no goodbye."""

    def owner_seen(self, turn_id: str) -> int | None:
        """When somebody who works on a turn was last heard of; None before its first call.

        That is the newest beat of the workers that have dispatched its open calls, or the newest step of a call: a
        turn whose next step nobody takes has no owner, however many workers there are.
        """


class Attachments(Protocol):
    """Files of Sessions, with the text that was taken out of them."""

    def add(self, attachment: Attachment, text: str | None = None) -> None: ...

    def get(self, attachment_id: str) -> Attachment:
        """Raises AttachmentNotFound."""

    def find(self, attachment_id: str) -> Attachment | None: ...

    def text(self, attachment_id: str) -> str | None:
        """What was taken out of it; None for nothing, or no such attachment."""

    def selected(self, session_id: str, limit: int) -> list[Attachment]:
        """Those the next turn refers to, in the order they were attached."""

    def page(self, session_id: str, *, before: str | None, limit: int) -> list[Attachment]:
        """All of a Session, newest first; `before` is the id of the last one of the page before.

        Raises AttachmentNotFound for `before`.
        """

    def count(self, session_id: str, limit: int) -> int:
        """How many a Session has; counting ends at `limit`."""

    def take(self, attachment_id: str, at: int, before: int) -> bool:
        """Take one in hand to read it: a pending one, or one that was last taken before `before`; False otherwise."""

    def settle(self, ref: AttachmentRef, text: str | None) -> bool:
        """Note what became of one in hand; False if that is known already, or it has been removed."""

    def release(self) -> None:
        """Let others take what is in hand. Only for a process that alone may use the ledger: the readers are dead."""

    def use(self, attachment_id: str, turn_id: str) -> None:
        """The turn has taken it into the conversation."""

    def remove(self, attachment_id: str, at: int) -> None: ...

    def delete(self, attachment_id: str) -> None:
        """For one that nothing has used."""


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """How many subtasks an agent has finished for Coordinators, and how many of them well."""

    finished: int = 0
    succeeded: int = 0


class WorkerRecords(Protocol):
    """What the auction remembers of declared workers, by the agent's id."""

    def get(self, agent: str) -> WorkerRecord: ...

    def count(self, agent: str, succeeded: bool, at: int) -> None:
        """One more finished subtask."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """The row `key` of `table` has in `column` the id `missing`, which no row of `parent` has."""

    table: str
    key: str
    column: str
    missing: str
    parent: str


class LedgerTx(Protocol):
    """One transaction. Topics given to `notify` are published after the commit, never before."""

    @property
    def events(self) -> EventLog: ...
    @property
    def search(self) -> SearchIndex: ...
    @property
    def sessions(self) -> Sessions: ...
    @property
    def turns(self) -> Turns: ...
    @property
    def rewinds(self) -> Rewinds: ...
    @property
    def forks(self) -> Forks: ...
    @property
    def environments(self) -> Environments: ...
    @property
    def processes(self) -> Processes: ...
    @property
    def workspaces(self) -> Workspaces: ...
    @property
    def effects(self) -> Effects: ...
    @property
    def approvals(self) -> Approvals: ...
    @property
    def rules(self) -> PolicyRules: ...
    @property
    def budgets(self) -> Budgets: ...
    @property
    def outbox(self) -> Outbox: ...
    @property
    def deltas(self) -> Deltas: ...
    @property
    def attachments(self) -> Attachments: ...
    @property
    def leases(self) -> Leases: ...
    @property
    def lives(self) -> AgentLives: ...
    @property
    def consolidations(self) -> Consolidations: ...
    @property
    def workers(self) -> Workers: ...
    @property
    def long_term(self) -> LongTermRows: ...
    @property
    def worker_records(self) -> WorkerRecords: ...
    @property
    def memory(self) -> MemoryRows: ...
    @property
    def memory_tasks(self) -> MemoryTasks: ...

    def semantic(self, scope: Scope) -> SemanticRecords:
        """The semantic memory of an owner."""

    def notify(self, topic: str) -> None: ...

    def orphans(self, limit: int) -> list[Orphan]:
        """Rows that refer to rows which do not exist, at most `limit` for each reference between tables."""


class Ledger(Protocol):
    """Runs transaction bodies. Both methods raise StorageUnavailable when the database does not answer."""

    @property
    def instance_id(self) -> str:
        """Prefix of all workflow ids; made once per ledger."""

    async def write(self, body: Callable[[LedgerTx], T]) -> T:
        """Run `body` in a write transaction and commit durably before returning. A raise rolls all of it back."""

    async def read(self, body: Callable[[LedgerTx], T]) -> T:
        """Run `body` on one consistent snapshot; writing in it is an error."""

    async def check(self) -> None:
        """Raise StorageUnavailable, SchemaTooNew or SchemaOutdated unless the ledger can be used."""

    async def close(self) -> None: ...
