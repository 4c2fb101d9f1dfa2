"""What a person does with checkpoints: look at them, make one now, throw them away, collect what is of no use."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial

from milepost.domain.checkpoints import Checkpoint
from milepost.domain.errors import AgentUnknown, CheckpointUnusable, TurnNotFound
from milepost.domain.events import AgentStarted, Event
from milepost.domain.sessions import Session
from milepost.engine.budgets import session_scope
from milepost.ledger.chain import StoredEvent
from milepost.ledger.codec import decode_event
from milepost.ports.checkpoints import CheckpointFile, CheckpointStore
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.ports.system import Clock
from milepost.services.checkpointing import CheckpointKeeper, folder
from milepost.services.earlier import MAX_PROJECTED_BYTES, MAX_PROJECTED_TURNS, EarlierTurns, View, view_of

_NO_END = 2**31 - 1


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """One file. `checkpoint` is None if it cannot be used, and `problem` says why."""

    agent: str
    file: CheckpointFile
    checkpoint: Checkpoint | None
    problem: str | None = None


class CheckpointService:
    """The checkpoints of this host. `agents` are the configured ones: a turn may name any of them."""

    def __init__(self, ledger: Ledger, clock: Clock, store: CheckpointStore, agents: Collection[str]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._store = store
        self._agents = agents
        self._keeper = CheckpointKeeper(ledger, store)

    async def of_session(self, session_id: str, agent: str | None = None) -> list[CheckpointView]:
        """A Session's checkpoints by agent, newest first; nothing is discarded. Raises SessionNotFound."""
        found: list[CheckpointView] = []
        for name in await self._names(session_id, agent):
            for file in await asyncio.to_thread(self._store.files, folder((session_id, name))):
                found.append(await self._view(session_id, name, file))
        return found

    async def write(self, session_id: str, agent: str | None = None) -> list[CheckpointView]:
        """Make a checkpoint of each agent's conversation as the ledger has it now; of `agent` alone if one is named.

        Agents that have said nothing have none.

        Raises SessionNotFound, AgentUnknown, CheckpointUnusable, StorageUnavailable.
        """
        made: list[CheckpointView] = []
        for name in await self._names(session_id, agent):
            checkpoint = await self._ledger.read(partial(self._present, session_id=session_id, agent=name))
            if checkpoint is None:
                continue
            size = await asyncio.to_thread(self._keeper.save, checkpoint)
            file = CheckpointFile(folder((session_id, name)), checkpoint.seq, size, checkpoint.at / 1e6)
            made.append(CheckpointView(name, file, checkpoint))
        return made

    async def discard(self, session_id: str, agent: str | None = None) -> int:
        """Remove them; return how many. Raises SessionNotFound, AgentUnknown, StorageUnavailable."""
        count = 0
        for name in await self._names(session_id, agent):
            for file in await asyncio.to_thread(self._store.files, folder((session_id, name))):
                await asyncio.to_thread(self._store.discard, file)
                count += 1
        return count

    async def _names(self, session_id: str, agent: str | None) -> list[str]:
        session: Session = await self._ledger.read(lambda tx: tx.sessions.get(session_id))
        names = list(dict.fromkeys((*session.agents, *self._agents)))
        if agent is None:
            return names
        if agent not in names:
            raise AgentUnknown(f"There is no agent '{agent}'.", field="agent", fix=f"Name one of {', '.join(names)}.")
        return [agent]

    async def _view(self, session_id: str, agent: str, file: CheckpointFile) -> CheckpointView:
        try:
            return CheckpointView(agent, file, await self._keeper.judge((session_id, agent), file))
        except CheckpointUnusable as error:
            return CheckpointView(agent, file, None, error.message)

    def _present(self, tx: LedgerTx, session_id: str, agent: str) -> Checkpoint | None:
        view = _last_view(tx, session_id, agent)
        if view is None:
            return None
        running = tx.turns.running(session_id)
        before = _NO_END if running is None else running.number
        turns = EarlierTurns(_decoded)
        earlier = turns.read(tx, session_id, view, before, MAX_PROJECTED_BYTES, MAX_PROJECTED_TURNS)
        return Checkpoint(
            session_id=session_id,
            agent=agent,
            view=view.name,
            seq=earlier.known.seq,
            hash=earlier.known.hash.hex(),
            at=self._clock.now(),
            usage=tx.budgets.spending(session_scope(session_id)).usage,
            omitted=earlier.omitted,
            segments=earlier.segments,
        )


def _last_view(tx: LedgerTx, session_id: str, agent: str) -> View | None:
    """How the agent's model got its last turn; None if it had none among the newest."""
    for _, turn_id in tx.turns.live_before(session_id, _NO_END, MAX_PROJECTED_TURNS):
        for item in tx.events.read_turn(session_id, turn_id, types=(AgentStarted.TYPE,)):
            event = _decoded(item)
            if isinstance(event, AgentStarted) and event.agent == agent:
                return view_of(event)
    return None


def _decoded(item: StoredEvent) -> Event:
    return decode_event(item.type, item.version, item.payload)


async def useless(ledger: Ledger, store: CheckpointStore, keys: Iterable[str]) -> list[CheckpointFile]:
    """Checkpoints that no turn would take: unreadable, of no Session of this ledger, or with superseded turns.

    Raises StorageUnavailable.
    """
    keeper = CheckpointKeeper(ledger, store)
    found: list[CheckpointFile] = []
    for key in keys:
        for file in await asyncio.to_thread(store.files, key):
            try:
                checkpoint = await keeper.judge(None, file)
            except CheckpointUnusable:
                found.append(file)
                continue
            if await ledger.read(partial(_superseded, checkpoint=checkpoint)):
                found.append(file)
    return found


def _superseded(tx: LedgerTx, checkpoint: Checkpoint) -> bool:
    try:
        return any(tx.turns.get(segment.turn_id).superseded for segment in checkpoint.segments[-1:])
    except TurnNotFound:
        return True
