"""History and effects."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.schemas.base import Query, Shape
from api.schemas.environments import EnvironmentShape
from api.schemas.memory import ReminderShape
from api.schemas.rewinds import RewindShape
from api.schemas.sessions import ID_PATTERN, MAX_LIMIT
from api.schemas.turns import NumberPage, TurnShape, turn_fields
from api.schemas.usage import UsageShape
from api.times import rfc3339, rfc3339_or_none
from milepost.domain.attachments import AttachmentRef
from milepost.domain.effects import Effect, EffectState
from milepost.domain.events import ContextCompacted
from milepost.domain.turns import TurnStatus
from milepost.ledger.history import AgentEntry, HistoryEntry, ToolCard
from milepost.ledger.plans import PlanEntry, SubtaskCard
from milepost.services.turns import TurnView

MAX_SUMMARY_CHARACTERS = 64 * 1024


class HistoryQuery(NumberPage):
    """A page of History."""

    superseded: bool = False
    """Also the turns that a rewind has superseded."""


class CompactionShape(Shape):
    """What a conversation was cut to before a model call. Token counts are estimates of the whole request.

    `summary` is set where one was written; it is cut at 64 KiB.
    """

    round: int
    window: int
    tokens_before: int
    tokens_after: int
    clipped_results: int
    covered_turns: int
    covered_rounds: int
    summary: str | None
    error: str | None
    refused: bool
    """Whether the provider had refused the request as too long."""
    usage: UsageShape

    @classmethod
    def of(cls, event: ContextCompacted) -> CompactionShape:
        summary = event.summary.text[:MAX_SUMMARY_CHARACTERS] if event.summary and event.effect_id else None
        return cls(
            round=event.round,
            window=event.window,
            tokens_before=event.tokens_before,
            tokens_after=event.tokens_after,
            clipped_results=event.clipped_results,
            covered_turns=event.covered_turns,
            covered_rounds=event.covered_rounds,
            summary=summary,
            error=event.error,
            refused=event.refused,
            usage=UsageShape.of(event.usage),
        )


class AgentShape(Shape):
    """One agent's part of a turn. `partial`: cut short by a stop, failure or interruption.

    `rounds` counts the model's answers, `calls` every attempt to get one, also those that failed or were lost.
    """

    agent: str
    provider: str
    model: str
    output: str
    output_truncated: bool
    partial: bool
    rounds: int
    calls: int
    retries: int
    usage: UsageShape
    notes: list[str]
    compactions: list[CompactionShape]
    memory: ReminderShape | None
    """What it was reminded of; null for an agent without memory."""

    @classmethod
    def of(cls, entry: AgentEntry) -> AgentShape:
        return cls(
            agent=entry.agent,
            provider=entry.provider,
            model=entry.model,
            output=entry.output.text,
            output_truncated=entry.output.blob is not None,
            partial=entry.partial,
            rounds=entry.rounds,
            calls=entry.calls,
            retries=entry.retries,
            usage=UsageShape.of(entry.usage),
            notes=list(entry.notes),
            compactions=[CompactionShape.of(event) for event in entry.compactions],
            memory=None if entry.reminder is None else ReminderShape.of(entry.reminder, written=entry.written),
        )


class ToolShape(Shape):
    """One tool call. `arguments` and `preview` are cut at 2,000 characters; the whole result is at `output_path`."""

    effect_id: str
    agent: str
    tool: str
    call_id: str
    state: str
    is_error: bool
    arguments: str
    preview: str
    truncated: bool
    output_path: str | None

    @classmethod
    def of(cls, card: ToolCard) -> ToolShape:
        return cls(
            effect_id=card.effect_id,
            agent=card.agent,
            tool=card.tool,
            call_id=card.call_id,
            state=card.state.value,
            is_error=card.is_error,
            arguments=card.arguments,
            preview=card.preview,
            truncated=card.truncated,
            output_path=f"/api/v1/effects/{card.effect_id}/output" if card.effect_id else None,
        )


class AttachedShape(Shape):
    """A file that the turn's request refers to, as it was then. `state` is that of its text, `note` why it is so."""

    attachment_id: str
    name: str
    media_type: str
    size: int
    sha256: str
    state: str
    note: str | None
    content_path: str
    text_path: str | None

    @classmethod
    def of(cls, ref: AttachmentRef) -> AttachedShape:
        return cls(
            attachment_id=ref.attachment_id,
            name=ref.name,
            media_type=ref.blob.media_type,
            size=ref.blob.size,
            sha256=ref.blob.digest,
            state=ref.state.value,
            note=ref.note,
            content_path=f"/api/v1/attachments/{ref.attachment_id}/content",
            text_path=None if ref.text is None else f"/api/v1/attachments/{ref.attachment_id}/text",
        )


class BidShape(Shape):
    """What a worker offered for a subtask, in millionths; 0: it cannot do it."""

    worker: str
    millionths: int
    load: int


