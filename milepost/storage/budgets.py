"""Budgets: what scopes have used, and the reservations of attempts under way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from sqlalchemy import BigInteger, Connection, Row, bindparam, delete, select, update

from milepost.domain.budgets import Excess, Limits, Reservation, ReservationState, Spending
from milepost.ledger.codec import canonical_bytes, decimal_text, decode, encode, parse
from milepost.storage.statements import PerDialect, insert_ignore
from milepost.storage.tables import reservations, session_limits, spending, token_factors

_ADD = insert_ignore(spending)
_GET = select(spending.c.state).where(spending.c.scope == bindparam("name"))
_LOCK = _GET.with_for_update()
_SAVE = (
    update(spending)
    .where(spending.c.scope == bindparam("name"))
    .values(state=bindparam("new_state"), updated_at=bindparam("now"))
)
_RESERVE = insert_ignore(reservations)
_SETTLE = (
    update(reservations)
    .where(
        reservations.c.effect_id == bindparam("effect"),
        reservations.c.attempt == bindparam("number"),
        reservations.c.state == ReservationState.OPEN.value,
    )
    .values(state=bindparam("new_state"), settled_at=bindparam("now", type_=BigInteger))
    .returning(*reservations.c)
)
_OPEN_OF_TURN = (
    select(reservations)
    .where(reservations.c.turn_id == bindparam("turn"), reservations.c.state == ReservationState.OPEN.value)
    .order_by(reservations.c.effect_id, reservations.c.attempt)
)
_OPEN_WITH_EXCESS = select(reservations).where(
    reservations.c.state == ReservationState.OPEN.value, reservations.c.excess_tokens.is_not(None)
)
_FORGET = delete(reservations).where(
    reservations.c.turn_id == bindparam("turn"), reservations.c.state != ReservationState.OPEN.value
)
_ADD_LIMITS = insert_ignore(session_limits)
_LIMITS = select(session_limits.c.limits).where(session_limits.c.session_id == bindparam("session"))
_FACTOR = select(token_factors.c.factor, token_factors.c.samples).where(
    token_factors.c.provider == bindparam("by"), token_factors.c.model == bindparam("of")
)
_SAVE_FACTOR = PerDialect(
    token_factors,
    lambda insert: insert.on_conflict_do_update(
        index_elements=[token_factors.c.provider, token_factors.c.model],
        set_={
            "factor": insert.excluded.factor,
            "samples": insert.excluded.samples,
            "updated_at": insert.excluded.updated_at,
        },
    ),
)


class SqlBudgets:
    """`ports.ledger.Budgets`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def lock(self, scopes: Iterable[str], at: int) -> dict[str, Spending]:
        found: dict[str, Spending] = {}
        # In one order everywhere: two transactions that share scopes cannot wait for one another.
        for scope in sorted(scopes):
            row = self._conn.execute(_LOCK, {"name": scope}).first()
            if row is None:
                new = {"scope": scope, "state": encode(Spending()), "updated_at": at}
                self._conn.execute(_ADD.on(self._conn), new)
                row = self._conn.execute(_LOCK, {"name": scope}).one()
            found[scope] = decode(row.state, Spending)
        return found

    def save(self, states: Mapping[str, Spending], at: int) -> None:
        for scope, state in states.items():
            self._conn.execute(_SAVE, {"name": scope, "new_state": encode(state), "now": at})

    def spending(self, scope: str) -> Spending:
        row = self._conn.execute(_GET, {"name": scope}).first()
        return Spending() if row is None else decode(row.state, Spending)

    def reserve(self, held: Reservation, at: int) -> None:
        self._conn.execute(
            _RESERVE.on(self._conn),
            {
                "effect_id": held.effect_id,
                "attempt": held.attempt,
                "session_id": held.session_id,
                "turn_id": held.turn_id,
                "agent": held.agent,
                "scopes": canonical_bytes(list(held.scopes)),
                "tokens": held.tokens,
                "micros": None if held.micros is None else decimal_text(held.micros),
                "state": held.state.value,
                "created_at": at,
                "settled_at": None,
                "excess_tokens": held.excess.tokens or None,
                "excess_micros": decimal_text(held.excess.micros) if held.excess.micros else None,
            },
        )

    def settle(self, effect_id: str, attempt: int, state: ReservationState, at: int) -> Reservation | None:
        params = {"effect": effect_id, "number": attempt, "new_state": state.value, "now": at}
        row = self._conn.execute(_SETTLE, params).first()
        return None if row is None else _reservation(row)

    def open_of_turn(self, turn_id: str) -> list[Reservation]:
        return [_reservation(row) for row in self._conn.execute(_OPEN_OF_TURN, {"turn": turn_id})]

    def open_with_excess(self, scopes: Iterable[str]) -> list[Reservation]:
        wanted = frozenset(scopes)
        found = (_reservation(row) for row in self._conn.execute(_OPEN_WITH_EXCESS))
        return [held for held in found if not wanted.isdisjoint(held.scopes)]

    def forget(self, turn_id: str) -> None:
        self._conn.execute(_FORGET, {"turn": turn_id})

    def set_limits(self, session_id: str, limits: Limits) -> None:
        self._conn.execute(_ADD_LIMITS.on(self._conn), {"session_id": session_id, "limits": encode(limits)})

    def limits(self, session_id: str) -> Limits:
        row = self._conn.execute(_LIMITS, {"session": session_id}).first()
        return Limits() if row is None else decode(row.limits, Limits)

    def factor(self, provider: str, model: str) -> tuple[float, int]:
        row = self._conn.execute(_FACTOR, {"by": provider, "of": model}).first()
        return (1.0, 0) if row is None else (row.factor, row.samples)

    def save_factor(self, provider: str, model: str, factor: float, samples: int, at: int) -> None:
        values = {"provider": provider, "model": model, "factor": factor, "samples": samples, "updated_at": at}
        self._conn.execute(_SAVE_FACTOR.on(self._conn), values)


def _reservation(row: Row[Any]) -> Reservation:
    return Reservation(
        effect_id=row.effect_id,
        attempt=row.attempt,
        session_id=row.session_id,
        turn_id=row.turn_id,
        agent=row.agent,
        scopes=tuple(parse(row.scopes)),
        tokens=row.tokens,
        micros=None if row.micros is None else Decimal(row.micros),
        state=ReservationState(row.state),
        excess=Excess(row.excess_tokens or 0, Decimal(row.excess_micros or 0)),
    )
