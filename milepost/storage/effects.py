"""Effects: one row per logical call, fenced by the number of the dispatch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import BigInteger, Connection, LargeBinary, Row, and_, bindparam, func, insert, or_, select, update

from milepost.domain.content import Content
from milepost.domain.effects import (
    EFFECT_TRANSITIONS,
    SETTLED_EFFECT_STATES,
    Effect,
    EffectClass,
    EffectSpec,
    EffectState,
)
from milepost.domain.errors import EffectNotFound, Fenced, IllegalTransition
from milepost.engine.effects import idempotency_key
from milepost.ledger.codec import decode, encode
from milepost.ports.ledger import EffectCount
from milepost.storage.packing import packed, unpacked
from milepost.storage.statements import PerDialect, insert_ignore
from milepost.storage.tables import effects, turns

_DISPATCHABLE = [state.value for state, after in EFFECT_TRANSITIONS.items() if EffectState.DISPATCHED in after]
_OPEN = [EffectState.PLANNED.value, EffectState.AWAITING_APPROVAL.value, EffectState.DISPATCHED.value]

_THIS = effects.c.effect_id == bindparam("effect")
_GET = select(effects).where(_THIS)
_LOCK = _GET.with_for_update(key_share=True)
_DISPATCH = PerDialect(
    effects,
    lambda insert: insert.on_conflict_do_update(
        index_elements=[effects.c.effect_id],
        set_={
            "state": insert.excluded.state,
            "attempt": effects.c.attempt + 1,
            "dispatched_at": insert.excluded.dispatched_at,
            "worker": insert.excluded.worker,
        },
        where=effects.c.state.in_(_DISPATCHABLE),
    ).returning(*effects.c),
)
_INSERT = insert_ignore(effects)
_KIND = (effects.c.operation, effects.c.effect_class, effects.c.state)
_TALLY = (
    select(*_KIND, func.count().label("count"))
    .join_from(effects, turns, effects.c.turn_id == turns.c.turn_id)
    .where(turns.c.session_id == bindparam("session"), turns.c.number > bindparam("after"), ~turns.c.superseded)
    .group_by(*_KIND)
    .order_by(*_KIND)
)
_SETTLE = (
    update(effects)
    .where(_THIS)
    .values(
        state=bindparam("new_state"),
        finished_at=bindparam("now"),
        result=bindparam("new_result", type_=LargeBinary),
        error_code=bindparam("new_code"),
        error_message=bindparam("new_message"),
    )
    .returning(*effects.c)
)
_NOTE = (
    update(effects)
    .where(
        _THIS,
        effects.c.state == EffectState.DISPATCHED.value,
        effects.c.attempt == bindparam("owner", type_=BigInteger),
    )
    .values(result=bindparam("new_result", type_=LargeBinary))
)
_PAGE = (
    select(effects)
    .where(effects.c.session_id == bindparam("session"))
    .order_by(effects.c.created_at, effects.c.effect_id)
    .limit(bindparam("page", type_=BigInteger))
)
_OPEN_OF_TURN = (
    select(effects)
    .where(effects.c.turn_id == bindparam("turn"), effects.c.state.in_(_OPEN))
    .order_by(effects.c.created_at, effects.c.effect_id)
)


class SqlEffects:
    """`ports.ledger.Effects`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def get(self, effect_id: str) -> Effect | None:
        row = self._conn.execute(_GET, {"effect": effect_id}).first()
        return None if row is None else _effect(row)

    def lock(self, effect_id: str) -> Effect | None:
        row = self._conn.execute(_LOCK, {"effect": effect_id}).first()
        return None if row is None else _effect(row)

    def page(
        self,
        session_id: str,
        *,
        turn_id: str | None,
        state: EffectState | None,
        limit: int,
        after: str | None = None,
    ) -> list[Effect]:
        query = _PAGE
        if turn_id is not None:
            query = query.where(effects.c.turn_id == turn_id)
        if state is not None:
            query = query.where(effects.c.state == state.value)
        if after is not None:
            last = self._conn.execute(_GET, {"effect": after}).first()
            if last is None:
                raise EffectNotFound(f"There is no effect {after}.")
            query = query.where(
                or_(
                    effects.c.created_at > last.created_at,
                    and_(effects.c.created_at == last.created_at, effects.c.effect_id > after),
                )
            )
        return [_effect(row) for row in self._conn.execute(query, {"session": session_id, "page": limit})]

    def dispatch(self, spec: EffectSpec, at: int, worker: str) -> Effect:
        row = self._conn.execute(_DISPATCH.on(self._conn), _values(spec, at, worker)).first()
        if row is not None:
            return _effect(row)
        found = self._conn.execute(_GET, {"effect": spec.effect_id}).one()
        raise IllegalTransition(f"Effect {spec.effect_id} is '{found.state}' and cannot be dispatched.")

    def settle(
        self,
        effect_id: str,
        attempt: int,
        state: EffectState,
        at: int,
        result: bytes | None,
        error_code: str | None = None,
        error_message: str | None = None,
    ) -> Effect:
        row = self._conn.execute(_LOCK, {"effect": effect_id}).first()
        if row is None:
            raise EffectNotFound(f"There is no effect {effect_id}.")
        _check_settle(effect_id, EffectState(row.state), row.attempt, attempt, state)
        settled = self._conn.execute(
            _SETTLE,
            {
                "effect": effect_id,
                "new_state": state.value,
                "now": at,
                "new_result": _packed(effect_id, result),
                "new_code": error_code,
                "new_message": error_message,
            },
        )
        return _effect(settled.one())

    def note(self, effect_id: str, attempt: int, outcome: bytes) -> None:
        values = {"effect": effect_id, "owner": attempt, "new_result": _packed(effect_id, outcome)}
        if self._conn.execute(_NOTE, values).rowcount == 0:
            raise Fenced(f"Attempt {attempt} of effect {effect_id} owns it no longer.")

    def hold(self, spec: EffectSpec, at: int) -> Effect:
        return self._insert(spec, at, {"state": EffectState.AWAITING_APPROVAL.value})

    def deny(self, spec: EffectSpec, at: int, error_code: str, error_message: str) -> Effect:
        end = {"finished_at": at, "error_code": error_code, "error_message": error_message}
        return self._insert(spec, at, {"state": EffectState.DENIED.value, **end})

    def _insert(self, spec: EffectSpec, at: int, differing: dict[str, Any]) -> Effect:
        """A row that was never dispatched, unless there is one already."""
        values = {**_values(spec, at, ""), "attempt": 0, "dispatched_at": None, "worker": None, **differing}
        self._conn.execute(_INSERT.on(self._conn), values)
        return _effect(self._conn.execute(_GET, {"effect": spec.effect_id}).one())

    def tally(self, session_id: str, *, after_number: int) -> list[EffectCount]:
        rows = self._conn.execute(_TALLY, {"session": session_id, "after": after_number})
        return [
            EffectCount(row.operation, EffectClass(row.effect_class), EffectState(row.state), row[3]) for row in rows
        ]

    def restore(self, effect: Effect) -> None:
        row = {
            "state": effect.state.value,
            "attempt": effect.attempt,
            "dispatched_at": effect.dispatched_at,
            "finished_at": effect.finished_at,
            "worker": effect.worker,
            "result": _packed(effect.spec.effect_id, effect.result),
            "error_code": effect.error_code,
            "error_message": effect.error_message,
        }
        values = {**_values(effect.spec, effect.created_at, ""), **row}
        self._conn.execute(insert(effects), values)

    def open_of_turn(self, turn_id: str) -> list[Effect]:
        return [_effect(row) for row in self._conn.execute(_OPEN_OF_TURN, {"turn": turn_id})]


