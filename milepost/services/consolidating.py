"""Consolidating the memory of idle agents: whose turn it is, what the model is asked, what it may cost."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from milepost.domain.agents import AgentConfig
from milepost.domain.consolidation import MAX_FACTS, MAX_TRIES, Consolidation, ConsolidationSettings, ConsolidationState
from milepost.domain.effects import Effect, EffectClass, EffectSpec, EffectState
from milepost.domain.errors import InvalidInput, MilepostError
from milepost.domain.events import StreamKind
from milepost.domain.memory import MemorySettings, Scope
from milepost.domain.semantic import MemoryRecord
from milepost.domain.sessions import Session, SessionMode, SessionStatus
from milepost.domain.turns import Turn
from milepost.domain.usage import UNKNOWN_USAGE, Usage
from milepost.engine.consolidation import BlockShown, Fact, promotions_of
from milepost.engine.consolidation_tries import failures, may_try
from milepost.engine.effects import Entry, effect_id, idempotency_key, on_entry
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.ports.semantic import SemanticMemory
from milepost.ports.system import Clock
from milepost.services.blocks import BlockService
from milepost.services.budgeting import Ask, reserve, settle_attempt
from milepost.services.consolidations import ConsolidationService, moved
from milepost.services.finishing import bounded_error

MAX_SESSIONS = 1000
MAX_CANDIDATES = 20
"""Consolidations of one pass; the next one goes on."""

MAX_RECORDS_READ = 1000
PAGE = 100
_LOOKED_AT_NOTHING = frozenset({ConsolidationState.FAILED, ConsolidationState.RUNNING})
STALE_US = 3_600_000_000
"""One that is `running` for longer has no worker any more."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An agent in a Session that is idle. `turn` is the newest turn that counts."""

    session_id: str
    agent: str
    turn_id: str


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be asked. `facts` are oldest first, `watermark` the position of the newest."""

    consolidation: Consolidation
    config: AgentConfig
    blocks: tuple[BlockShown, ...]
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The effect to carry out; `recorded` if it has its outcome already."""

    effect: Effect
    recorded: bool


