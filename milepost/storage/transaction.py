"""What a transaction body gets: the repositories over one connection."""

from __future__ import annotations

from sqlalchemy import Connection

from milepost.domain.memory import Scope
from milepost.ports.ledger import Orphan
from milepost.storage.approvals import SqlApprovals
from milepost.storage.attachments import SqlAttachments
from milepost.storage.budgets import SqlBudgets
from milepost.storage.consolidations import SqlConsolidations
from milepost.storage.deltas import SqlDeltas
from milepost.storage.effects import SqlEffects
from milepost.storage.environments import SqlEnvironments
from milepost.storage.events import SqlEventLog
from milepost.storage.forks import SqlForks
from milepost.storage.leases import SqlLeases
from milepost.storage.lives import SqlAgentLives
from milepost.storage.longterm import SqlLongTerm
from milepost.storage.memory import SqlMemory
from milepost.storage.memory_tasks import SqlMemoryTasks
from milepost.storage.orphans import find_orphans
from milepost.storage.outbox import SqlOutbox
from milepost.storage.processes import SqlProcesses
from milepost.storage.rewinds import SqlRewinds
from milepost.storage.rules import SqlPolicyRules
from milepost.storage.search import SqlSearchIndex
from milepost.storage.semantic import SqlSemanticRecords
from milepost.storage.sessions import SqlSessions
from milepost.storage.turns import SqlTurns
from milepost.storage.worker_records import SqlWorkerRecords
from milepost.storage.workers import SqlWorkers
from milepost.storage.workspaces import SqlWorkspaces


class Transaction:
    """`ports.ledger.LedgerTx` over an open SQLAlchemy connection; whoever made it commits or rolls back."""

    def __init__(self, conn: Connection) -> None:
        self.connection = conn
        self.topics: set[str] = set()
        self.search = SqlSearchIndex(conn)
        self.events = SqlEventLog(conn, self.notify, self.search)
        self.sessions = SqlSessions(conn)
        self.turns = SqlTurns(conn, self.notify)
        self.rewinds = SqlRewinds(conn)
        self.forks = SqlForks(conn)
        self.environments = SqlEnvironments(conn)
        self.processes = SqlProcesses(conn)
        self.workspaces = SqlWorkspaces(conn)
        self.effects = SqlEffects(conn)
        self.approvals = SqlApprovals(conn)
        self.rules = SqlPolicyRules(conn)
        self.budgets = SqlBudgets(conn)
        self.outbox = SqlOutbox(conn, self.notify)
        self.deltas = SqlDeltas(conn, self.notify)
        self.attachments = SqlAttachments(conn)
        self.leases = SqlLeases(conn)
        self.long_term = SqlLongTerm(conn)
        self.workers = SqlWorkers(conn)
        self.lives = SqlAgentLives(conn)
        self.consolidations = SqlConsolidations(conn)
        self.worker_records = SqlWorkerRecords(conn)
        self.memory = SqlMemory(conn)
        self.memory_tasks = SqlMemoryTasks(conn, self.notify)

    def semantic(self, scope: Scope) -> SqlSemanticRecords:
        return SqlSemanticRecords(self.connection, scope.component)

    def notify(self, topic: str) -> None:
        self.topics.add(topic)

    def orphans(self, limit: int) -> list[Orphan]:
        return find_orphans(self.connection, limit)
