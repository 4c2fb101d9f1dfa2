"""Agents, and consolidations of their memory."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from api.schemas.base import Body, Query, Shape
from api.schemas.sessions import ID_PATTERN, MAX_LIMIT
from api.schemas.turns import Reason
from api.schemas.usage import UsageShape
from api.times import rfc3339
from milepost.domain.consolidation import Consolidation, Promotion
from milepost.services.lives import AgentView

StateName = Literal["running", "pending", "applied", "empty", "rejected", "reverted", "failed"]


class AgentShape(Shape):
    """An agent of the configuration. `state`: registered (never used), idle, running or stopped."""

    agent: str
    state: str
    provider: str
    model: str
    turns: list[str]
    """Turns that run with it."""
    stopped_at: str | None
    stopped_by: str | None
    reason: str | None

    @classmethod
    def of(cls, view: AgentView) -> AgentShape:
        stop = view.stop
        return cls(
            agent=view.config.agent_id,
            state=view.state.value,
            provider=view.config.provider,
            model=view.config.model,
            turns=list(view.turns),
            stopped_at=None if stop is None else rfc3339(stop.stopped_at),
            stopped_by=None if stop is None else stop.actor,
            reason=None if stop is None else stop.reason,
        )


class AgentList(Shape):
    """By id."""

    agents: list[AgentShape]


class StopAgentBody(Body):
    reason: Reason | None = None


class PromotionShape(Shape):
    """A text that goes into a core block.

    `base` is the version of the block that the model saw, `version` the one that has the text, `reverted_by` the one
    that took it out again. `records` are what it was made from.
    """

    block: str
    text: str
    records: list[str]
    base: int
    version: int | None
    reverted_by: int | None
    problem: str | None

    @classmethod
    def of(cls, item: Promotion) -> PromotionShape:
        return cls(
            block=item.label,
            text=item.text,
            records=list(item.facts),
            base=item.base,
            version=item.version,
            reverted_by=item.reverted_by,
            problem=item.problem,
        )


class ConsolidationShape(Shape):
    """A consolidation of an agent's memory in a Session. `records` is how many it looked at."""

    consolidation_id: str
    session_id: str
    agent: str
    state: str
    turn_id: str
    records: int
    provider: str
    model: str
    effect_id: str | None
    promotions: list[PromotionShape]
    usage: UsageShape | None
    error: str | None
    actor: str | None
    created_at: str
    updated_at: str

    @classmethod
    def of(cls, item: Consolidation) -> ConsolidationShape:
        return cls(
            consolidation_id=item.consolidation_id,
            session_id=item.session_id,
            agent=item.agent,
            state=item.state.value,
            turn_id=item.turn_id,
            records=item.facts,
            provider=item.provider,
            model=item.model,
            effect_id=item.effect_id,
            promotions=[PromotionShape.of(promotion) for promotion in item.promotions],
            usage=None if item.usage is None else UsageShape.of(item.usage),
            error=item.error,
            actor=item.actor,
            created_at=rfc3339(item.created_at),
            updated_at=rfc3339(item.updated_at),
        )


class ConsolidationsQuery(Query):
    """A page of consolidations."""

    session_id: Annotated[str | None, Field(pattern=ID_PATTERN)] = None
    state: StateName | None = None
    cursor: Annotated[str | None, Field(pattern=ID_PATTERN)] = None
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 50


class ConsolidationPage(Shape):
    """Newest first. `next_cursor` continues the list, null at its end."""

    consolidations: list[ConsolidationShape]
    next_cursor: str | None


class ReviewBody(Body):
    reason: Reason | None = None
    """Why; kept with a rejected one."""
