"""Storage: the ledger on SQLite and PostgreSQL, wake-ups, blobs. Nobody else imports SQLAlchemy."""

from milepost.storage.blobs import FileBlobStore
from milepost.storage.hub import Hub
from milepost.storage.opening import (
    dump_ledger,
    load_ledger,
    open_ledger,
    open_notifier,
    referenced,
    refuse_filled,
    schema_state,
    upgrade,
)
from milepost.storage.pg_notifier import PgNotifier
from milepost.storage.schema import SchemaState, SchemaStatus

__all__ = [
    "FileBlobStore",
    "Hub",
    "PgNotifier",
    "SchemaState",
    "SchemaStatus",
    "dump_ledger",
    "load_ledger",
    "open_ledger",
    "open_notifier",
    "referenced",
    "refuse_filled",
    "schema_state",
    "upgrade",
]
