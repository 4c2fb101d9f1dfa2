"""Which blobs and snapshots the ledger mentions.

Every text and byte column of every table is searched for what looks like a digest, so that nothing that any part of
the ledger refers to can be taken for unused, whatever a later release adds. A text that only happens to quote a digest
keeps its blob as well; that costs space, never data.
"""

from __future__ import annotations

import re
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, select, type_coerce

from milepost.storage import schema
from milepost.storage.bodies import Bodies
from milepost.storage.columns import Utf8
from milepost.storage.packing import unpacked
from milepost.storage.tables import effects, metadata

ROWS = 50
_DIGEST = re.compile(rb"(?<![0-9a-f])[0-9a-f]{40}(?:[0-9a-f]{24})?(?![0-9a-f])")
_DERIVED = frozenset({"search_passages", "search_state", "semantic_vectors"})
_RESULTS = select(effects.c.effect_id, effects.c.result).where(effects.c.result.is_not(None))
_BODIES = frozenset({"events", "event_pieces"})


def mentioned(conn: Connection, candidates: set[str]) -> set[str]:
    """Those of `candidates` (SHA-1 or SHA-256, lowercase hexadecimal) that any row has."""
    schema.verify(conn)
    found: set[str] = set()
    for table in metadata.sorted_tables:
        columns = [_raw(column) for column in table.columns if isinstance(column.type, sa.LargeBinary | Utf8 | sa.Text)]
        columns += [column for column in table.columns if _is_identifier(column)]
        if table.name in _DERIVED or table.name in _BODIES or not columns:
            continue
        with conn.execution_options(yield_per=ROWS).execute(select(*columns)) as rows:
            for row in rows:
                for value in row:
                    if value is not None and len(value) >= 40:
                        found |= _digests(value.encode() if isinstance(value, str) else bytes(value))
        found &= candidates
    with conn.execution_options(yield_per=ROWS).execute(_RESULTS) as rows:
        for effect_id, kept in rows:
            found |= _digests(unpacked(bytes(kept), effect_id.encode())) & candidates
    for payload in Bodies(conn).payloads(ROWS):
        found |= _digests(payload) & candidates
    return found


def _digests(data: bytes) -> set[str]:
    return {digest.decode("ascii") for digest in _DIGEST.findall(data)}


def _is_identifier(column: sa.Column[Any]) -> bool:
    return isinstance(column.type, sa.types.TypeDecorator) and not isinstance(column.type, Utf8)


def _raw(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    return type_coerce(column, sa.LargeBinary()) if isinstance(column.type, Utf8) else column
