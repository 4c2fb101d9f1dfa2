"""Payloads that repeat are kept once: an agent's start says in every turn what the agent is made of.

Of such an event the row keeps the turn's id and the SHA-256 of the rest, which lies in `shared_payloads`. Readers get
the payload byte for byte as it was appended, and its hash is of all of it. A payload of another shape is kept whole.
"""

from __future__ import annotations

import hashlib

from sqlalchemy import Connection, bindparam, select

from milepost.domain.events import AgentStarted
from milepost.ledger.codec import canonical_bytes
from milepost.storage.statements import insert_ignore
from milepost.storage.tables import shared_payloads

_TYPES = frozenset({AgentStarted.TYPE})
_MARK = b'{"shared_payload":"'
"""No event has a field of this name."""

_END = b"}"
_OWN = b"\0"
"""Where the turn's id belongs; no JSON has this byte."""

_DIGEST_END = len(_MARK) + 64
_MAX_KNOWN = 64
_ADD = insert_ignore(shared_payloads)
_GET = select(shared_payloads.c.data).where(shared_payloads.c.digest == bindparam("digest"))


class SharedPayloads:
    """Takes payloads apart and puts them together again, within one transaction."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._known: dict[str, bytes] = {}

    def packed(self, type_: str, turn_id: str | None, payload: bytes) -> bytes:
        """What the event's row keeps of a canonical payload."""
        if type_ not in _TYPES:
            return payload
        own = b',"turn_id":' + canonical_bytes(turn_id)
        before, found, after = payload.rpartition(own)
        if not found:
            return payload
        # Keys are sorted; with nothing after the turn's id but the end, the form is that of before there were others.
        data = before if after == _END else before + _OWN + after
        digest = hashlib.sha256(data).hexdigest()
        self._conn.execute(_ADD.on(self._conn), {"digest": digest, "data": data})
        return _MARK + digest.encode() + b'"' + own + _END

    def whole(self, type_: str, kept: bytes) -> bytes:
        """The payload as it was appended. If the shared part is lost, what is left, whose hash does not hold."""
        if type_ not in _TYPES or not kept.startswith(_MARK):
            return kept
        digest = kept[len(_MARK) : _DIGEST_END].decode("ascii", "replace")
        data = self._known.get(digest)
        if data is None:
            data = self._conn.execute(_GET, {"digest": digest}).scalar()
            if data is None:
                return kept
            if len(self._known) < _MAX_KNOWN:
                self._known[digest] = data
        own = kept[_DIGEST_END + 1 :]
        before, found, after = data.partition(_OWN)
        return before + own.removesuffix(_END) + after if found else data + own
