"""Named leases: which process runs a loop."""

from __future__ import annotations

from sqlalchemy import BigInteger, Connection, bindparam, delete, or_

from milepost.storage.statements import PerDialect
from milepost.storage.tables import leases

CLOCK_STEP_US = 600_000_000
"""No lease is longer: one that ends further ahead was written before the clock went back."""

_ACQUIRE = PerDialect(
    leases,
    lambda insert: insert.on_conflict_do_update(
        index_elements=[leases.c.name],
        set_={"owner": insert.excluded.owner, "expires_at": insert.excluded.expires_at},
        where=or_(
            leases.c.owner == insert.excluded.owner,
            leases.c.expires_at <= bindparam("now", type_=BigInteger),
            leases.c.expires_at > bindparam("never", type_=BigInteger),
        ),
    ),
)
_RELEASE = delete(leases).where(leases.c.name == bindparam("lease"), leases.c.owner == bindparam("holder"))


class SqlLeases:
    """`ports.ledger.Leases`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def acquire(self, name: str, owner: str, at: int, ttl_us: int) -> bool:
        taken = self._conn.execute(
            _ACQUIRE.on(self._conn),
            {"name": name, "owner": owner, "expires_at": at + ttl_us, "now": at, "never": at + CLOCK_STEP_US},
        )
        return taken.rowcount == 1

    def release(self, name: str, owner: str) -> None:
        self._conn.execute(_RELEASE, {"lease": name, "holder": owner})

    def clear(self) -> None:
        self._conn.execute(delete(leases))
