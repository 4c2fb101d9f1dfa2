"""Search."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from api.dependencies import AppServices
from api.documentation import problems
from api.responses import reply
from api.schemas.search import SearchBody, SearchPageShape, SearchQuery

router = APIRouter(prefix="/api/v1", tags=["search"])


@router.get(
    "/search",
    response_model=SearchPageShape,
    responses=problems(404, 413, 422),
    summary="Search all Sessions, or one",
)
async def search(query: Annotated[SearchQuery, Query()], services: AppServices) -> Response:
    """Ranked by words, or literally; pass `next_cursor` as `cursor` to go on. Any text is a query."""
    return reply(SearchPageShape.of(await services.search.search(query.command())))


@router.post(
    "/search",
    response_model=SearchPageShape,
    responses=problems(400, 404, 413, 422),
    summary="Search with a body",
)
async def search_with_body(body: SearchBody, services: AppServices) -> Response:
    """The same, for a query that is too long for an address (up to 64 KiB) or is no UTF-8. Changes nothing."""
    return reply(SearchPageShape.of(await services.search.search(body.command())))
