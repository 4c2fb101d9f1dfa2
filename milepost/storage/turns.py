"""Turns: one running turn per Session, one terminal state per turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import BigInteger, Connection, Row, bindparam, func, or_, select, true, update

from milepost.domain.errors import (
    IdempotencyMismatch,
    IllegalTransition,
    InvalidInput,
    TurnClaimed,
    TurnNotFound,
    TurnNotRunning,
    TurnRunning,
)
from milepost.domain.turns import Turn, TurnRequest, TurnState
from milepost.domain.usage import Usage
from milepost.ledger.codec import decode, encode
from milepost.ports.notifier import stop_topic
from milepost.storage.columns import MAX_IDENTIFIER_BYTES
from milepost.storage.packing import Packed
from milepost.storage.sessions import missing as session_missing
from milepost.storage.statements import insert_ignore
from milepost.storage.tables import sessions, turn_origins, turns

_RUNNING = turns.c.state == TurnState.RUNNING.value
_THIS = turns.c.turn_id == bindparam("turn")
_ADD = insert_ignore(turns)
_ADD_ORIGIN = insert_ignore(turn_origins)
_SELECT = select(turns, turn_origins.c.retry_of, turn_origins.c.copied_from).join_from(
    turns, turn_origins, turns.c.turn_id == turn_origins.c.turn_id, isouter=True
)
_LOCK_SESSION = (
    select(sessions.c.session_id).where(sessions.c.session_id == bindparam("session")).with_for_update(key_share=True)
)
_LAST_NUMBER = select(func.max(turns.c.number)).where(turns.c.session_id == bindparam("session"))
_GET = _SELECT.where(_THIS)
_FIND = _SELECT.where(turns.c.session_id == bindparam("session"), turns.c.idempotency_key == bindparam("key"))
_RUNNING_OF = _SELECT.where(turns.c.session_id == bindparam("session"), _RUNNING)
_PAGE = (
    _SELECT.where(turns.c.session_id == bindparam("session"), turns.c.number < bindparam("before"))
    .order_by(turns.c.number.desc())
    .limit(bindparam("page", type_=BigInteger))
)
_LIVE_BEFORE = (
    select(turns.c.number, turns.c.turn_id)
    .where(turns.c.session_id == bindparam("session"), turns.c.number < bindparam("before"), ~turns.c.superseded)
    .order_by(turns.c.number.desc())
    .limit(bindparam("page", type_=BigInteger))
)
_LIST_RUNNING = (
    _SELECT.where(_RUNNING, turns.c.turn_id > bindparam("after"))
    .order_by(turns.c.turn_id)
    .limit(bindparam("page", type_=BigInteger))
)
_CLAIM = (
    update(turns)
    .where(_THIS, _RUNNING, or_(turns.c.claimed_run.is_(None), turns.c.claimed_run == bindparam("run")))
    .values(claimed_run=bindparam("run"))
    .returning(*turns.c)
)
_MARK_DISPATCHED = update(turns).where(_THIS, turns.c.dispatched_at.is_(None)).values(dispatched_at=bindparam("now"))
_REQUEST_STOP = (
    update(turns)
    .where(_THIS, _RUNNING)
    .values(stop_requested_at=func.coalesce(turns.c.stop_requested_at, bindparam("now", type_=BigInteger)))
)
_NUMBERED = _SELECT.where(turns.c.session_id == bindparam("session"), turns.c.number == bindparam("at_number"))
_AFTER = (turns.c.session_id == bindparam("session"), turns.c.number > bindparam("after"), ~turns.c.superseded)
_LIVE = select(func.count()).select_from(turns).where(*_AFTER)
_SUPERSEDED = select(turns.c.turn_id).where(turns.c.session_id == bindparam("session"), turns.c.superseded)
_SUPERSEDE = update(turns).where(*_AFTER).values(superseded=true())
_FINISH = (
    update(turns)
    .where(_THIS, _RUNNING)
    .values(
        state=bindparam("new_state"),
        ended_at=bindparam("now"),
        usage=bindparam("new_usage", type_=Packed),
        error_code=bindparam("new_code"),
        error_message=bindparam("new_message"),
    )
)


class SqlTurns:
    """`ports.ledger.Turns`. A stop request wakes the turn's activities after the commit."""

    def __init__(self, conn: Connection, notify: Callable[[str], None]) -> None:
        self._conn = conn
        self._notify = notify

    def add(self, turn: Turn) -> None:
        if turn.state.terminal:
            raise IllegalTransition(f"Turn {turn.turn_id} cannot begin as '{turn.state.value}'.")
        if len((turn.idempotency_key or "").encode("utf-8", "surrogatepass")) > MAX_IDENTIFIER_BYTES:
            raise InvalidInput(
                f"The idempotency key is longer than {MAX_IDENTIFIER_BYTES} bytes.",
                field="idempotency_key",
                fix="Use a shorter key.",
            )
        # One statement decides every uniqueness rule without aborting the transaction.
        if self._conn.execute(_ADD.on(self._conn), _values(turn)).rowcount == 0:
            raise self._conflict(turn)
        self._add_origin(turn)

    def restore(self, turn: Turn) -> None:
        if self._conn.execute(_ADD.on(self._conn), _values(turn)).rowcount == 0:
            raise self._conflict(turn)
        self._add_origin(turn)

    def _add_origin(self, turn: Turn) -> None:
        if turn.retry_of is not None or turn.copied_from is not None:
            row = {"turn_id": turn.turn_id, "retry_of": turn.retry_of, "copied_from": turn.copied_from}
            self._conn.execute(_ADD_ORIGIN.on(self._conn), row)

    def _conflict(self, turn: Turn) -> Exception:
        known = self._conn.execute(_GET, {"turn": turn.turn_id}).first()
        if known is not None:
            return IdempotencyMismatch(f"There is a turn {turn.turn_id} already.", field="turn_id")
        if turn.idempotency_key is not None and self.find(turn.session_id, turn.idempotency_key):
            return IdempotencyMismatch(
                "The idempotency key belongs to another turn of this Session.", field="idempotency_key"
            )
        running = self.running(turn.session_id)
        if running is not None:
            return TurnRunning(
                f"Turn {running.turn_id} of this Session is still running.",
                turn_id=running.turn_id,
                fix="Wait for it or stop it first.",
            )
        return InvalidInput(f"The Session has a turn number {turn.number} already.", field="number")

    def lock_session(self, session_id: str) -> int:
        if self._conn.execute(_LOCK_SESSION, {"session": session_id}).first() is None:
            raise session_missing(session_id)
        return (self._conn.execute(_LAST_NUMBER, {"session": session_id}).scalar() or 0) + 1

    def get(self, turn_id: str) -> Turn:
        row = self._conn.execute(_GET, {"turn": turn_id}).first()
        if row is None:
            raise TurnNotFound(f"There is no turn {turn_id}.", fix="List a Session's turns with `milepost history`.")
        return _turn(row)

    def find(self, session_id: str, idempotency_key: str) -> Turn | None:
        return self._one(_FIND, {"session": session_id, "key": idempotency_key})

    def running(self, session_id: str) -> Turn | None:
        return self._one(_RUNNING_OF, {"session": session_id})

    def page(self, session_id: str, *, before_number: int | None, limit: int) -> list[Turn]:
        before = 2**31 - 1 if before_number is None else before_number
        return self._all(_PAGE, {"session": session_id, "before": before, "page": limit})

    def live_before(self, session_id: str, number: int, limit: int) -> list[tuple[int, str]]:
        rows = self._conn.execute(_LIVE_BEFORE, {"session": session_id, "before": number, "page": limit})
        return [(row.number, row.turn_id) for row in rows]

    def list_running(self, *, after: str | None, limit: int) -> list[Turn]:
        return self._all(_LIST_RUNNING, {"after": after or "", "page": limit})

    def claim(self, turn_id: str, run_id: str) -> Turn:
        row = self._conn.execute(_CLAIM, {"turn": turn_id, "run": run_id}).first()
        if row is not None:
            return _turn(row)
        turn = self.get(turn_id)
        if turn.state.terminal:
            raise TurnClaimed(f"Turn {turn_id} has ended ({turn.state.value}).")
        raise TurnClaimed(f"Turn {turn_id} belongs to run {turn.claimed_run}.")

    def mark_dispatched(self, turn_id: str, at: int) -> None:
        self._conn.execute(_MARK_DISPATCHED, {"turn": turn_id, "now": at})

    def request_stop(self, turn_id: str, at: int) -> None:
        if self._conn.execute(_REQUEST_STOP, {"turn": turn_id, "now": at}).rowcount == 0:
            raise self._ended(turn_id)
        self._notify(stop_topic(turn_id))

    def finish(
        self,
        turn_id: str,
        state: TurnState,
        at: int,
        usage: Usage,
        error_code: str | None = None,
        error_message: str | None = None,
    ) -> None:
        if not state.terminal:
            raise IllegalTransition(f"Turn {turn_id} cannot end as '{state.value}'.")
        done = self._conn.execute(
            _FINISH,
            {
                "turn": turn_id,
                "new_state": state.value,
                "now": at,
                "new_usage": encode(usage),
                "new_code": error_code,
                "new_message": error_message,
            },
        )
        if done.rowcount == 0:
            raise self._ended(turn_id)

    def numbered(self, session_id: str, number: int) -> Turn:
        turn = self._one(_NUMBERED, {"session": session_id, "at_number": number})
        if turn is None:
            raise TurnNotFound(
                f"The Session has no turn number {number}.", fix=f"List its turns: milepost history {session_id}"
            )
        return turn

    def live(self, session_id: str, *, after_number: int) -> tuple[int, int]:
        live = self._conn.execute(_LIVE, {"session": session_id, "after": after_number}).scalar() or 0
        return live, self._conn.execute(_LAST_NUMBER, {"session": session_id}).scalar() or 0

    def superseded(self, session_id: str) -> frozenset[str]:
        return frozenset(self._conn.execute(_SUPERSEDED, {"session": session_id}).scalars())

    def supersede(self, session_id: str, *, after_number: int) -> int:
        return self._conn.execute(_SUPERSEDE, {"session": session_id, "after": after_number}).rowcount

    def _ended(self, turn_id: str) -> TurnNotRunning:
        turn = self.get(turn_id)
        return TurnNotRunning(f"Turn {turn_id} has ended ({turn.state.value}); nothing was changed.")

    def _one(self, query: Any, params: dict[str, Any]) -> Turn | None:
        row = self._conn.execute(query, params).first()
        return None if row is None else _turn(row)

    def _all(self, query: Any, params: dict[str, Any]) -> list[Turn]:
        return [_turn(row) for row in self._conn.execute(query, params)]