def _check_settle(effect_id: str, current: EffectState, owner: int, attempt: int, state: EffectState) -> None:
    if current in SETTLED_EFFECT_STATES:
        raise Fenced(f"Effect {effect_id} is settled already ('{current.value}'); attempt {attempt} came too late.")
    if attempt > owner:
        raise IllegalTransition(f"Attempt {attempt} of effect {effect_id} was never dispatched (last: {owner}).")
    late_success = current is EffectState.UNCERTAIN and state is EffectState.SUCCEEDED
    if attempt < owner and not late_success:
        raise Fenced(f"Attempt {owner} owns effect {effect_id}; attempt {attempt} is refused.")
    # A dispatch has its own method, with its own attempt number.
    if state is EffectState.DISPATCHED or state not in EFFECT_TRANSITIONS[current]:
        raise IllegalTransition(f"Effect {effect_id} cannot go from '{current.value}' to '{state.value}'.")


def _values(spec: EffectSpec, at: int, worker: str) -> dict[str, Any]:
    return {
        "effect_id": spec.effect_id,
        "idempotency_key": "" if spec.idempotency_key == _usual_key(spec) else spec.idempotency_key,
        "session_id": spec.session_id,
        "turn_id": spec.turn_id,
        "generation": spec.generation,
        "agent": spec.agent,
        "position": spec.position,
        "operation": spec.operation,
        "effect_class": spec.effect_class.value,
        "input_digest": spec.input_digest,
        "call_id": spec.call_id,
        "arguments": None if spec.arguments is None else encode(spec.arguments),
        "state": EffectState.DISPATCHED.value,
        "attempt": 1,
        "created_at": at,
        "dispatched_at": at,
        "worker": worker,
    }


def _packed(effect_id: str, result: bytes | None) -> bytes | None:
    """A result names its effect."""
    return None if result is None else packed(result, effect_id.encode())


def _unpacked(effect_id: str, kept: bytes | None) -> bytes | None:
    return None if kept is None else unpacked(bytes(kept), effect_id.encode())


def _usual_key(spec: EffectSpec) -> str:
    """The key that follows from the rest of the row, which is not kept a second time."""
    return idempotency_key(spec.turn_id, spec.agent, spec.position, spec.operation, spec.input_digest)


def _effect(row: Row[Any]) -> Effect:
    spec = EffectSpec(
        effect_id=row.effect_id,
        idempotency_key=row.idempotency_key,
        session_id=row.session_id,
        turn_id=row.turn_id,
        generation=row.generation,
        agent=row.agent,
        position=row.position,
        operation=row.operation,
        effect_class=EffectClass(row.effect_class),
        input_digest=row.input_digest,
        call_id=row.call_id,
        arguments=None if row.arguments is None else decode(row.arguments, Content),
    )
    if not spec.idempotency_key:
        spec = replace(spec, idempotency_key=_usual_key(spec))
    return Effect(
        spec=spec,
        state=EffectState(row.state),
        attempt=row.attempt,
        created_at=row.created_at,
        dispatched_at=row.dispatched_at,
        finished_at=row.finished_at,
        worker=row.worker,
        result=_unpacked(row.effect_id, row.result),
        error_code=row.error_code,
        error_message=row.error_message,
    )
