"""The HTTP client of an instance: over its Unix socket, or in this process when no instance runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import BinaryIO

import httpx

from cli.failures import ConnectionLost, RemoteFailure, kind_of_problem
from cli.routes import API, Json

BASE_URL = "http://milepost"
"""The name by which an instance is called over its Unix socket."""

TIMEOUT = httpx.Timeout(60.0, connect=5.0)
STREAM_TIMEOUT = httpx.Timeout(45.0, connect=5.0)
"""The server sends something every 10 s, so a longer silence is a dead connection."""

UPLOAD_SECONDS = 3600.0
"""A large Session is written in one transaction before there is an answer."""

MAX_FRAME_CHARACTERS = 64 * 1024 * 1024
PAGE = 100


class ApiClient:
    """Calls routes; failures are `RemoteFailure` (the instance said no) or `ConnectionLost`."""

    def __init__(self, transport: httpx.AsyncBaseTransport, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.AsyncClient(
            transport=transport, base_url=BASE_URL, headers=headers, timeout=TIMEOUT, trust_env=False
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def get(self, path: str, **query: str | int | bool | list[str] | None) -> Json:
        """A JSON document. Parameters that are None are left out."""
        return self._body(await self._send("GET", path, query=query))

    async def post(self, path: str, body: Json | None = None) -> Json:
        """A JSON document; members of `body` that are None are left out."""
        filled = {key: value for key, value in (body or {}).items() if value is not None}
        return self._body(await self._send("POST", path, body=filled if body is not None else None))

    async def delete(self, path: str) -> Json:
        """A JSON document."""
        return self._body(await self._send("DELETE", path))

    async def put(self, path: str, body: Json) -> Json:
        """A JSON document; `body` is sent as it is."""
        return self._body(await self._send("PUT", path, body=body))

    async def remove(self, path: str, **query: str | int | bool | None) -> None:
        """Delete what answers with nothing; parameters that are None are left out."""
        await self._send("DELETE", path, query=query)

    async def text(self, path: str, **query: str | int | bool | None) -> str:
        """A whole text."""
        response = await self._send("GET", path, query=query)
        return response.content.decode("utf-8", "surrogatepass")

    async def pieces(self, path: str, **query: str | int | bool | None) -> AsyncGenerator[bytes, None]:
        """A document of any length in pieces.

        Raises:
            ConnectionLost: it ended before it was whole.
        """
        params = {key: value for key, value in query.items() if value is not None}
        request = self._http.build_request("GET", path, params=params)
        try:
            response = await self._http.send(request, stream=True)
        except httpx.HTTPError as error:
            raise _lost(error) from error
        try:
            if response.is_error:
                await response.aread()
                raise _failure(response)
            async for piece in response.aiter_bytes():
                yield piece
        except httpx.HTTPError as error:
            raise _lost(error) from error
        finally:
            await response.aclose()

    async def send_file(self, path: str, file: BinaryIO, **query: str | None) -> Json:
        """Post a file's bytes as they are read; a JSON document."""
        params = {key: value for key, value in query.items() if value is not None}
        headers = {"Content-Type": "application/octet-stream"}
        timeout = httpx.Timeout(UPLOAD_SECONDS, connect=5.0)
        try:
            response = await self._http.post(path, params=params, content=_read(file), headers=headers, timeout=timeout)
        except httpx.HTTPError as error:
            raise _lost(error) from error
        return self._body(response)

    async def pages(
        self,
        path: str,
        key: str,
        limit: int,
        *,
        also: Mapping[str, list[Json]] | None = None,
        **query: str | int | bool | None,
    ) -> list[Json]:
        """Up to `limit` items of a list, page by page. `also`: where items of other lists of the pages go."""
        items: list[Json] = []
        cursor: str | int | None = None
        while len(items) < limit:
            page = await self.get(path, cursor=cursor, limit=min(PAGE, limit - len(items)), **query)
            items.extend(page[key])
            for name, others in (also or {}).items():
                others.extend(page.get(name, []))
            cursor = page.get("next_cursor")
            if cursor is None:
                break
        return items[:limit]

    async def frames(self, session_id: str, after: str, until_turn: str) -> AsyncGenerator[Json, None]:
        """Live frames after a cursor, up to and including the turn's terminal event: {type, cursor, data}.

        Raises:
            ConnectionLost: the stream broke off; resume with the last cursor.
        """
        path = f"{API}/sessions/{session_id}/events"
        query = {"after": after, "until_turn": until_turn}
        request = self._http.build_request("GET", path, params=query, timeout=STREAM_TIMEOUT)
        try:
            response = await self._http.send(request, stream=True)
        except httpx.HTTPError as error:
            raise _lost(error) from error
        try:
            if response.is_error:
                await response.aread()
                self._body(response)
            async for frame in _frames(response):
                yield frame
        except httpx.HTTPError as error:
            raise _lost(error) from error
        finally:
            await response.aclose()

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int | bool | list[str] | None] | None = None,
        body: Json | None = None,
    ) -> httpx.Response:
        params = {key: value for key, value in (query or {}).items() if value is not None}
        # Plain ASCII: a lone surrogate from a terminal or a file is no UTF-8, but it is JSON.
        content = None if body is None else json.dumps(body).encode()
        headers = None if body is None else {"Content-Type": "application/json"}
        try:
            response = await self._http.request(method, path, params=params, content=content, headers=headers)
        except httpx.HTTPError as error:
            raise _lost(error) from error
        if response.is_error:
            raise _failure(response)
        return response

    def _body(self, response: httpx.Response) -> Json:
        if response.is_error:
            raise _failure(response)
        try:
            value = response.json()
        except ValueError as error:
            raise ConnectionLost("The instance's answer is no JSON.") from error
        return value if isinstance(value, dict) else {"value": value}


async def _read(file: BinaryIO) -> AsyncGenerator[bytes, None]:
    while piece := await asyncio.to_thread(file.read, 256 * 1024):
        yield piece


async def _frames(response: httpx.Response) -> AsyncGenerator[Json, None]:
    """Server-sent events as frames; comments and empty events are passed over."""
    data: list[str] = []
    size = 0
    async for line in response.aiter_lines():
        if not line:
            if data:
                yield json.loads("\n".join(data))
            data, size = [], 0
            continue
        field, _, value = line.partition(":")
        size += len(value)
        if size > MAX_FRAME_CHARACTERS:
            raise ConnectionLost("A live frame is too large.")
        if field == "data":
            data.append(value.removeprefix(" "))


def _failure(response: httpx.Response) -> RemoteFailure:
    try:
        problem = response.json()
    except ValueError:
        problem = {}
    if not isinstance(problem, dict):
        problem = {}
    code = str(problem.get("code", f"http_{response.status_code}"))
    return RemoteFailure(
        str(problem.get("detail", f"The instance answered with HTTP status {response.status_code}.")),
        code=code,
        kind=kind_of_problem(code, response.status_code),
        field=problem.get("field"),
        fix=problem.get("fix"),
    )


def _lost(error: httpx.HTTPError) -> ConnectionLost:
    return ConnectionLost(f"The connection to the running instance was lost ({type(error).__name__}).")
