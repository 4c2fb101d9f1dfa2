"""Terminals and background commands: open, list, read, attach, end."""

from __future__ import annotations

import contextlib
import re
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Path, Query, WebSocket
from starlette.responses import Response
from starlette.websockets import WebSocketDisconnect

from api.dependencies import Actor, AppServices, SessionId
from api.documentation import problems
from api.live import LiveReaders
from api.responses import reply
from api.schemas.approvals import named
from api.schemas.terminals import (
    PROCESS_ID_PATTERN,
    OutputQuery,
    TerminalKill,
    TerminalOpen,
    TerminalOutput,
    TerminalPage,
    TerminalShape,
)
from api.terminals import Viewer
from milepost.domain.errors import ProcessNotFound
from milepost.security.guard import accepted_subprotocol
from milepost.services.catalog import Services

router = APIRouter(prefix="/api/v1", tags=["terminals"])
_ID = re.compile(PROCESS_ID_PATTERN)


async def _terminal_id(terminal_id: Annotated[str, Path(description="Id of a terminal.")]) -> str:
    if not _ID.fullmatch(terminal_id):
        raise ProcessNotFound("There is no terminal with this id.", field="terminal_id")
    return terminal_id


TerminalId = Annotated[str, Depends(_terminal_id)]


@router.get(
    "/sessions/{session_id}/terminals",
    response_model=TerminalPage,
    responses=problems(404),
    summary="List a Session's terminals and background commands",
)
async def list_terminals(session_id: SessionId, services: AppServices) -> Response:
    """Those of people and of agents, running and ended. What cannot be asked now is as it was last known."""
    found = await services.processes.of_session(session_id)
    return reply(TerminalPage(terminals=[TerminalShape.of(each) for each in found]))


@router.post(
    "/sessions/{session_id}/terminals",
    status_code=201,
    response_model=TerminalShape,
    responses=problems(400, 404, 409, 413, 422, 503),
    summary="Open a terminal",
)
async def open_terminal(
    session_id: SessionId, services: AppServices, door: Actor, body: TerminalOpen | None = None
) -> Response:
    """In the Session's sandbox, which must be Ready. It outlives its viewers, and ends after its lifetime."""
    body = body or TerminalOpen()
    found = await services.processes.open(session_id, body.spec(), named(door, body.actor))
    return reply(TerminalShape.of(found), 201)


@router.get(
    "/sessions/{session_id}/terminals/{terminal_id}",
    response_model=TerminalShape,
    responses=problems(404),
    summary="Look at a terminal",
)
async def get_terminal(session_id: SessionId, terminal_id: TerminalId, services: AppServices) -> Response:
    """As the ledger knows it."""
    return reply(TerminalShape.of(await services.processes.get(session_id, terminal_id)))


@router.get(
    "/sessions/{session_id}/terminals/{terminal_id}/output",
    response_model=TerminalOutput,
    responses=problems(404, 409, 422, 503),
    summary="Read a terminal's output",
)
async def terminal_output(
    session_id: SessionId, terminal_id: TerminalId, query: Annotated[OutputQuery, Query()], services: AppServices
) -> Response:
    """What is kept of it: 64 KiB of a terminal, 1 MiB of a background command."""
    found = await services.processes.read(session_id, terminal_id, query.offset, query.limit, query.wait)
    return reply(TerminalOutput.of(found))


@router.post(
    "/sessions/{session_id}/terminals/{terminal_id}/kill",
    response_model=TerminalShape,
    responses=problems(400, 404, 409, 413, 422, 503),
    summary="End a terminal or background command",
)
async def kill_terminal(
    session_id: SessionId,
    terminal_id: TerminalId,
    services: AppServices,
    door: Actor,
    body: TerminalKill | None = None,
) -> Response:
    """With all processes it started. One that has ended stays as it is."""
    by = named(door, body.actor if body else None)
    return reply(TerminalShape.of(await services.processes.end(session_id, terminal_id, by)))


@router.websocket("/sessions/{session_id}/terminals/{terminal_id}/ws")
async def attach_terminal(websocket: WebSocket, session_id: str, terminal_id: str) -> None:
    """Output as binary messages, and input as such; everything else as JSON. See docs/http.md."""
    await websocket.accept(subprotocol=accepted_subprotocol(websocket.scope.get("subprotocols", [])))
    services = cast(Services, websocket.app.state.services)
    readers = cast(LiveReaders, websocket.app.state.live_readers)
    with contextlib.suppress(WebSocketDisconnect):
        await Viewer(websocket, services.processes, readers, session_id, terminal_id).serve()
