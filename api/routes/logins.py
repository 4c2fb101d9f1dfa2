"""Cookie logins of browsers."""

from __future__ import annotations

import hashlib

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.dependencies import AppAccess
from api.documentation import problems
from api.problems import refusal_response
from api.schemas.instance import Login
from milepost.observability.logging import get_logger
from milepost.security.access import Refusal
from milepost.security.guard import call_of
from milepost.security.logins import LOGIN_SECONDS

router = APIRouter(prefix="/api/v1", tags=["logins"])

_log = get_logger(__name__)


def cookie_name(instance_id: str) -> str:
    """Cookies do not tell ports apart, so each instance has a name of its own."""
    return f"milepost_{hashlib.sha256(instance_id.encode()).hexdigest()[:12]}"


@router.post(
    "/login",
    status_code=204,
    response_class=Response,
    responses=problems(400, 401, 413, 422, 429, token=False),
    summary="Log a browser in",
)
async def login(body: Login, request: Request, access: AppAccess) -> Response:
    """Exchanges the token for an HttpOnly cookie with a random id, valid for a week from its last use."""
    client = call_of(request.scope).client
    outcome = access.log_in(body.token, client)
    if isinstance(outcome, Refusal):
        _log.warning("login.refused", client=client, code=outcome.code)
        return refusal_response(outcome)
    response = Response(status_code=204)
    response.set_cookie(
        request.app.state.cookie_name,
        outcome,
        max_age=int(LOGIN_SECONDS),
        httponly=True,
        samesite="strict",
        secure=request.scope["scheme"] == "https",
    )
    return response


@router.post(
    "/logout",
    status_code=204,
    response_class=Response,
    responses=problems(token=False),
    summary="Log a browser out",
)
async def logout(request: Request, access: AppAccess) -> Response:
    """Ends the login of the cookie, if there is one."""
    name = request.app.state.cookie_name
    access.log_out(request.cookies.get(name))
    response = Response(status_code=204)
    response.delete_cookie(name, httponly=True, samesite="strict")
    return response
