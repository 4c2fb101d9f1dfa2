"""Consolidations as people see them: listed, applied, rejected, reverted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from milepost.domain.agents import AgentConfig
from milepost.domain.consolidation import (
    CONSOLIDATION_TRANSITIONS,
    Consolidation,
    ConsolidationState,
    MemoryConsolidated,
    Promotion,
)
from milepost.domain.errors import BlockConflict, BlockTooLong, ConsolidationSettled, InvalidInput, MemoryUnavailable
from milepost.domain.events import StreamKind
from milepost.domain.memory import BlockSpec, Scope
from milepost.engine.consolidation import added, taken_out
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.ports.system import Clock
from milepost.services.blocks import Author, Change
from milepost.services.memory_edits import MemoryEdits

AUTHOR = "consolidation"
MAX_PAGE = 200

_DOES_NOT_FIT = (InvalidInput, BlockTooLong, BlockConflict)


class ConsolidationService:
    """Every change goes through the blocks' compare-and-swap, so no edit of anybody else is overwritten."""

    def __init__(
        self, ledger: Ledger, clock: Clock, edits: MemoryEdits | None, agents: Mapping[str, AgentConfig]
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._edits = edits
        self._agents = agents

    async def page(
        self,
        *,
        session_id: str | None = None,
        state: ConsolidationState | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[Consolidation]:
        """Newest first. Raises SessionNotFound, ConsolidationNotFound (for `before`)."""

        def body(tx: LedgerTx) -> list[Consolidation]:
            if session_id is not None:
                tx.sessions.get(session_id)
            bounded = max(1, min(limit, MAX_PAGE))
            return tx.consolidations.page(session_id=session_id, state=state, before=before, limit=bounded)

        return await self._ledger.read(body)

    async def get(self, consolidation_id: str) -> Consolidation:
        """Raises ConsolidationNotFound."""
        return await self._ledger.read(lambda tx: tx.consolidations.get(consolidation_id))

    async def apply(self, consolidation_id: str, *, actor: str) -> Consolidation:
        """Put the texts of a proposed consolidation into their blocks; what does not fit is named and left out.

        A kill in between loses nothing: the next call goes on where it stopped, and each text is written once.

        Raises ConsolidationNotFound, ConsolidationSettled, MemoryUnavailable.
        """
        found = await self.get(consolidation_id)
        if found.state is not ConsolidationState.PENDING:
            raise _settled(found, "applied")
        owner = Scope.agent(found.session_id, found.agent)
        done = []
        for number, promotion in enumerate(found.promotions):
            key = f"{consolidation_id}/{number}"
            done.append(await self._promote(owner, found, promotion, key))
        state = ConsolidationState.APPLIED if any(item.version for item in done) else ConsolidationState.EMPTY
        return await self.move(consolidation_id, state, lambda item: replace(item, promotions=tuple(done), actor=actor))

    async def reject(self, consolidation_id: str, *, actor: str, reason: str | None = None) -> Consolidation:
        """Drop a proposed consolidation. Raises ConsolidationNotFound, ConsolidationSettled."""
        return await self.move(
            consolidation_id, ConsolidationState.REJECTED, lambda item: replace(item, actor=actor, error=reason)
        )

    async def revert(self, consolidation_id: str, *, actor: str) -> Consolidation:
        """Take the texts out of their blocks again; what else was written to these since stays.

        A text that somebody has changed since stays, and its problem says so.

        Raises ConsolidationNotFound, ConsolidationSettled, MemoryUnavailable.
        """
        found = await self.get(consolidation_id)
        if found.state is not ConsolidationState.APPLIED:
            raise _settled(found, "reverted")
        owner = Scope.agent(found.session_id, found.agent)
        done = []
        for number, promotion in enumerate(found.promotions):
            if promotion.version is None:
                done.append(promotion)
                continue
            version, problem = await self._edit(
                owner, found, promotion, f"{consolidation_id}/{number}/reverted", taken_out(promotion.text), actor
            )
            done.append(replace(promotion, reverted_by=version, problem=problem))
        return await self.move(
            consolidation_id,
            ConsolidationState.REVERTED,
            lambda item: replace(item, promotions=tuple(done), actor=actor),
        )

    async def move(
        self, consolidation_id: str, state: ConsolidationState, change: Callable[[Consolidation], Consolidation]
    ) -> Consolidation:
        """Bring it to a state and tell the Session. Raises ConsolidationNotFound, ConsolidationSettled."""
        now = self._clock.now()

        def body(tx: LedgerTx) -> Consolidation:
            return moved(tx, consolidation_id, state, change, now)

        return await self._ledger.write(body)

    async def _promote(self, owner: Scope, of: Consolidation, promotion: Promotion, key: str) -> Promotion:
        version, problem = await self._edit(owner, of, promotion, key, added(promotion.text), AUTHOR)
        return replace(promotion, version=version, problem=problem)

    async def _edit(
        self, owner: Scope, of: Consolidation, promotion: Promotion, key: str, change: Change, by: str
    ) -> tuple[int | None, str | None]:
        spec = self._block(of.agent, promotion.label)
        if spec is None:
            return None, f"The agent has no block '{promotion.label}' that can be written."
        note = f"consolidation {of.consolidation_id}"
        author = Author(by, key, self._clock.now(), of.turn_id, of.turn_number, note)
        if self._edits is None:
            raise MemoryUnavailable("This instance has no memory.")
        try:
            return (await self._edits.edit(of.session_id, owner, spec, author, change)).number, None
        except _DOES_NOT_FIT as error:
            return None, error.message

    def _block(self, agent: str, label: str) -> BlockSpec | None:
        config = self._agents.get(agent)
        spec = None if config is None or config.memory is None else config.memory.block(label)
        return None if spec is None or spec.read_only else spec


def moved(
    tx: LedgerTx,
    consolidation_id: str,
    state: ConsolidationState,
    change: Callable[[Consolidation], Consolidation],
    now: int,
) -> Consolidation:
    """In the caller's transaction. Raises ConsolidationNotFound, ConsolidationSettled."""
    found = tx.consolidations.lock(consolidation_id)
    if state not in CONSOLIDATION_TRANSITIONS[found.state]:
        raise _settled(found, state.value)
    new = replace(change(found), state=state, updated_at=now)
    tx.consolidations.save(new)
    event = MemoryConsolidated(
        turn_id=new.turn_id,
        agent=new.agent,
        consolidation_id=consolidation_id,
        state=state,
        promotions=new.promotions,
        effect_id=new.effect_id,
        usage=new.usage,
        error=new.error,
        actor=new.actor,
    )
    key = f"{consolidation_id}/{state.value}"
    tx.events.append(new.session_id, StreamKind.SESSION, [NewEvent(key, event, new.turn_id)], now)
    tx.notify(new.session_id)
    return new


def _settled(found: Consolidation, wanted: str) -> ConsolidationSettled:
    return ConsolidationSettled(
        f"Consolidation {found.consolidation_id} is {found.state}; it cannot be {wanted}.",
        fix="Look at it: milepost consolidations show ID. Blocks have a history of their own.",
    )
