"""Agents and their life: listing them, stopping one, starting it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from milepost.domain.agents import AgentConfig
from milepost.domain.errors import AgentIsStopped, AgentUnknown, TurnNotRunning
from milepost.domain.events import StreamKind
from milepost.domain.lives import AgentLifeChanged, AgentState, AgentStop
from milepost.domain.suggestions import nearest
from milepost.domain.turns import Turn
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.ports.system import Clock, IdSource

PAGE = 200
MAX_RUNNING = 10_000
MAX_SESSIONS = 1000
"""How many of the newest Sessions are looked at to tell whether an agent was ever used."""


@dataclass(frozen=True, slots=True)
class AgentView:
    """An agent of the configuration. `turns` are the ids of those that run with it."""

    config: AgentConfig
    state: AgentState
    turns: tuple[str, ...]
    stop: AgentStop | None


class StopTurns(Protocol):
    async def stop(self, turn_id: str, *, actor: str, reason: str | None = None) -> object: ...


class AgentService:
    """Use cases of agents' lives. What is stopped is stopped in the whole instance, until it is started again."""

    def __init__(
        self, ledger: Ledger, clock: Clock, ids: IdSource, agents: Mapping[str, AgentConfig], turns: StopTurns
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._ids = ids
        self._agents = agents
        self._turns = turns

    async def all(self) -> list[AgentView]:
        """Every agent of the configuration, by id."""

        def body(tx: LedgerTx) -> list[AgentView]:
            stops, running, used = tx.lives.all_stopped(), _running(tx), _used(tx)
            return [
                _view(config, stops.get(name), running.get(name, []), used=name in used)
                for name, config in sorted(self._agents.items())
            ]

        return await self._ledger.read(body)

    async def get(self, agent: str) -> AgentView:
        """Raises AgentUnknown."""
        self._require(agent)
        return next(view for view in await self.all() if view.config.agent_id == agent)

    async def stop(self, agent: str, *, actor: str, reason: str | None = None) -> AgentView:
        """Let an agent begin nothing any more, and ask its running turns to stop; stopping it again changes nothing.

        Raises AgentUnknown, StorageUnavailable.
        """
        self._require(agent)
        now = self._clock.now()

        def body(tx: LedgerTx) -> None:
            if tx.lives.stop(AgentStop(agent, now, actor, reason)):
                self._tell(tx, AgentLifeChanged(agent, stopped=True, actor=actor, reason=reason), now)

        await self._ledger.write(body)
        # After the row: a turn that begins in between is refused, or seen here.
        for turn_id in (await self._ledger.read(_running)).get(agent, []):
            try:
                await self._turns.stop(turn_id, actor=actor, reason=reason or f"Agent '{agent}' was stopped.")
            except TurnNotRunning:
                continue
        return await self.get(agent)

    async def start(self, agent: str, *, actor: str) -> AgentView:
        """Let a stopped agent work again; nothing is begun by it. Raises AgentUnknown, StorageUnavailable."""
        self._require(agent)
        now = self._clock.now()

        def body(tx: LedgerTx) -> None:
            if tx.lives.start(agent):
                self._tell(tx, AgentLifeChanged(agent, stopped=False, actor=actor), now)

        await self._ledger.write(body)
        return await self.get(agent)

    def _tell(self, tx: LedgerTx, event: AgentLifeChanged, now: int) -> None:
        stream = f"instance/{self._ledger.instance_id}"
        tx.events.append(stream, StreamKind.INSTANCE, [NewEvent(self._ids.new("life"), event)], now)

    def _require(self, agent: str) -> None:
        if agent not in self._agents:
            known, meant = ", ".join(sorted(self._agents)), nearest(agent, self._agents)
            raise AgentUnknown(f"There is no agent '{agent}'.", field="agent", fix=f"{meant}Known agents: {known}.")


def require_started(tx: LedgerTx, agent: str) -> None:
    """Raises AgentIsStopped for an agent that a person has stopped."""
    stop = tx.lives.stopped(agent)
    if stop is not None:
        why = f": {stop.reason}" if stop.reason else ""
        raise AgentIsStopped(
            f"The agent '{agent}' was stopped by {stop.actor}{why}.",
            field="agent",
            fix=f"Start it again: milepost agents start {agent}",
        )


def _running(tx: LedgerTx) -> dict[str, list[str]]:
    """Ids of running turns by the agents that take part in them."""
    found: dict[str, list[str]] = {}
    after: str | None = None
    count = 0
    while count < MAX_RUNNING and (page := tx.turns.list_running(after=after, limit=PAGE)):
        for turn in page:
            for agent in _agents_of(tx, turn):
                found.setdefault(agent, []).append(turn.turn_id)
        count += len(page)
        after = page[-1].turn_id
    return found


def _agents_of(tx: LedgerTx, turn: Turn) -> tuple[str, ...]:
    named = turn.request.options.agent
    return tx.sessions.get(turn.session_id).agents if named is None else (named,)


def _used(tx: LedgerTx) -> set[str]:
    return {
        agent for session in tx.sessions.page(status=None, before=None, limit=MAX_SESSIONS) for agent in session.agents
    }


def _view(config: AgentConfig, stop: AgentStop | None, turns: list[str], *, used: bool) -> AgentView:
    if stop is not None:
        state = AgentState.STOPPED
    elif turns:
        state = AgentState.RUNNING
    else:
        state = AgentState.IDLE if used else AgentState.REGISTERED
    return AgentView(config, state, tuple(turns), stop)
