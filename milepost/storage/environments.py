"""Generations of Sessions' environments."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Connection, Row, bindparam, select, update

from milepost.domain.environments import (
    Consent,
    Environment,
    EnvironmentPlan,
    EnvironmentResult,
    EnvironmentState,
)
from milepost.ledger.codec import decode, encode
from milepost.storage.statements import insert_ignore
from milepost.storage.tables import environments

_OF = environments.c.session_id == bindparam("session")
_PAGE = bindparam("page", type_=BigInteger)
_NEWEST = environments.c.generation.desc()
_ADD = insert_ignore(environments)
_CURRENT = select(environments).where(_OF).order_by(_NEWEST).limit(1)
_GET = select(environments).where(_OF, environments.c.generation == bindparam("number"))
_PAGE_OF = (
    select(environments)
    .where(_OF, environments.c.generation < bindparam("before", type_=BigInteger))
    .order_by(_NEWEST)
    .limit(_PAGE)
)
_BETWEEN = (
    select(environments)
    .where(_OF, environments.c.after_number.between(bindparam("first"), bindparam("last")))
    .order_by(_NEWEST)
    .limit(_PAGE)
)
_PREPARING = (
    select(environments)
    .where(environments.c.state == EnvironmentState.PREPARING.value)
    .order_by(environments.c.created_at, environments.c.session_id)
    .limit(_PAGE)
)
_CHANGED = ("state", "plan", "consent", "result", "changed_at", "claimed_run", "boot")
_SAVE = (
    update(environments)
    .where(_OF, environments.c.generation == bindparam("number"))
    .values({name: bindparam(f"new_{name}", type_=environments.c[name].type) for name in _CHANGED})
)
_LAST = 2**31


class SqlEnvironments:
    """`ports.ledger.Environments`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def add(self, environment: Environment) -> bool:
        return self._conn.execute(_ADD.on(self._conn), _values(environment)).rowcount == 1

    def current(self, session_id: str) -> Environment | None:
        return _one(self._conn.execute(_CURRENT, {"session": session_id}).first())

    def get(self, session_id: str, generation: int) -> Environment | None:
        return _one(self._conn.execute(_GET, {"session": session_id, "number": generation}).first())

    def save(self, environment: Environment) -> None:
        values = {f"new_{name}": value for name, value in _values(environment).items() if name in _CHANGED}
        self._conn.execute(_SAVE, {**values, "session": environment.session_id, "number": environment.generation})

    def of_session(self, session_id: str, *, before: int | None = None, limit: int = 200) -> list[Environment]:
        rows = self._conn.execute(_PAGE_OF, {"session": session_id, "before": before or _LAST, "page": limit})
        return [_environment(row) for row in rows]

    def ending_between(self, session_id: str, first: int, last: int, *, limit: int = 200) -> list[Environment]:
        rows = self._conn.execute(_BETWEEN, {"session": session_id, "first": first, "last": last, "page": limit})
        return [_environment(row) for row in rows]

    def preparing(self, limit: int = 200) -> list[Environment]:
        return [_environment(row) for row in self._conn.execute(_PREPARING, {"page": limit})]


def _values(environment: Environment) -> dict[str, Any]:
    return {
        "session_id": environment.session_id,
        "generation": environment.generation,
        "state": environment.state.value,
        "plan": encode(environment.plan),
        "consent": None if environment.consent is None else encode(environment.consent),
        "result": None if environment.result is None else encode(environment.result),
        "created_at": environment.created_at,
        "changed_at": environment.changed_at,
        "after_number": environment.after_number,
        "claimed_run": environment.claimed_run,
        "boot": environment.boot,
    }


def _one(row: Row[Any] | None) -> Environment | None:
    return None if row is None else _environment(row)


def _environment(row: Row[Any]) -> Environment:
    return Environment(
        session_id=row.session_id,
        generation=row.generation,
        state=EnvironmentState(row.state),
        plan=decode(row.plan, EnvironmentPlan),
        created_at=row.created_at,
        changed_at=row.changed_at,
        after_number=row.after_number,
        consent=None if row.consent is None else decode(row.consent, Consent),
        result=None if row.result is None else decode(row.result, EnvironmentResult),
        claimed_run=row.claimed_run,
        boot=row.boot,
    )