class Consolidator:
    """Finds idle agents and keeps the record of each consolidation; the model is asked by whoever calls."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        agents: Mapping[str, AgentConfig],
        blocks: BlockService,
        semantic: SemanticMemory,
        reviews: ConsolidationService,
        settings: ConsolidationSettings,
        worker: str,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._agents = agents
        self._blocks = blocks
        self._semantic = semantic
        self._reviews = reviews
        self._settings = settings
        self._worker = worker

    async def candidates(self) -> list[Candidate]:
        """Idle agents that may have something new, those of the newest Sessions first; none if it is off."""
        if not self._settings.enabled:
            return []
        now = self._clock.now()

        def body(tx: LedgerTx) -> list[Candidate]:
            found: list[Candidate] = []
            for session in tx.sessions.page(status=SessionStatus.ACTIVE, before=None, limit=MAX_SESSIONS):
                for agent in session.agents:
                    turn = self._idle(tx, session, agent, now)
                    if turn is not None:
                        found.append(Candidate(session.session_id, agent, turn.turn_id))
            return found[:MAX_SESSIONS]

        worth: list[Candidate] = []
        for candidate in await self._ledger.read(body):
            if await self._worth_asking(candidate, now):
                worth.append(candidate)
            if len(worth) == MAX_CANDIDATES:
                break
        return worth

    async def _worth_asking(self, of: Candidate, now: int) -> bool:
        """Whether there are records that nobody looked at, and no tries about the same ones forbid it.

        Without it Sessions that have nothing (copies nobody works in, turns that failed) would take up every pass.
        """
        hidden, watermark = await self._looked_at(of.session_id, of.agent, "")
        owner = Scope.agent(of.session_id, of.agent)
        try:
            page = await self._semantic.page(owner, before=None, limit=1, exclude_turns=hidden, current=True)
        except MilepostError:
            return True  # taking it up fails with the reason
        if not page or page[0].position <= watermark:
            return False
        newest = page[0].position
        known = await self._ledger.read(lambda tx: tx.consolidations.newest(of.session_id, of.agent, MAX_TRIES))
        return may_try(failures(known, of.turn_id, newest), self._settings.interval_secs, now)

    async def _looked_at(self, session_id: str, agent: str, besides: str) -> tuple[frozenset[str], int]:
        """Turns whose records do not count, and the position up to which other consolidations have looked."""

        def look(tx: LedgerTx) -> tuple[frozenset[str], int]:
            known = tx.consolidations.newest(session_id, agent, PAGE)
            looked = [item for item in known if item.state not in _LOOKED_AT_NOTHING]
            marks = [item.watermark for item in looked if item.consolidation_id != besides]
            return tx.turns.superseded(session_id), max(marks, default=0)

        return await self._ledger.read(look)

    def _idle(
        self, tx: LedgerTx, session: Session, agent: str, now: int, newest_record: int | None = None
    ) -> Turn | None:
        """The newest turn that counts, if the agent may be asked now."""
        config = self._agents.get(agent)
        if config is None or config.memory is None or session.mode is SessionMode.COORDINATOR:
            return None
        if tx.lives.stopped(agent) is not None or tx.turns.running(session.session_id) is not None:
            return None
        newest = tx.turns.live_before(session.session_id, 2**31 - 1, 1)
        if not newest:
            return None
        turn = tx.turns.get(newest[0][1])
        if turn.ended_at is None or turn.ended_at > now - self._settings.idle_threshold_secs * 1_000_000:
            return None
        known = tx.consolidations.newest(session.session_id, agent, MAX_TRIES)
        for last in known[:1]:
            if last.state is ConsolidationState.RUNNING:
                busy = last.updated_at > now - STALE_US
            else:
                seen = last.turn_id == turn.turn_id and last.state is not ConsolidationState.FAILED
                busy = seen or last.state is ConsolidationState.PENDING
            if busy:
                return None
        failed = failures(known, turn.turn_id, newest_record)
        return turn if may_try(failed, self._settings.interval_secs, now) else None

    async def begin(self, session_id: str, agent: str, key: str) -> Work | None:
        """Take a consolidation up; None if there is no reason to any more, or nothing new. `key` names this attempt.

        Raises SessionNotFound, MemoryUnavailable, MemoryDamaged.
        """
        config = self._agents.get(agent)
        if not self._settings.enabled or config is None or config.memory is None:
            return None
        consolidation_id = "cns_" + hashlib.sha256(f"{key}/{session_id}/{agent}".encode()).hexdigest()[:32]
        now = self._clock.now()
        owner = Scope.agent(session_id, agent)

        hidden, watermark = await self._looked_at(session_id, agent, consolidation_id)
        new = await self._new_records(owner, watermark, hidden)
        if not new:
            return None
        records, newest = new[:MAX_FACTS], new[-1].position
        blocks = await self._shown(owner, config.memory)
        if not blocks:
            return None

        def body(tx: LedgerTx) -> Consolidation | None:
            tx.turns.lock_session(session_id)
            known = tx.consolidations.newest(session_id, agent, PAGE)
            mine = next((item for item in known if item.consolidation_id == consolidation_id), None)
            if mine is not None:
                return mine
            turn = self._idle(tx, tx.sessions.get(session_id), agent, now, newest)
            if turn is None:
                return None
            for left in known:
                self._give_up(tx, left, now)
            return tx.consolidations.add(
                Consolidation(
                    consolidation_id=consolidation_id,
                    session_id=session_id,
                    agent=agent,
                    state=ConsolidationState.RUNNING,
                    turn_id=turn.turn_id,
                    turn_number=turn.number,
                    created_at=now,
                    updated_at=now,
                    watermark=records[-1].position,
                    facts=len(records),
                    provider=config.provider,
                    model=config.model,
                )
            )

        begun = await self._ledger.write(body)
        if begun is None:
            return None
        facts = tuple(
            Fact(record.id, record.text, record.at, record.speaker)
            for record in records
            if record.position <= begun.watermark
        )
        return Work(begun, config, blocks, facts)

    def _give_up(self, tx: LedgerTx, left: Consolidation, now: int) -> None:
        """End one whose worker is gone for good, and charge what it may have used."""
        if left.state is not ConsolidationState.RUNNING:
            return
        if left.effect_id is not None:
            effect = tx.effects.lock(left.effect_id)
            if effect is not None and effect.state is EffectState.DISPATCHED:
                settle_attempt(tx, left.effect_id, effect.attempt, UNKNOWN_USAGE, now)
                text = "The worker was lost."
                tx.effects.settle(left.effect_id, effect.attempt, EffectState.FAILED, now, None, "worker_lost", text)
        self._fail(tx, left.consolidation_id, "The worker was lost.", now)

    async def _new_records(self, owner: Scope, watermark: int, hidden: frozenset[str]) -> list[MemoryRecord]:
        """Those that came after the watermark, ascending; of very many only the newest."""
        found: list[MemoryRecord] = []
        before: int | None = None
        while len(found) < MAX_RECORDS_READ:
            page = await self._semantic.page(owner, before=before, limit=PAGE, exclude_turns=hidden, current=True)
            found += [record for record in page if record.position > watermark]
            if len(page) < PAGE or page[-1].position <= watermark:
                break
            before = page[-1].position
        return found[::-1]

    async def _shown(self, owner: Scope, memory: MemorySettings) -> tuple[BlockShown, ...]:
        specs = tuple(spec for spec in memory.blocks if not spec.read_only)
        blocks = await self._blocks.all(owner, specs)
        return tuple(
            BlockShown(block.spec.label, block.spec.description, block.spec.limit, block.value, block.number)
            for block in blocks
        )

    def spec(self, work: Work) -> EffectSpec:
        """The model call as an effect, beside the turn that it comes after.

        Its identity is the consolidation's: an attempt that replaces a lost one shows the blocks as they are by then.
        """
        of = work.consolidation
        digest = hashlib.sha256(of.consolidation_id.encode()).hexdigest()
        operation = f"consolidate:{work.config.provider}/{work.config.model}"
        position = f"consolidation.{of.consolidation_id}"
        return EffectSpec(
            effect_id=effect_id(of.turn_id, 0, of.agent, position, operation, digest),
            idempotency_key=idempotency_key(of.turn_id, of.agent, position, operation, digest),
            session_id=of.session_id,
            turn_id=of.turn_id,
            generation=0,
            agent=of.agent,
            position=position,
            operation=operation,
            effect_class=EffectClass.MODEL,
            input_digest=digest,
        )

    async def dispatch(self, work: Work, spec: EffectSpec, ask: Ask) -> Dispatched | None:
        """Dispatch the call and reserve what it may use; None if the agent was stopped or no budget allows it.

        An attempt that was lost is charged as it was reserved.
        """
        now = self._clock.now()
        consolidation_id = work.consolidation.consolidation_id

        def body(tx: LedgerTx) -> Dispatched | None:
            existing = tx.effects.lock(spec.effect_id)
            entry = on_entry(existing.state if existing else None, spec.effect_class)
            if entry is Entry.RETURN_RECORDED and existing is not None:
                return Dispatched(existing, recorded=True)
            if tx.lives.stopped(spec.agent) is not None:
                self._fail(tx, consolidation_id, "The agent was stopped.", now)
                return None
            if existing is not None and existing.attempt:
                settle_attempt(tx, spec.effect_id, existing.attempt, UNKNOWN_USAGE, now)
            effect = tx.effects.dispatch(spec, now, self._worker)
            refusal, told = reserve(tx, spec, effect.attempt, ask, now)
            tx.events.append(spec.session_id, StreamKind.SESSION, told, now)
            found = tx.consolidations.lock(consolidation_id)
            tx.consolidations.save(replace(found, effect_id=spec.effect_id, updated_at=now))
            if refusal is not None:
                tx.effects.settle(
                    spec.effect_id, effect.attempt, EffectState.FAILED, now, None, refusal.code, refusal.message
                )
                self._fail(tx, consolidation_id, str(refusal), now, spec.effect_id)
                return None
            return Dispatched(effect, recorded=False)

        return await self._ledger.write(body)

    async def failed(self, work: Work, effect: Effect, error: MilepostError, usage: Usage, *, final: bool) -> None:
        """The attempt did not bring an answer; unless it is the `final` one another may."""
        now = self._clock.now()
        text = bounded_error(str(error))

        def body(tx: LedgerTx) -> None:
            settle_attempt(tx, effect.spec.effect_id, effect.attempt, usage, now)
            if final:
                tx.effects.settle(
                    effect.spec.effect_id, effect.attempt, EffectState.FAILED, now, None, error.code, text
                )
                self._fail(tx, work.consolidation.consolidation_id, text, now, effect.spec.effect_id, usage)

        await self._ledger.write(body)

    async def answered(self, work: Work, effect: Effect, answer: str, usage: Usage) -> None:
        """Record the answer and what it cost."""
        now = self._clock.now()
        data = answer.encode("utf-8", "surrogatepass")

        def body(tx: LedgerTx) -> None:
            settle_attempt(tx, effect.spec.effect_id, effect.attempt, usage, now)
            tx.effects.settle(effect.spec.effect_id, effect.attempt, EffectState.SUCCEEDED, now, data)
            found = tx.consolidations.lock(work.consolidation.consolidation_id)
            tx.consolidations.save(replace(found, usage=usage, effect_id=effect.spec.effect_id, updated_at=now))

        await self._ledger.write(body)

    async def conclude(self, work: Work, answer: str) -> Consolidation:
        """Make the answer a reviewable change, and make the change unless a person is to review it."""
        consolidation_id = work.consolidation.consolidation_id
        found = await self._reviews.get(consolidation_id)
        if found.state is ConsolidationState.RUNNING:
            try:
                promotions = promotions_of(answer, work.blocks, work.facts)
            except InvalidInput as error:
                now, text = self._clock.now(), error.message
                return await self._ledger.write(lambda tx: self._fail(tx, consolidation_id, text, now))
            state = ConsolidationState.PENDING if promotions else ConsolidationState.EMPTY
            found = await self._reviews.move(consolidation_id, state, lambda item: replace(item, promotions=promotions))
        if found.state is ConsolidationState.PENDING and not self._settings.review:
            found = await self._reviews.apply(consolidation_id, actor="consolidation")
        return found

    def _fail(
        self,
        tx: LedgerTx,
        consolidation_id: str,
        text: str,
        now: int,
        effect: str | None = None,
        usage: Usage | None = None,
    ) -> Consolidation:
        return moved(
            tx,
            consolidation_id,
            ConsolidationState.FAILED,
            lambda item: replace(item, error=text, effect_id=effect or item.effect_id, usage=usage or item.usage),
            now,
        )
