"""History and effects."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from api.dependencies import AppServices, EffectId, SessionId, TurnId
from api.documentation import problems
from api.responses import reply
from api.schemas.budgets import SessionUsageShape
from api.schemas.environments import EnvironmentShape
from api.schemas.history import (
    ActiveState,
    EffectPage,
    EffectShape,
    EffectsQuery,
    HistoryPageShape,
    HistoryQuery,
    HistoryTurn,
)
from api.schemas.rewinds import RewindShape
from api.texts import TEXT_RESPONSE, text_response
from milepost.domain.errors import EffectNotFound, InvalidInput
from milepost.domain.turns import TurnStatus
from milepost.ledger.history import HistoryEntry
from milepost.services.catalog import Services
from milepost.services.turns import TurnView

router = APIRouter(prefix="/api/v1", tags=["history"])


@router.get(
    "/sessions/{session_id}/history",
    response_model=HistoryPageShape,
    responses=problems(404, 422),
    summary="Read History, newest turn first",
)
async def read_history(
    session_id: SessionId, query: Annotated[HistoryQuery, Query()], services: AppServices
) -> Response:
    """Turns with output, agents and tool calls; pass `next_cursor` as `cursor` to go on."""
    page = await services.history.page(session_id, before=query.cursor, limit=query.limit, superseded=query.superseded)
    turns = [await _turn(services, entry) for entry in page.entries]
    active = await services.turns.active(session_id)
    shape = HistoryPageShape(
        session_id=session_id,
        session_status=page.status.value,
        active_turn=None if active is None else _active(active),
        turns=turns,
        rewinds=[RewindShape.of(rewind) for rewind in page.rewinds],
        environments=[EnvironmentShape.of(each) for each in page.environments],
        next_cursor=page.next_before,
    )
    return reply(shape)


def _active(view: TurnView) -> ActiveState:
    turn = view.turn
    return ActiveState(turn_id=turn.turn_id, number=turn.number, state=turn.state.value, status=view.status.value)


@router.get(
    "/sessions/{session_id}/usage",
    response_model=SessionUsageShape,
    responses=problems(404),
    summary="Read what a Session has used",
)
async def read_usage(session_id: SessionId, services: AppServices) -> Response:
    """Tokens, cost and calls of all its turns, also of those that a rewind superseded."""
    return reply(SessionUsageShape.from_usage(session_id, await services.history.usage(session_id)))


@router.get(
    "/turns/{turn_id}/history",
    response_model=HistoryTurn,
    responses=problems(404),
    summary="Read one turn of History",
)
async def read_history_turn(turn_id: TurnId, services: AppServices) -> Response:
    """One turn with output, agents and tool calls."""
    return reply(await _turn(services, await services.history.entry(turn_id)))


async def _turn(services: Services, entry: HistoryEntry) -> HistoryTurn:
    turn = entry.turn
    # Only a running turn needs its derived status, and a Session has one at most.
    status = TurnStatus.ENDED if turn.state.terminal else (await services.turns.get(turn.turn_id)).status
    return HistoryTurn.from_entry(entry, status, services.temporal_link(turn.workflow_id))


@router.get(
    "/sessions/{session_id}/effects",
    response_model=EffectPage,
    responses=problems(404, 422),
    summary="List a Session's effects, oldest first",
)
async def list_effects(
    session_id: SessionId, query: Annotated[EffectsQuery, Query()], services: AppServices
) -> Response:
    """Every call that left the process, by turn and state; pass `next_cursor` as `cursor` to go on."""
    try:
        found = await services.history.effects(
            session_id, turn_id=query.turn_id, state=query.state, after=query.cursor, limit=query.limit + 1
        )
    except EffectNotFound as error:
        raise InvalidInput("The cursor is of no page.", field="cursor", fix="Begin without a cursor.") from error
    shown = found[: query.limit]
    more = len(found) > query.limit
    page = EffectPage(
        session_id=session_id,
        effects=[EffectShape.of(effect) for effect in shown],
        next_cursor=shown[-1].spec.effect_id if more else None,
    )
    return reply(page)


@router.get(
    "/effects/{effect_id}/output",
    response_class=Response,
    responses={200: TEXT_RESPONSE, **problems(404, 422)},
    summary="Get a tool call's whole result text",
)
async def effect_output(
    effect_id: EffectId, services: AppServices, part: Annotated[Literal["full", "model"], Query()] = "full"
) -> Response:
    """The recorded result, of any length: `full` as the tool gave it, `model` as the model got it."""
    finished = await services.history.tool_result(effect_id)
    whole = finished.full_output if part == "full" and finished.full_output is not None else finished.output
    return await text_response(services, whole)
