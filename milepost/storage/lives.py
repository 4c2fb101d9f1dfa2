"""Agents that a person has stopped."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, delete, select

from milepost.domain.lives import AgentStop
from milepost.storage.columns import Utf8
from milepost.storage.statements import insert_ignore
from milepost.storage.tables import agent_stops

_ADD = insert_ignore(agent_stops)
_THIS = agent_stops.c.agent == bindparam("of_agent", type_=Utf8)
_GET = select(agent_stops).where(_THIS)
_ALL = select(agent_stops)
_DELETE = delete(agent_stops).where(_THIS)


class SqlAgentLives:
    """`ports.ledger.AgentLives`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def stop(self, stop: AgentStop) -> bool:
        values = {column.name: getattr(stop, column.name) for column in agent_stops.c}
        return self._conn.execute(_ADD.on(self._conn), values).rowcount > 0

    def start(self, agent: str) -> bool:
        return self._conn.execute(_DELETE, {"of_agent": agent}).rowcount > 0

    def stopped(self, agent: str) -> AgentStop | None:
        row = self._conn.execute(_GET, {"of_agent": agent}).first()
        return None if row is None else AgentStop(**row._mapping)

    def all_stopped(self) -> dict[str, AgentStop]:
        return {row.agent: AgentStop(**row._mapping) for row in self._conn.execute(_ALL)}