def _values(turn: Turn) -> dict[str, Any]:
    return {
        "turn_id": turn.turn_id,
        "session_id": turn.session_id,
        "number": turn.number,
        "state": turn.state.value,
        "request": encode(turn.request),
        "content_digest": turn.content_digest,
        "idempotency_key": turn.idempotency_key,
        "workflow_id": _short(turn.workflow_id, turn.turn_id),
        "claimed_run": turn.claimed_run,
        "generation": turn.generation,
        "created_at": turn.created_at,
        "dispatched_at": turn.dispatched_at,
        "stop_requested_at": turn.stop_requested_at,
        "ended_at": turn.ended_at,
        "error_code": turn.error_code,
        "error_message": turn.error_message,
        "usage": encode(turn.usage),
        "superseded": turn.superseded,
    }


_ITSELF = "*"
"""Stands for the turn's id at the end of its workflow's: no id of ours has this character."""


def _short(workflow_id: str, turn_id: str) -> str:
    return workflow_id.removesuffix(turn_id) + _ITSELF if workflow_id.endswith(turn_id) else workflow_id


def _turn(row: Row[Any]) -> Turn:
    values = dict(row._mapping)
    if row.workflow_id.endswith(_ITSELF):
        values["workflow_id"] = row.workflow_id.removesuffix(_ITSELF) + row.turn_id
    values["state"] = TurnState(row.state)
    values["request"] = decode(row.request, TurnRequest)
    values["usage"] = decode(row.usage, Usage)
    return Turn(**values)
