"""The ledger's tables. Migrations make them; a test keeps both in agreement.

Times are microseconds since the epoch, UTC. Binary columns hold canonical JSON or UTF-8 (see `columns.Utf8`), so that
every Python string survives on both databases. Triggers (append-only events, write-once terminal states) are in
the migrations.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
    text,
)

from milepost.domain.approvals import ApprovalState, Verdict
from milepost.domain.attachments import AttachmentScope, AttachmentState
from milepost.domain.budgets import ReservationState
from milepost.domain.consolidation import ConsolidationState
from milepost.domain.effects import EffectClass, EffectState
from milepost.domain.environments import EnvironmentState
from milepost.domain.events import StreamKind
from milepost.domain.forks import ForkState
from milepost.domain.search import SearchKind
from milepost.domain.sessions import SessionMode, SessionStatus
from milepost.domain.turns import TurnState
from milepost.domain.workspaces import LeasePurpose, RestoreKind, RestoreState
from milepost.ports.ledger import OutboxKind
from milepost.ports.memory_rows import MemoryTaskKind
from milepost.storage.columns import SERIAL, Binary, Identifier, Utf8
from milepost.storage.packing import Packed

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


def one_of(column: str, values: Iterable[StrEnum]) -> str:
    """SQL of a check that `column` holds one of an enumeration's values."""
    return f"{column} IN ({', '.join(repr(value.value) for value in values)})"


