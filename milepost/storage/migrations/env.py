"""Run by Alembic: migrates over the connection that the caller opened, inside its transaction."""

from __future__ import annotations

from alembic import context

from milepost.storage.schema import VERSION_TABLE
from milepost.storage.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
