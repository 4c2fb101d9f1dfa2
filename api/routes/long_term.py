"""Long-term memory."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from api.dependencies import Actor, AppServices
from api.documentation import problems
from api.responses import reply
from api.schemas.long_term import (
    DeleteQuery,
    NamespacePage,
    NamespaceShape,
    PageQuery,
    RecordBody,
    RecordHits,
    RecordPage,
    RecordSearchBody,
    RecordShape,
    ReindexBody,
    ReindexStep,
    WrittenRecord,
)
from milepost.services.longterm.upkeep import reindex

router = APIRouter(prefix="/api/v1/memory/namespaces", tags=["long-term memory"])

Namespace = Annotated[str, Path(description="Name of a namespace.")]
Key = Annotated[str, Path(description="Key of a record; slashes are part of it.")]


@router.get("", response_model=NamespacePage, responses=problems(422), summary="List namespaces")
async def list_long_term_namespaces(query: Annotated[PageQuery, Query()], services: AppServices) -> Response:
    """In order of their names; pass `next_cursor` as `cursor` to go on."""
    found = await services.long_term.namespaces(after=query.cursor, limit=query.limit + 1)
    shown = found[: query.limit]
    more = len(found) > query.limit
    return reply(
        NamespacePage(
            namespaces=[NamespaceShape.of(info) for info in shown], next_cursor=shown[-1].name if more else None
        )
    )


@router.post(
    "/{namespace}/search",
    response_model=RecordHits,
    responses=problems(400, 404, 409, 413, 422),
    summary="Search records",
)
async def search_long_term_records(namespace: Namespace, body: RecordSearchBody, services: AppServices) -> Response:
    """The best records for a query; a namespace that does not exist has none. Changes nothing."""
    return reply(RecordHits.of(namespace, await services.long_term.search(namespace, body.command())))


@router.post(
    "/{namespace}/reindex",
    response_model=ReindexStep,
    responses=problems(400, 404, 413, 422),
    summary="Make vectors anew, step by step",
)
async def reindex_long_term(namespace: Namespace, body: ReindexBody, services: AppServices) -> Response:
    """Works for some seconds and says where to go on. Searches go on with the old vectors until it is finished."""
    return reply(ReindexStep.of(await reindex(services.long_term, namespace, body.embedder, after=body.after)))


@router.get("/{namespace}/records", response_model=RecordPage, responses=problems(404, 422), summary="List records")
async def list_long_term_records(
    namespace: Namespace, query: Annotated[PageQuery, Query()], services: AppServices
) -> Response:
    """In order of their keys; pass `next_cursor` as `cursor` to go on."""
    records, after = await services.long_term.page(namespace, after=query.cursor, limit=query.limit)
    shapes = [RecordShape.of(record) for record in records]
    return reply(RecordPage(namespace=namespace, records=shapes, next_cursor=after))


@router.get(
    "/{namespace}/records/{key:path}", response_model=RecordShape, responses=problems(404, 422), summary="Get a record"
)
async def get_long_term_record(namespace: Namespace, key: Key, services: AppServices) -> Response:
    """One record; one whose time is over is a 404."""
    return reply(RecordShape.of(await services.long_term.get(namespace, key)))


@router.put(
    "/{namespace}/records/{key:path}",
    response_model=WrittenRecord,
    responses=problems(400, 404, 409, 413, 422),
    summary="Write a record",
)
async def put_long_term_record(
    namespace: Namespace, key: Key, body: RecordBody, services: AppServices, actor: Actor
) -> Response:
    """It replaces the one of this key; a record that is not of the expected version is a 409."""
    return reply(WrittenRecord.of_kept(await services.long_term.put(namespace, body.command(key, actor))))


@router.delete(
    "/{namespace}/records/{key:path}", status_code=204, responses=problems(404, 409, 422), summary="Delete a record"
)
async def delete_long_term_record(
    namespace: Namespace, key: Key, query: Annotated[DeleteQuery, Query()], services: AppServices
) -> Response:
    """Text and vector are gone at once; the number of its version is remembered for 30 days."""
    await services.long_term.delete(namespace, key, query.expected_version)
    return Response(status_code=204)