ledger_meta = Table(
    "ledger_meta",
    metadata,
    Column("id", Integer, autoincrement=False, nullable=False),
    Column("instance_id", Identifier, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("id"),
    CheckConstraint("id = 1", name="single_row"),
)

streams = Table(
    "streams",
    metadata,
    Column("stream_id", Identifier, nullable=False),
    Column("kind", Identifier, nullable=False),
    Column("head_seq", BigInteger, nullable=False),
    Column("head_hash", LargeBinary, nullable=False),
    PrimaryKeyConstraint("stream_id"),
    CheckConstraint(one_of("kind", StreamKind), name="kind"),
)

identifiers = Table(
    "identifiers",
    metadata,
    Column("number", SERIAL, autoincrement=True, nullable=False),
    Column("name", Identifier, nullable=False),
    PrimaryKeyConstraint("number"),
    UniqueConstraint("name"),
)
"""Ids of streams and turns by the number that events have for them."""

MOVES = text("type = 'shell.moved'")

events = Table(
    "events",
    metadata,
    Column("stream", BigInteger, ForeignKey("identifiers.number"), nullable=False),
    Column("seq", BigInteger, autoincrement=False, nullable=False),
    Column("key_digest", Binary, nullable=False),
    Column("type", Identifier, nullable=False),
    Column("version", Integer, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("turn", BigInteger),
    Column("pieces", Integer, nullable=False),
    Column("body", Binary, nullable=False),
    Column("hash", Binary, nullable=False),
    PrimaryKeyConstraint("stream", "seq"),
    UniqueConstraint("stream", "key_digest"),
    Index(None, "turn", "seq"),
    Index("ix_events_moves", "stream", "seq", sqlite_where=MOVES, postgresql_where=MOVES),
    CheckConstraint("seq > 0", name="seq"),
)
"""`body` is the end of an event's key and payload, after so many `pieces` (see `bodies`)."""

event_pieces = Table(
    "event_pieces",
    metadata,
    Column("stream", BigInteger, autoincrement=False, nullable=False),
    Column("seq", BigInteger, autoincrement=False, nullable=False),
    Column("part", Integer, autoincrement=False, nullable=False),
    Column("data", Binary, nullable=False),
    PrimaryKeyConstraint("stream", "seq", "part"),
)
"""The beginnings of long bodies."""

shared_payloads = Table(
    "shared_payloads",
    metadata,
    Column("digest", Identifier, nullable=False),
    Column("data", LargeBinary, nullable=False),
    PrimaryKeyConstraint("digest"),
)

workspaces = Table(
    "workspaces",
    metadata,
    Column("workspace_id", Identifier, nullable=False),
    Column("path", Utf8, nullable=False),
    # A path may be longer than what an index holds.
    Column("path_digest", Identifier, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("workspace_id"),
    UniqueConstraint("path_digest"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("session_id", Identifier, nullable=False),
    Column("workspace_id", Identifier, ForeignKey("workspaces.workspace_id"), nullable=False),
    Column("title", Utf8, nullable=False),
    Column("mode", Identifier, nullable=False),
    Column("status", Identifier, nullable=False),
    Column("agents", LargeBinary, nullable=False),
    Column("image", Utf8),
    Column("created_at", BigInteger, nullable=False),
    Column("closed_at", BigInteger),
    PrimaryKeyConstraint("session_id"),
    Index(None, "created_at", "session_id"),
    Index(None, "workspace_id"),
    CheckConstraint(one_of("mode", SessionMode), name="mode"),
    CheckConstraint(one_of("status", SessionStatus), name="status"),
)

session_skills = Table(
    "session_skills",
    metadata,
    Column("session_id", Identifier, ForeignKey("sessions.session_id"), nullable=False),
    Column("skills", LargeBinary, nullable=False),
    PrimaryKeyConstraint("session_id"),
)

turns = Table(
    "turns",
    metadata,
    Column("turn_id", Identifier, nullable=False),
    Column("session_id", Identifier, ForeignKey("sessions.session_id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("state", Identifier, nullable=False),
    Column("request", Packed, nullable=False),
    Column("content_digest", Identifier, nullable=False),
    Column("idempotency_key", Utf8),
    Column("workflow_id", Identifier, nullable=False),
    Column("claimed_run", Identifier),
    Column("generation", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("dispatched_at", BigInteger),
    Column("stop_requested_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("error_code", Identifier),
    Column("error_message", Utf8),
    Column("usage", Packed, nullable=False),
    Column("superseded", Boolean, nullable=False),
    PrimaryKeyConstraint("turn_id"),
    UniqueConstraint("session_id", "number"),
    UniqueConstraint("session_id", "idempotency_key"),
    Index(
        "ix_turns_one_running",
        "session_id",
        unique=True,
        sqlite_where=text("state = 'running'"),
        postgresql_where=text("state = 'running'"),
    ),
    Index(
        "ix_turns_running",
        "turn_id",
        sqlite_where=text("state = 'running'"),
        postgresql_where=text("state = 'running'"),
    ),
    CheckConstraint(one_of("state", TurnState), name="state"),
    CheckConstraint("(state = 'running') = (ended_at IS NULL)", name="ended"),
)

turn_origins = Table(
    "turn_origins",
    metadata,
    Column("turn_id", Identifier, ForeignKey("turns.turn_id"), nullable=False),
    Column("retry_of", Identifier),
    Column("copied_from", Identifier),
    PrimaryKeyConstraint("turn_id"),
)

rewinds = Table(
    "rewinds",
    metadata,
    Column("rewind_id", Identifier, nullable=False),
    Column("session_id", Identifier, ForeignKey("sessions.session_id"), nullable=False),
    Column("to_number", Integer, nullable=False),
    Column("last_number", Integer, nullable=False),
    Column("turns", Integer, nullable=False),
    Column("actor", Utf8, nullable=False),
    Column("reason", Utf8),
    Column("created_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("rewind_id"),
    Index(None, "session_id", "created_at", "rewind_id"),
    CheckConstraint("to_number >= 0 AND to_number < last_number", name="numbers"),
)

_COPYING = text("state = 'copying'")
forks = Table(
    "forks",
    metadata,
    Column("session_id", Identifier, ForeignKey("sessions.session_id"), nullable=False),
    Column("source_id", Identifier, nullable=False),
    Column("to_number", Integer, nullable=False),
    Column("done_number", Integer, nullable=False),
    Column("copied", Integer, nullable=False),
    Column("omitted", Integer, nullable=False),
    Column("files", Boolean, nullable=False),
    Column("state", Identifier, nullable=False),
    Column("actor", Utf8, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("error", Utf8),
    PrimaryKeyConstraint("session_id"),
    Index("ix_forks_copying", "created_at", sqlite_where=_COPYING, postgresql_where=_COPYING),
    CheckConstraint(one_of("state", ForkState), name="state"),
)

_PREPARING = text("state = 'preparing'")
environments = Table(
    "environments",
    metadata,
    Column("session_id", Identifier, ForeignKey("sessions.session_id"), nullable=False),
    Column("generation", Integer, autoincrement=False, nullable=False),
    Column("state", Identifier, nullable=False),
    # Canonical JSON of `domain.environments`: what is asked for, what was decided, how it ended.
    Column("plan", LargeBinary, nullable=False),
    Column("consent", LargeBinary),
    Column("result", LargeBinary),
    Column("created_at", BigInteger, nullable=False),
    Column("changed_at", BigInteger, nullable=False),
    Column("after_number", Integer, nullable=False),
    Column("claimed_run", Identifier),
    Column("boot", Identifier),
    PrimaryKeyConstraint("session_id", "generation"),
    Index("ix_environments_preparing", "created_at", sqlite_where=_PREPARING, postgresql_where=_PREPARING),
    CheckConstraint(one_of("state", EnvironmentState), name="state"),
    CheckConstraint("generation > 0", name="generation"),
)

_RUNS = text("ended_at IS NULL")
processes = Table(
    "processes",
    metadata,
    Column("process_id", Identifier, primary_key=True),
    Column("session_id", Identifier, ForeignKey("sessions.session_id"), nullable=False),
    Column("host", Identifier, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    # Canonical JSON of `domain.processes.ProcessRecord`.
    Column("record", LargeBinary, nullable=False),
    Index("ix_processes_session_id", "session_id", "started_at"),
    Index("ix_processes_running", "host", sqlite_where=_RUNS, postgresql_where=_RUNS),
)

workspace_states = Table(
    "workspace_states",
    metadata,
    Column("workspace_id", Identifier, ForeignKey("workspaces.workspace_id"), nullable=False),
    Column("tree", Identifier),
    Column("turn_id", Identifier),
    Column("holder", Identifier),
    Column("purpose", Identifier),
    Column("session_id", Identifier),
    Column("fence", BigInteger, nullable=False),
    Column("since", BigInteger),
    Column("expires_at", BigInteger),
    PrimaryKeyConstraint("workspace_id"),
    Index("ix_workspace_states_holder", "holder"),
    CheckConstraint(f"purpose IS NULL OR {one_of('purpose', LeasePurpose)}", name="purpose"),
    CheckConstraint("(holder IS NULL) = (purpose IS NULL)", name="held"),
)

workspace_waits = Table(
    "workspace_waits",
    metadata,
    Column("holder", Identifier, nullable=False),
    Column("workspace_id", Identifier, nullable=False),
    Column("until", BigInteger, nullable=False),
    PrimaryKeyConstraint("holder"),
)

workspace_restores = Table(
    "workspace_restores",
    metadata,
    Column("restore_id", Identifier, nullable=False),
    Column("kind", Identifier, nullable=False),
    Column("session_id", Identifier, ForeignKey("sessions.session_id"), nullable=False),
    Column("workspace_id", Identifier, ForeignKey("workspaces.workspace_id"), nullable=False),
    Column("source_id", Identifier, nullable=False),
    Column("present", Identifier),
    Column("target", Identifier, nullable=False),
    Column("state", Identifier, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("error", Utf8),
    PrimaryKeyConstraint("restore_id"),
    Index(
        "ix_workspace_restores_pending",
        "workspace_id",
        sqlite_where=text("state = 'pending'"),
        postgresql_where=text("state = 'pending'"),
    ),
    CheckConstraint(one_of("kind", RestoreKind), name="kind"),
    CheckConstraint(one_of("state", RestoreState), name="state"),
)

effects = Table(
    "effects",
    metadata,
    Column("effect_id", Identifier, nullable=False),
    Column("idempotency_key", Identifier, nullable=False),
    Column("session_id", Identifier, nullable=False),
    Column("turn_id", Identifier, ForeignKey("turns.turn_id"), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("agent", Utf8, nullable=False),
    Column("position", Identifier, nullable=False),
    Column("operation", Utf8, nullable=False),
    Column("effect_class", Identifier, nullable=False),
    Column("input_digest", Identifier, nullable=False),
    Column("call_id", Utf8),
    Column("arguments", Packed),
    Column("state", Identifier, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("dispatched_at", BigInteger),
    Column("finished_at", BigInteger),
    Column("worker", Utf8),
    Column("result", Binary),
    Column("error_code", Identifier),
    Column("error_message", Utf8),
    PrimaryKeyConstraint("effect_id"),
    Index(None, "turn_id", "created_at"),
    Index(None, "session_id", "created_at"),
    CheckConstraint(one_of("state", EffectState), name="state"),
    CheckConstraint(one_of("effect_class", EffectClass), name="effect_class"),
)

_PENDING = text("state = 'pending'")
approvals = Table(
    "approvals",
    metadata,
    Column("approval_id", Identifier, nullable=False),
    Column("effect_id", Identifier, ForeignKey("effects.effect_id"), nullable=False),
    Column("session_id", Identifier, nullable=False),
    Column("turn_id", Identifier, ForeignKey("turns.turn_id"), nullable=False),
    Column("agent", Utf8, nullable=False),
    Column("tool", Utf8, nullable=False),
    Column("call_id", Utf8, nullable=False),
    Column("input_digest", Identifier, nullable=False),
    Column("preview", Utf8, nullable=False),
    Column("truncated", Boolean, nullable=False),
    Column("state", Identifier, nullable=False),
    Column("requested_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("resolved_at", BigInteger),
    Column("actor", Utf8),
    Column("reason", Utf8),
    PrimaryKeyConstraint("approval_id"),
    UniqueConstraint("effect_id"),
    Index("ix_approvals_pending", "turn_id", sqlite_where=_PENDING, postgresql_where=_PENDING),
    Index(None, "requested_at", "approval_id"),
    Index(None, "session_id", "requested_at"),
    CheckConstraint(one_of("state", ApprovalState), name="state"),
    CheckConstraint("(state = 'pending') = (resolved_at IS NULL)", name="resolved"),
)

policy_rules = Table(
    "policy_rules",
    metadata,
    Column("rule_id", Identifier, nullable=False),
    Column("agent", Utf8),
    Column("tool", Utf8),
    Column("verdict", Identifier, nullable=False),
    Column("once", Boolean, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", Utf8, nullable=False),
    Column("reason", Utf8),
    Column("approval_id", Identifier),
    Column("used_at", BigInteger),
    Column("used_by", Identifier),
    Column("revoked_at", BigInteger),
    Column("revoked_by", Utf8),
    PrimaryKeyConstraint("rule_id"),
    Index(None, "created_at", "rule_id"),
    CheckConstraint(one_of("verdict", Verdict), name="verdict"),
)

outbox = Table(
    "outbox",
    metadata,
    Column("item_id", Identifier, nullable=False),
    Column("kind", Identifier, nullable=False),
    Column("subject", Identifier, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("due_at", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("last_error", Utf8),
    Column("leased_by", Utf8),
    Column("leased_until", BigInteger),
    Column("delivered_at", BigInteger),
    Column("dropped_at", BigInteger),
    PrimaryKeyConstraint("item_id"),
    UniqueConstraint("kind", "subject"),
    Index(
        "ix_outbox_open",
        "due_at",
        sqlite_where=text("delivered_at IS NULL AND dropped_at IS NULL"),
        postgresql_where=text("delivered_at IS NULL AND dropped_at IS NULL"),
    ),
    Index(None, "subject"),
    CheckConstraint(one_of("kind", OutboxKind), name="kind"),
)

deltas = Table(
    "deltas",
    metadata,
    # Never used twice, also after rows are deleted, so that a reader's position stays meaningful.
    Column("position", SERIAL, autoincrement=True, nullable=False),
    Column("session_id", Identifier, nullable=False),
    Column("turn_id", Identifier, nullable=False),
    Column("agent", Utf8, nullable=False),
    Column("effect_id", Identifier, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("channel", Identifier, nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("text", Utf8, nullable=False),
    Column("at", BigInteger, nullable=False),
    PrimaryKeyConstraint("position"),
    UniqueConstraint("effect_id", "attempt", "channel", "offset"),
    Index(None, "turn_id", "position"),
    sqlite_autoincrement=True,
)

search_passages = Table(
    "search_passages",
    metadata,
    Column("doc_id", SERIAL, autoincrement=True, nullable=False),
    Column("session_id", Identifier, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("kind", Identifier, nullable=False),
    Column("part", Integer, nullable=False),
    Column("passage", Integer, nullable=False),
    Column("first_character", Integer, nullable=False),
    Column("last_character", Integer, nullable=False),
    Column("agent", Utf8, nullable=False),
    Column("turn_id", Identifier),
    Column("at", BigInteger, nullable=False),
    PrimaryKeyConstraint("doc_id"),
    UniqueConstraint("session_id", "seq", "kind", "part", "passage"),
    Index(None, "at", "doc_id"),
    CheckConstraint(one_of("kind", SearchKind), name="kind"),
)
"""The words of passages are in `search_words`, which each database has in a form of its own (see `search`)."""

search_state = Table(
    "search_state",
    metadata,
    Column("id", Integer, autoincrement=False, nullable=False),
    Column("version", Integer, nullable=False),
    Column("complete", Boolean, nullable=False),
    PrimaryKeyConstraint("id"),
    CheckConstraint("id = 1", name="single_row"),
)

spending = Table(
    "spending",
    metadata,
    Column("scope", Identifier, nullable=False),
    Column("state", LargeBinary, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("scope"),
)

_OPEN_RESERVATION = text("state = 'open'")
agent_stops = Table(
    "agent_stops",
    metadata,
    Column("agent", Utf8, nullable=False),
    Column("stopped_at", BigInteger, nullable=False),
    Column("actor", Utf8, nullable=False),
    Column("reason", Utf8),
    PrimaryKeyConstraint("agent"),
)

consolidations = Table(
    "consolidations",
    metadata,
    Column("consolidation_id", Identifier, nullable=False),
    Column("session_id", Identifier, ForeignKey("sessions.session_id"), nullable=False),
    Column("agent", Utf8, nullable=False),
    Column("state", Identifier, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("detail", LargeBinary, nullable=False),
    PrimaryKeyConstraint("consolidation_id"),
    Index(None, "session_id", "agent", "created_at"),
    Index(None, "created_at"),
    CheckConstraint(one_of("state", ConsolidationState), name="state"),
)

reservations = Table(
    "reservations",
    metadata,
    Column("effect_id", Identifier, ForeignKey("effects.effect_id"), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("session_id", Identifier, nullable=False),
    Column("turn_id", Identifier, nullable=False),
    Column("agent", Utf8, nullable=False),
    Column("scopes", LargeBinary, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    # Decimal text: exact, and without a bound that a sum could pass.
    Column("micros", Utf8),
    Column("state", Identifier, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("settled_at", BigInteger),
    Column("excess_tokens", BigInteger),
    Column("excess_micros", Utf8),
    PrimaryKeyConstraint("effect_id", "attempt"),
    Index("ix_reservations_open", "turn_id", sqlite_where=_OPEN_RESERVATION, postgresql_where=_OPEN_RESERVATION),
    CheckConstraint(one_of("state", ReservationState), name="state"),
    CheckConstraint("(state = 'open') = (settled_at IS NULL)", name="settled"),
)

session_limits = Table(
    "session_limits",
    metadata,
    Column("session_id", Identifier, ForeignKey("sessions.session_id"), nullable=False),
    Column("limits", LargeBinary, nullable=False),
    PrimaryKeyConstraint("session_id"),
)

token_factors = Table(
    "token_factors",
    metadata,
    Column("provider", Utf8, nullable=False),
    Column("model", Utf8, nullable=False),
    Column("factor", Float, nullable=False),
    Column("samples", Integer, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("provider", "model"),
)

attachments = Table(
    "attachments",
    metadata,
    Column("attachment_id", Identifier, nullable=False),
    Column("session_id", Identifier, ForeignKey("sessions.session_id"), nullable=False),
    Column("scope", Identifier, nullable=False),
    Column("state", Identifier, nullable=False),
    Column("ref", LargeBinary, nullable=False),
    Column("text", Utf8),
    Column("created_at", BigInteger, nullable=False),
    Column("tried_at", BigInteger, nullable=False),
    Column("used_by", Identifier),
    Column("removed_at", BigInteger),
    PrimaryKeyConstraint("attachment_id"),
    Index(None, "session_id", "created_at", "attachment_id"),
    CheckConstraint(one_of("scope", AttachmentScope), name="scope"),
    CheckConstraint(one_of("state", AttachmentState), name="state"),
)

worker_records = Table(
    "worker_records",
    metadata,
    Column("agent", Utf8, nullable=False),
    Column("finished", BigInteger, nullable=False),
    Column("succeeded", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("agent"),
)

leases = Table(
    "leases",
    metadata,
    Column("name", Identifier, nullable=False),
    Column("owner", Utf8, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("name"),
)

workers = Table(
    "workers",
    metadata,
    Column("worker", Utf8, nullable=False),
    Column("host", Utf8, nullable=False),
    Column("queues", LargeBinary, nullable=False),
    Column("at", BigInteger, nullable=False),
    PrimaryKeyConstraint("worker"),
)

memory_tasks = Table(
    "memory_tasks",
    metadata,
    Column("kind", Identifier, nullable=False),
    Column("subject", Identifier, nullable=False),
    Column("session_id", Identifier, ForeignKey("sessions.session_id"), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("due_at", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("last_error", Utf8),
    Column("leased_by", Utf8),
    Column("leased_until", BigInteger),
    PrimaryKeyConstraint("kind", "subject"),
    Index(None, "due_at"),
    CheckConstraint(one_of("kind", MemoryTaskKind), name="kind"),
)

# `scope` is the owner's key as a path component, which fits an index whatever the key is.
memory_blocks = Table(
    "memory_blocks",
    metadata,
    Column("scope", Identifier, nullable=False),
    Column("label", Identifier, nullable=False),
    Column("number", Integer, nullable=False),
    Column("owner", Utf8, nullable=False),
    Column("value", Utf8, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("by", Utf8, nullable=False),
    Column("key", Identifier, nullable=False),
    Column("turn_id", Identifier, nullable=False),
    Column("turn_number", Integer, nullable=False),
    Column("note", Utf8, nullable=False),
    PrimaryKeyConstraint("scope", "label", "number"),
    UniqueConstraint("scope", "label", "key"),
)

memory_entries = Table(
    "memory_entries",
    metadata,
    Column("scope", Identifier, nullable=False),
    Column("id", Identifier, nullable=False),
    Column("owner", Utf8, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("day", Integer, nullable=False),
    Column("kind", Identifier, nullable=False),
    Column("speaker", Utf8, nullable=False),
    Column("text", Utf8, nullable=False),
    Column("turn_id", Identifier, nullable=False),
    Column("turn_number", Integer, nullable=False),
    Column("cut", Boolean, nullable=False),
    PrimaryKeyConstraint("scope", "id"),
    Index(None, "scope", "at", "id"),
)

long_term_namespaces = Table(
    "long_term_namespaces",
    metadata,
    Column("namespace_id", BigInteger, autoincrement=False, nullable=False),
    Column("name", Identifier, nullable=False),
    Column("embedder", Identifier),
    Column("dimensions", Integer),
    Column("changes", BigInteger, nullable=False),
    Column("forgotten", BigInteger, nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("namespace_id"),
    UniqueConstraint("name"),
    CheckConstraint("(embedder IS NULL) = (dimensions IS NULL)", name="space"),
)

_EXPIRING = text("expires_at IS NOT NULL AND document IS NOT NULL")
_DELETED = text("document IS NULL")
# A row without a document is what is left of a deleted record: its version, and that it changed.
long_term_records = Table(
    "long_term_records",
    metadata,
    Column(
        "namespace_id", BigInteger, ForeignKey("long_term_namespaces.namespace_id"), autoincrement=False, nullable=False
    ),
    Column("key", Identifier, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("change", BigInteger, nullable=False),
    Column("document", LargeBinary),
    Column("facts", LargeBinary),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("by", Utf8, nullable=False),
    Column("run_id", Identifier),
    Column("effect_id", Identifier),
    PrimaryKeyConstraint("namespace_id", "key"),
    UniqueConstraint("namespace_id", "change"),
    Index("ix_long_term_records_expiring", "expires_at", sqlite_where=_EXPIRING, postgresql_where=_EXPIRING),
    Index("ix_long_term_records_deleted", "updated_at", sqlite_where=_DELETED, postgresql_where=_DELETED),
    CheckConstraint("(document IS NULL) = (facts IS NULL)", name="document"),
)

long_term_vectors = Table(
    "long_term_vectors",
    metadata,
    Column(
        "namespace_id", BigInteger, ForeignKey("long_term_namespaces.namespace_id"), autoincrement=False, nullable=False
    ),
    Column("key", Identifier, nullable=False),
    Column("embedder", Identifier, nullable=False),
    Column("dimensions", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("checksum", BigInteger, nullable=False),
    PrimaryKeyConstraint("namespace_id", "key", "embedder", "dimensions"),
)