class SubtaskShape(Shape):
    """A subtask. `state`: waiting, running, succeeded, failed, skipped, or unfinished in a turn that ended without it.

    `performer` is the agent of the turn that does it; `preview` is its result, cut at 2,000 characters.
    """

    number: int
    name: str
    description: str
    tools: list[str]
    depends_on: list[int]
    state: str
    performer: str
    bids: list[BidShape]
    preview: str
    truncated: bool
    error: str | None

    @classmethod
    def of(cls, card: SubtaskCard) -> SubtaskShape:
        subtask, bids = card.subtask, card.award.bids if card.award else ()
        return cls(
            number=subtask.number,
            name=subtask.name,
            description=subtask.description,
            tools=list(subtask.tools),
            depends_on=list(subtask.depends_on),
            state=card.state,
            performer=card.performer,
            bids=[BidShape(worker=bid.worker, millionths=bid.millionths, load=bid.load) for bid in bids],
            preview=card.preview,
            truncated=card.truncated,
            error=card.error,
        )


class PlanShape(Shape):
    """A Coordinator's plan. `notes` say what of the model's plan could not be taken."""

    agent: str
    notes: list[str]
    subtasks: list[SubtaskShape]

    @classmethod
    def of(cls, plan: PlanEntry) -> PlanShape:
        subtasks = [SubtaskShape.of(card) for card in plan.subtasks]
        return cls(agent=plan.agent, notes=list(plan.notes), subtasks=subtasks)


class HistoryTurn(TurnShape):
    """A turn with what its agents said and did. `output` is the answer: that of the last agent that has one."""

    output: str
    output_truncated: bool
    """Whether `output` is a preview; the whole is at {self}/output."""
    agents: list[AgentShape]
    tools: list[ToolShape]
    attachments: list[AttachedShape]
    plans: list[PlanShape]

    @classmethod
    def from_entry(cls, entry: HistoryEntry, status: TurnStatus, temporal_url: str) -> HistoryTurn:
        return cls.model_validate(
            turn_fields(TurnView(entry.turn, status), temporal_url)
            | {
                "output": entry.output.text,
                "output_truncated": entry.output.blob is not None,
                "agents": [AgentShape.of(agent) for agent in entry.agents],
                "tools": [ToolShape.of(card) for card in entry.tools],
                "attachments": [AttachedShape.of(ref) for ref in entry.turn.request.attachments],
                "plans": [PlanShape.of(plan) for plan in entry.plans],
            }
        )


class ActiveState(Shape):
    """The running turn, as frames of the live stream name it."""

    turn_id: str
    number: int
    state: str
    status: str


class HistoryPageShape(Shape):
    """Turns, newest first. `next_cursor` continues the list, null at its end."""

    session_id: str
    session_status: str
    active_turn: ActiveState | None
    """The running turn, also if it is not on this page."""
    turns: list[HistoryTurn]
    rewinds: list[RewindShape]
    """Boundaries on this page, newest first: each lies right after turn `last_number`."""
    environments: list[EnvironmentShape]
    """Generations on this page, newest first: each was begun right after turn `after_number`."""
    next_cursor: int | None


class EffectsQuery(Query):
    """Which effects."""

    turn_id: Annotated[str | None, Field(pattern=ID_PATTERN)] = None
    state: EffectState | None = None
    cursor: Annotated[str | None, Field(pattern=r"^[0-9a-f]{64}$")] = None
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 50


class EffectShape(Shape):
    """A call that left the process. `attempt` counts its dispatches. Times are RFC 3339 in UTC."""

    effect_id: str
    idempotency_key: str
    turn_id: str
    generation: int
    agent: str
    position: str
    operation: str
    effect_class: str
    call_id: str | None
    state: str
    attempt: int
    worker: str | None
    error: EffectError | None
    created_at: str
    dispatched_at: str | None
    finished_at: str | None

    @classmethod
    def of(cls, effect: Effect) -> EffectShape:
        spec = effect.spec
        failed = effect.error_code is not None
        return cls(
            effect_id=spec.effect_id,
            idempotency_key=spec.idempotency_key,
            turn_id=spec.turn_id,
            generation=spec.generation,
            agent=spec.agent,
            position=spec.position,
            operation=spec.operation,
            effect_class=spec.effect_class.value,
            call_id=spec.call_id,
            state=effect.state.value,
            attempt=effect.attempt,
            worker=effect.worker,
            error=EffectError(code=effect.error_code or "", message=effect.error_message or "") if failed else None,
            created_at=rfc3339(effect.created_at),
            dispatched_at=rfc3339_or_none(effect.dispatched_at),
            finished_at=rfc3339_or_none(effect.finished_at),
        )


class EffectError(Shape):
    """How an effect failed."""

    code: str
    message: str


class EffectPage(Shape):
    """Oldest first. `next_cursor` continues the list, null at its end."""

    session_id: str
    effects: list[EffectShape]
    next_cursor: str | None


EffectShape.model_rebuild()
