"""Approvals, policy rules, and the reconciliation of uncertain effects."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from api.dependencies import Actor, ApprovalId, AppServices, EffectId, RuleId
from api.documentation import problems
from api.responses import reply
from api.schemas.approvals import (
    AnsweredApproval,
    ApprovalAnswer,
    ApprovalPage,
    ApprovalShape,
    ApprovalsQuery,
    EffectReconcile,
    RuleNew,
    RulePage,
    RuleRevoke,
    RuleShape,
    RulesQuery,
)
from api.schemas.history import EffectShape
from milepost.domain.errors import ApprovalNotFound, InvalidInput, PolicyRuleNotFound
from milepost.services.approvals import Answer
from milepost.services.catalog import Services

router = APIRouter(prefix="/api/v1", tags=["approvals"])


@router.get(
    "/approvals",
    response_model=ApprovalPage,
    responses=problems(404, 422),
    summary="List approvals, pending first",
)
async def list_approvals(query: Annotated[ApprovalsQuery, Query()], services: AppServices) -> Response:
    """Questions to a person, of all Sessions or one; pass `next_cursor` as `cursor` to go on."""
    try:
        found = await services.approvals.page(
            session_id=query.session_id, state=query.state, after=query.cursor, limit=query.limit + 1
        )
    except ApprovalNotFound as error:
        raise _no_page() from error
    shown = found[: query.limit]
    more = len(found) > query.limit
    page = ApprovalPage(
        approvals=[ApprovalShape.of(approval) for approval in shown],
        next_cursor=shown[-1].approval_id if more else None,
    )
    return reply(page)


@router.get(
    "/approvals/{approval_id}", response_model=ApprovalShape, responses=problems(404), summary="Get an approval"
)
async def get_approval(approval_id: ApprovalId, services: AppServices) -> Response:
    """One approval."""
    return reply(ApprovalShape.of(await services.approvals.get(approval_id)))


@router.post(
    "/approvals/{approval_id}/approve",
    response_model=AnsweredApproval,
    responses=problems(400, 404, 409, 413, 422),
    summary="Let a call run",
)
async def approve(
    approval_id: ApprovalId, services: AppServices, actor: Actor, body: ApprovalAnswer | None = None
) -> Response:
    """Exactly this call runs, once. An approval that has its answer, or whose turn or time is over, is a 409."""
    answer = (body or ApprovalAnswer()).command(actor, approve=True)
    return await _answer(services, approval_id, answer)


@router.post(
    "/approvals/{approval_id}/reject",
    response_model=AnsweredApproval,
    responses=problems(400, 404, 409, 413, 422),
    summary="Refuse a call",
)
async def reject(
    approval_id: ApprovalId, services: AppServices, actor: Actor, body: ApprovalAnswer | None = None
) -> Response:
    """The call is not run; the model is told so, with the reason, and the turn goes on."""
    answer = (body or ApprovalAnswer()).command(actor, approve=False)
    return await _answer(services, approval_id, answer)


async def _answer(services: Services, approval_id: str, answer: Answer) -> Response:
    approval, rule = await services.approvals.answer(approval_id, answer)
    fields = ApprovalShape.of(approval).model_dump() | {"rule_id": None if rule is None else rule.rule_id}
    return reply(AnsweredApproval.model_validate(fields))


@router.get(
    "/policy-rules",
    response_model=RulePage,
    responses=problems(422),
    summary="List policy rules, newest first",
)
async def list_policy_rules(query: Annotated[RulesQuery, Query()], services: AppServices) -> Response:
    """Decisions about calls to come; pass `next_cursor` as `cursor` to go on."""
    try:
        found = await services.approvals.rules(active=not query.all, after=query.cursor, limit=query.limit + 1)
    except PolicyRuleNotFound as error:
        raise _no_page() from error
    shown = found[: query.limit]
    more = len(found) > query.limit
    page = RulePage(rules=[RuleShape.of(rule) for rule in shown], next_cursor=shown[-1].rule_id if more else None)
    return reply(page)


@router.post(
    "/policy-rules",
    status_code=201,
    response_model=RuleShape,
    responses=problems(400, 413, 422),
    summary="Make a policy rule",
)
async def create_policy_rule(body: RuleNew, services: AppServices, actor: Actor) -> Response:
    """The most specific rule decides a call: naming an agent counts 2, a tool 1; deny wins a tie."""
    return reply(RuleShape.of(await services.approvals.add_rule(body.command(actor))), 201)


@router.post(
    "/policy-rules/{rule_id}/revoke",
    response_model=RuleShape,
    responses=problems(400, 404, 413, 422),
    summary="Revoke a policy rule",
)
async def revoke_policy_rule(
    rule_id: RuleId, services: AppServices, actor: Actor, body: RuleRevoke | None = None
) -> Response:
    """From now on it decides no call; revoking again changes nothing."""
    by = f"{actor}:{body.actor}" if body and body.actor else actor
    return reply(RuleShape.of(await services.approvals.revoke_rule(rule_id, by)))


@router.post(
    "/effects/{effect_id}/reconcile",
    response_model=EffectShape,
    responses=problems(400, 404, 409, 413, 422),
    summary="Say how an uncertain call turned out",
)
async def reconcile_effect(effect_id: EffectId, body: EffectReconcile, services: AppServices, actor: Actor) -> Response:
    """Settles the effect, also after its turn has ended, and changes nothing else. Known outcomes are a 409."""
    return reply(EffectShape.of(await services.outcomes.reconcile(effect_id, body.command(actor))))


def _no_page() -> InvalidInput:
    return InvalidInput("The cursor is of no page.", field="cursor", fix="Begin without a cursor.")
