"""Memory as a person sees and edits it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from milepost.domain.agents import AgentConfig
from milepost.domain.errors import AgentUnknown, BlockNotFound, InvalidInput, RecordNotFound
from milepost.domain.memory import (
    DEFAULT_MIN_SCORE,
    MAX_BLOCK_LIMIT,
    BlockSpec,
    BlockVersion,
    DailyEntry,
    Recall,
    Scope,
)
from milepost.domain.semantic import MemoryRecord, ReindexStep, SemanticStats
from milepost.domain.sessions import Session
from milepost.ledger.codec import canonical_bytes
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.ports.memory_rows import MemoryTask
from milepost.ports.system import Clock, IdSource
from milepost.services.blocks import Author, Block, set_to
from milepost.services.memory_stores import MemoryStores
from milepost.services.memory_tasks import rebuild_memory
from milepost.services.turns import turn_running

PAGE = 200
ALWAYS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""All times that can be: the years 1 to 9999, in microseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class OwnerView:
    """What one owner has in memory. `days` are the dates of its log."""

    scope: Scope
    blocks: tuple[Block, ...]
    days: tuple[str, ...]
    records: SemanticStats


@dataclass(frozen=True, slots=True)
class SessionMemory:
    """`waiting` is what is still to be written."""

    owners: tuple[OwnerView, ...]
    waiting: tuple[MemoryTask, ...]


@dataclass(frozen=True, slots=True)
class BlockView:
    """A block with its versions, newest first, each with whether a rewind took its turn out."""

    block: Block
    history: tuple[tuple[BlockVersion, bool], ...]


@dataclass(frozen=True, slots=True)
class Dated:
    """An entry of the daily log, and whether a rewind took its turn out."""

    entry: DailyEntry
    superseded: bool


class MemoryService:
    """Use cases of people; `agents` are those of the configuration."""

    def __init__(
        self, ledger: Ledger, clock: Clock, ids: IdSource, agents: Mapping[str, AgentConfig], stores: MemoryStores
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._ids = ids
        self._agents = agents
        self._stores = stores
        self._blocks = stores.block_service(ledger)
        self._edits = stores.edits(ledger, clock)

    async def session(self, session_id: str) -> SessionMemory:
        """Whose memory a Session has, and how much. Raises SessionNotFound, MemoryUnavailable, MemoryDamaged."""
        session, waiting = await self._ledger.read(lambda tx: _session(tx, session_id))
        owners = []
        for name in dict.fromkeys(session.agents):
            scope = Scope.agent(session_id, name)
            specs = await self._specs(scope)
            blocks = await self._blocks.all(scope, specs)
            days = await self._stores.daily.days(scope)
            owners.append(OwnerView(scope, tuple(blocks), tuple(days), await self._stores.semantic.stats(scope)))
        return SessionMemory(tuple(owners), tuple(waiting))

    async def blocks(self, session_id: str, owner: str) -> list[Block]:
        """Raises SessionNotFound, AgentUnknown, InvalidInput, MemoryUnavailable, MemoryDamaged."""
        scope = await self._scope(session_id, owner)
        return await self._blocks.all(scope, await self._specs(scope))

    async def block(self, session_id: str | None, owner: str, label: str) -> BlockView:
        """One block with its history; a shared one without a Session. Raises what `blocks` does, BlockNotFound."""
        scope, spec = await self._found(session_id, owner, label)
        block = await self._blocks.one(scope, spec)
        return BlockView(block, tuple(await self._blocks.history(scope, spec)))

    async def shared(self) -> list[Block]:
        """All shared blocks that agents of the configuration declare."""
        specs = _shared(self._agents.values())
        return [await self._blocks.one(Scope.shared(label), spec) for label, spec in sorted(specs.items())]

    async def write(
        self,
        session_id: str | None,
        owner: str,
        label: str,
        value: str,
        actor: str,
        *,
        expected: int | None = None,
        note: str = "",
    ) -> BlockVersion:
        """Give a block a new value. Raises what `block` does, BlockTooLong, BlockConflict (see `expected`)."""
        scope, spec = await self._found(session_id, owner, label)
        return await self._edits.edit(session_id, scope, spec, self._author(actor, note), set_to(value), expected)

    async def revert(
        self, session_id: str | None, owner: str, label: str, to: int, actor: str, *, note: str = ""
    ) -> BlockVersion:
        """Give a block the value of an earlier version; 0: that of the configuration. Raises what `write` does."""
        scope, spec = await self._found(session_id, owner, label)
        return await self._edits.revert(session_id, scope, spec, self._author(actor, note), to)

    async def log(
        self,
        session_id: str,
        owner: str,
        start: int | None,
        end: int | None,
        *,
        after: tuple[int, str] | None = None,
        limit: int = PAGE,
    ) -> list[Dated]:
        """Entries with `start` <= at < `end`, oldest first. Raises what `blocks` does."""
        if start is not None and end is not None and start > end:
            raise InvalidInput("'from' is after 'to'.", field="from", fix="Name the earlier time first.")
        scope = await self._scope(session_id, owner)
        hidden = await self._superseded(session_id)
        first, last = ALWAYS[0] if start is None else start, ALWAYS[1] if end is None else end
        found = await self._stores.daily.read(scope, first, last, limit=limit, after=after)
        return [Dated(entry, entry.turn_id in hidden) for entry in found.entries]

    async def records(self, session_id: str, owner: str, *, before: int | None, limit: int) -> list[MemoryRecord]:
        """Records of the semantic memory that a rewind did not hide, newest first. Raises what `blocks` does."""
        scope = await self._scope(session_id, owner)
        hidden = await self._superseded(session_id)
        return await self._stores.semantic.page(scope, before=before, limit=limit, exclude_turns=hidden)

    async def recall(
        self, session_id: str, owner: str, query: str, *, limit: int, min_score: int = DEFAULT_MIN_SCORE
    ) -> Recall:
        """Search as the agent would. Raises what `blocks` does, EmbeddingMismatch."""
        scope = await self._scope(session_id, owner)
        hidden = await self._superseded(session_id)
        return await self._stores.semantic.search(scope, query, limit=limit, min_score=min_score, exclude_turns=hidden)

    async def forget(self, session_id: str, owner: str, ids: Sequence[str], actor: str) -> list[str]:
        """Erase records; those that are gone. Raises what `blocks` does, RecordNotFound if none of them is there."""
        scope = await self._scope(session_id, owner)
        gone = await self._edits.forget(scope, list(ids), self._author(actor, ""))
        if not gone:
            raise RecordNotFound("There is no such record.", field="ids", fix="See: milepost memory records SESSION")
        return gone

    async def reindex(self, session_id: str, owner: str, after: int) -> ReindexStep:
        """A step of making the records' vectors anew. Raises what `blocks` does, EmbeddingFailed."""
        scope = await self._scope(session_id, owner)
        return await self._stores.semantic.reindex_step(scope, after=after)

    async def rebuild(self, session_id: str) -> None:
        """Have a Session's memory made anew from the ledger. Raises SessionNotFound, TurnRunning."""
        now = self._clock.now()

        def body(tx: LedgerTx) -> None:
            tx.sessions.get(session_id)
            running = tx.turns.running(session_id)
            if running is not None:
                raise turn_running(running)
            rebuild_memory(tx, session_id, now)

        await self._ledger.write(body)

    async def export(self, session_id: str, owner: str) -> AsyncGenerator[bytes, None]:
        """All that an owner has in memory as JSON lines, each with a `type`: block, entry, record.

        Raises what `blocks` does, before the first line.
        """
        scope = await self._scope(session_id, owner)
        specs = await self._specs(scope)
        blocks = [(spec, await self._blocks.history(scope, spec)) for spec in specs]
        return self._lines(scope, blocks)

    async def _lines(
        self, scope: Scope, blocks: list[tuple[BlockSpec, list[tuple[BlockVersion, bool]]]]
    ) -> AsyncGenerator[bytes, None]:
        session_id = str(scope.session_id)
        hidden = await self._superseded(session_id)
        for spec, versions in blocks:
            for version, superseded in reversed(versions):
                yield _line("block", {**asdict(version), "label": spec.label, "shared": spec.shared}, superseded)
        after: tuple[int, str] | None = None
        while entries := (await self._stores.daily.read(scope, *ALWAYS, limit=PAGE, after=after)).entries:
            for entry in entries:
                yield _line("entry", asdict(entry), entry.turn_id in hidden)
            after = (entries[-1].at, entries[-1].id)
        before: int | None = None
        while records := await self._stores.semantic.page(scope, before=before, limit=PAGE):
            for record in records:
                turns = [source.turn_id for source in record.sources]
                yield _line("record", asdict(record), bool(turns) and all(turn in hidden for turn in turns))
            before = records[-1].position

    async def close(self) -> None:
        """Finish what was begun."""
        await self._edits.close()

    async def _scope(self, session_id: str, owner: str) -> Scope:
        session = await self._ledger.read(lambda tx: tx.sessions.get(session_id))
        scope = Scope.named(session_id, owner)
        known = {*self._agents, *session.agents}
        if scope.parts[1] not in known:
            raise AgentUnknown(
                f"There is no agent '{scope.parts[1][:100]}'.", field="owner", fix=f"Known: {', '.join(sorted(known))}."
            )
        return scope

    async def _specs(self, scope: Scope) -> tuple[BlockSpec, ...]:
        """The blocks that the agent declares, and those that are kept although nothing declares them any more."""
        config = self._agents.get(scope.parts[-1])
        declared = config.memory.blocks if config is not None and config.memory is not None else ()
        known = {spec.label for spec in declared if not spec.shared}
        kept = [label for label in await self._stores.blocks.all(scope) if label not in known]
        return (*declared, *(BlockSpec(label, "", MAX_BLOCK_LIMIT) for label in sorted(kept)))

    async def _found(self, session_id: str | None, owner: str, label: str) -> tuple[Scope, BlockSpec]:
        if session_id is None:
            specs = tuple(_shared(self._agents.values()).values())
            scope = Scope.shared(label)
        else:
            scope = await self._scope(session_id, owner)
            specs = await self._specs(scope)
        spec = next((spec for spec in specs if spec.label == label), None)
        if spec is None:
            known = ", ".join(each.label for each in specs) or "none"
            raise BlockNotFound(f"There is no block '{label[:100]}'.", field="label", fix=f"Known: {known}.")
        return scope, spec

    def _author(self, actor: str, note: str) -> Author:
        return Author(by=f"person:{actor}", key=self._ids.new("edt"), at=self._clock.now(), note=note)

    async def _superseded(self, session_id: str) -> frozenset[str]:
        return await self._ledger.read(lambda tx: tx.turns.superseded(session_id))


def _session(tx: LedgerTx, session_id: str) -> tuple[Session, list[MemoryTask]]:
    return tx.sessions.get(session_id), tx.memory_tasks.of_session(session_id)


def _shared(agents: Iterable[AgentConfig]) -> dict[str, BlockSpec]:
    found: dict[str, BlockSpec] = {}
    for agent in agents:
        for spec in agent.memory.blocks if agent.memory is not None else ():
            if spec.shared:
                found.setdefault(spec.label, spec)
    return found


def _line(kind: str, value: dict[str, Any], superseded: bool) -> bytes:
    return canonical_bytes({"type": kind, "superseded": superseded, **_plain(value)}) + b"\n"


def _plain(value: Any) -> Any:
    """Tuples as lists."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
