"""Alembic environment of the ledger's schema; see `milepost.storage.upgrading`."""
