"""Following a Session live, over server-sent events and over a WebSocket."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, cast

from fastapi import APIRouter, Header, Query, Request, WebSocket
from pydantic import ValidationError
from sse_starlette import EventSourceResponse
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from api.dependencies import AppServices, EffectId, SessionId
from api.documentation import problems
from api.live import PROBLEM_FRAME, LiveReaders, LiveStream, frame_text, sse_stream
from api.problems import invalid_query, problem_of, unexpected
from api.schemas.live import EventsQuery, SocketQuery, TextQuery
from api.texts import TEXT, TEXT_RESPONSE
from milepost.domain.errors import MilepostError
from milepost.security.guard import accepted_subprotocol
from milepost.services.contents import text_bytes
from milepost.services.live import Cursor, Frame

CLOSE_BASE = 4000
"""A problem with an HTTP status closes a WebSocket with this plus the status."""
GOING_AWAY = 1012
DONE = 1000

router = APIRouter(prefix="/api/v1", tags=["live"])


class _EventStream(EventSourceResponse):
    """Gives the reader back however the response ends. Keep-alives come with the frames, so there is no ping."""

    def __init__(self, stream: LiveStream) -> None:
        super().__init__(sse_stream(stream), ping=0, sep="\n")
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._stream.aclose()


def _readers(connection: Request | WebSocket) -> LiveReaders:
    return cast(LiveReaders, connection.app.state.live_readers)


@router.get(
    "/sessions/{session_id}/events",
    response_class=Response,
    responses={
        200: {
            "description": "Server-sent events; `id` is the cursor, `data` is one frame as JSON.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        **problems(404, 422),
    },
    summary="Follow a Session as server-sent events",
)
async def follow_events(
    session_id: SessionId,
    query: Annotated[EventsQuery, Query()],
    request: Request,
    last_event_id: Annotated[str | None, Header(max_length=40)] = None,
) -> Response:
    """A `snapshot`, then `event`, `delta`, `gap`, `attempt.superseded` and `status` frames; resume by cursor.

    `Last-Event-ID` wins over `after`. Without either, everything from the Session's first event is sent.
    """
    after = Cursor.parse(last_event_id or query.after)
    return _EventStream(await LiveStream.open(_readers(request), session_id, after, query.until_turn))


@router.get(
    "/effects/{effect_id}/text",
    response_class=Response,
    responses={200: TEXT_RESPONSE, **problems(404, 422)},
    summary="Get a part of what a model call has streamed",
)
async def streamed_text(effect_id: EffectId, query: Annotated[TextQuery, Query()], services: AppServices) -> Response:
    """A range that a `gap` frame named, or any other, of at most 4 Mi characters; also after the turn has ended.

    Of an attempt that was superseded, the text is kept until its turn ends.
    """
    text = await services.live.text(effect_id, query.attempt, query.channel, query.start, query.end)
    return Response(text_bytes(text), media_type=TEXT)


@router.websocket("/ws")
async def follow_socket(websocket: WebSocket) -> None:
    """The same frames as text messages. What a client sends is ignored."""
    await websocket.accept(subprotocol=accepted_subprotocol(websocket.scope.get("subprotocols", [])))
    try:
        try:
            query = SocketQuery.model_validate(dict(websocket.query_params))
            stream = await LiveStream.open(
                _readers(websocket), query.session, Cursor.parse(query.after), query.until_turn
            )
        except ValidationError as error:
            await _refuse(websocket, invalid_query(error.errors()))
        except MilepostError as error:
            await _refuse(websocket, problem_of(error))
        except Exception as error:
            await _refuse(websocket, unexpected(error, path="/api/v1/ws"))
        else:
            await _serve(websocket, stream)
    except WebSocketDisconnect:
        pass


async def _serve(websocket: WebSocket, stream: LiveStream) -> None:
    sending = asyncio.create_task(_send(websocket, stream))
    leaving = asyncio.create_task(_until_left(websocket))
    try:
        await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, leaving):
            task.cancel()
        await asyncio.gather(sending, leaving, return_exceptions=True)
        await stream.aclose()
    if not sending.cancelled():
        await websocket.close(*sending.result())


async def _send(websocket: WebSocket, stream: LiveStream) -> tuple[int, str]:
    """Send all frames; return how to close."""
    async for frame in stream.frames():
        await websocket.send_text(frame_text(frame))
        if frame.type == PROBLEM_FRAME:
            return CLOSE_BASE + int(frame.data["status"]), str(frame.data["code"])
    return (GOING_AWAY, "stopping") if _readers(websocket).draining else (DONE, "done")


async def _until_left(websocket: WebSocket) -> None:
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return


async def _refuse(websocket: WebSocket, body: dict[str, Any]) -> None:
    await websocket.send_text(frame_text(Frame(PROBLEM_FRAME, Cursor(), body)))
    await websocket.close(CLOSE_BASE + int(body["status"]), str(body["code"]))
