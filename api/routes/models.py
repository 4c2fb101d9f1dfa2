"""What can be called with the configured keys."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from api.dependencies import AppServices
from api.documentation import problems
from api.responses import reply
from api.schemas.models import ModelsQuery, ProviderList, ProviderShape, RouteList, RoutesCheck, RouteShape

router = APIRouter(prefix="/api/v1", tags=["models"])


@router.get("/models", response_model=ProviderList, responses=problems(404, 422), summary="List models")
async def list_models(query: Annotated[ModelsQuery, Query()], services: AppServices) -> Response:
    """Asks each configured provider for its models, at most 2,000 each; calls no model.

    200 also when a provider cannot be asked: its entry says why.
    """
    found = await services.models.listing(query.provider)
    return reply(ProviderList(providers=[ProviderShape.of(item) for item in found]))


@router.post(
    "/models/check", response_model=RouteList, responses=problems(400, 404, 413, 422), summary="Check the routes"
)
async def check_routes(services: AppServices, body: RoutesCheck | None = None) -> Response:
    """Whether the key, the address and the model of each route that an agent uses work, fallbacks included.

    With `call` each route is called once, which may cost money.
    """
    wanted = body or RoutesCheck()
    found = [RouteShape.of(item) for item in await services.models.check(wanted.provider, call=wanted.call)]
    return reply(RouteList(ok=all(item.ok for item in found), routes=found))
