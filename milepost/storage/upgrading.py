"""Running the migrations that are shipped inside the package."""

from __future__ import annotations

from typing import Final

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from milepost.domain.errors import LedgerCorrupt
from milepost.storage import schema
from milepost.storage.schema import SchemaState

_LOCK_KEY: Final = 0x6D696C65
"""PostgreSQL advisory lock: two processes that start at once upgrade one after the other."""


def alembic_config(conn: Connection | None = None) -> Config:
    """Alembic's configuration for the package's own migrations, over an open connection."""
    config = Config()
    config.set_main_option("script_location", "milepost.storage:migrations")
    config.attributes["connection"] = conn
    return config


def run_migrations(conn: Connection) -> SchemaState:
    """Bring the schema up to date inside the open transaction of `conn`. Raises SchemaTooNew."""
    sqlite = conn.dialect.name == "sqlite"
    if not sqlite:
        conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
    schema.refuse_newer(schema.read_state(conn))
    command.upgrade(alembic_config(conn), "head")
    if sqlite and conn.execute(text("PRAGMA foreign_key_check")).first() is not None:
        raise LedgerCorrupt("After the upgrade some rows refer to missing ones; nothing was changed.")
    return schema.read_state(conn)
