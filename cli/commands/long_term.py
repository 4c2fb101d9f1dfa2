"""`milepost memory namespaces|list|get|put|delete|search|reindex`: long-term memory."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import typer

from cli.invocation import Invocation, command
from cli.output import counted, printable, short
from cli.routes import API, Json
from milepost.domain.errors import InvalidInput

BASE = f"{API}/memory/namespaces"

_VALUE_FIX = "Write a text as '\"TEXT\"', or use --text."
_METADATA_FIX = 'Write an object: \'{"team": "docs"}\''

Namespace = Annotated[str, typer.Argument(metavar="NAMESPACE", help="Name of a namespace.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="Key of a record.")]
Expected = Annotated[
    int | None,
    typer.Option(
        "--expected-version", metavar="N", min=0, help="Only if this version is there; 0: only if there is none."
    ),
]


class Mode(StrEnum):
    """How records are scored."""

    TEXT = "text"
    VECTOR = "vector"
    HYBRID = "hybrid"
    BM25 = "bm25"
    BEST = "best"


def register(group: typer.Typer) -> None:
    """Add the commands of this module to the group."""
    command(group, "namespaces")(namespaces)
    command(group, "list")(list_)
    command(group, "get")(get)
    command(group, "put")(put)
    command(group, "delete")(delete)
    command(group, "search")(search)
    command(group, "reindex")(reindex)


async def namespaces(
    call: Invocation,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="At most so many.")] = 100,
) -> None:
    """List the namespaces of long-term memory with their embedders."""
    from cli.connection import Need, reach

    async with reach(call, Need.READ) as reached:
        found = await reached.client.pages(BASE, "namespaces", limit + 1)
    if call.json:
        call.out.document({"namespaces": found[:limit], "truncated": len(found) > limit})
        return
    rows = [
        [printable(item["namespace"]), str(item["records"]), item["embedder"] or "", str(item["dimensions"] or "")]
        for item in found[:limit]
    ]
    call.out.table(["NAMESPACE", "RECORDS", "EMBEDDER", "DIMENSIONS"], rows)


async def list_(
    call: Invocation,
    namespace: Namespace,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="At most so many.")] = 100,
) -> None:
    """List the records of a namespace in order of their keys."""
    from cli.connection import Need, reach

    async with reach(call, Need.READ) as reached:
        found = await reached.client.pages(f"{_place(namespace)}/records", "records", limit + 1)
    if call.json:
        call.out.document({"namespace": namespace, "records": found[:limit], "truncated": len(found) > limit})
        return
    rows = [
        [printable(item["key"]), str(item["version"]), item["updated_at"], item["expires_at"] or "", _text(item)]
        for item in found[:limit]
    ]
    call.out.table(["KEY", "VERSION", "UPDATED", "EXPIRES", "TEXT"], rows)
    if len(found) > limit:
        call.out.note(f"There are more: --limit {limit * 2}")


async def get(call: Invocation, namespace: Namespace, key: Key) -> None:
    """Print a record."""
    from cli.connection import Need, reach

    async with reach(call, Need.READ) as reached:
        found = await reached.client.get(_record(namespace, key))
    if call.json:
        call.out.document(found)
        return
    _print(call, found)


async def put(
    call: Invocation,
    namespace: Namespace,
    key: Key,
    value: Annotated[
        str | None, typer.Argument(metavar="JSON_VALUE", help="JSON value of the record; without it the text is it.")
    ] = None,
    text: Annotated[
        str | None, typer.Option("--text", metavar="TEXT", help="Text of the record; with a value, what is searched.")
    ] = None,
    metadata: Annotated[
        str | None, typer.Option("--metadata", metavar="JSON", help="JSON object that searches can filter by.")
    ] = None,
    retention_days: Annotated[
        int | None,
        typer.Option("--retention-days", metavar="N", min=1, max=36_500, help="After how many days it is over."),
    ] = None,
    expected_version: Expected = None,
) -> None:
    """Write a record; an existing one of this key is replaced."""
    from cli.connection import Need, reach

    if value is None and text is None:
        raise InvalidInput("There is nothing to write.", field="value", fix="Give a JSON value, --text, or both.")
    if value is None:
        content: Json = {"type": "text", "text": text}
    else:
        content = {"type": "json", "value": _json(value, "value", _VALUE_FIX)} | (
            {} if text is None else {"text": text}
        )
    body = {
        "content": content,
        "metadata": {} if metadata is None else _json(metadata, "metadata", _METADATA_FIX),
    }
    body |= {"retention_days": retention_days, "expected_version": expected_version}
    async with reach(call, Need.WRITE) as reached:
        kept = await reached.client.put(_record(namespace, key), body)
    if call.json:
        call.out.document(kept)
        return
    call.out.line(f"Wrote {printable(namespace)}/{printable(key)}, version {kept['version']}.")
    if kept["embedding_error"]:
        call.out.note(f"It has no vector and is found by its words only: {printable(kept['embedding_error'])}")


async def delete(call: Invocation, namespace: Namespace, key: Key, expected_version: Expected = None) -> None:
    """Delete a record."""
    from cli.connection import Need, reach

    async with reach(call, Need.WRITE) as reached:
        await reached.client.remove(_record(namespace, key), expected_version=expected_version)
    if call.json:
        call.out.document({"namespace": namespace, "key": key, "deleted": True})
        return
    call.out.line(f"Deleted {printable(namespace)}/{printable(key)}.")


async def search(
    call: Invocation,
    namespace: Namespace,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to look for, up to 64 KiB.")],
    mode: Annotated[Mode, typer.Option("--mode", help="How records are scored.")] = Mode.HYBRID,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=100, help="At most so many hits.")] = 10,
    filters: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="NAME=JSON", help="Metadata that a record must have; may be given again."),
    ] = None,
) -> None:
    """Search a namespace, with the embedder that its vectors are of."""
    from cli.connection import Need, reach

    wanted = dict(_filter(item) for item in filters or ())
    body = {"query": query, "mode": mode.value, "limit": limit, "filters": wanted}
    async with reach(call, Need.READ) as reached:
        found = await reached.client.post(f"{_place(namespace)}/search", body)
        if not found["hits"]:
            # It has none if it does not exist, either; listing its records tells a misspelled name.
            await reached.client.get(f"{_place(namespace)}/records", limit=1)
    if call.json:
        call.out.document(found)
        return
    for hit in found["hits"]:
        record = hit["record"]
        call.out.line(f"{hit['score']:>9,}  [bold]{_escaped(record['key'])}[/]  {_escaped(_text(record))}")
    if not found["hits"]:
        call.out.note("Nothing was found.")
    if not found["exact"]:
        call.out.note(
            f"Vectors of {found['candidates']:,} candidates were searched approximately; the scores are exact."
        )
    if found["without_vector"] and mode is not Mode.TEXT and mode is not Mode.BM25:
        lacking = counted(found["without_vector"], "record")
        call.out.note(f"{lacking} without a vector; make it: milepost memory reindex {printable(namespace)}")


async def reindex(
    call: Invocation,
    namespace: Namespace,
    embedder: Annotated[
        str | None, typer.Option("--embedder", metavar="NAME", help="Embedder; default: the configured one.")
    ] = None,
) -> None:
    """Make the vectors of a namespace anew. Searches go on with the old ones until it is finished."""
    from cli.connection import Need, reach

    embedded, after = 0, ""
    async with reach(call, Need.WRITE) as reached:
        while True:
            step = await reached.client.post(f"{_place(namespace)}/reindex", {"embedder": embedder, "after": after})
            embedded, after = embedded + step["embedded"], step["after"]
            if step["finished"]:
                break
            call.out.note(f"{embedded:,} of about {step['records']:,} records ...")
    if call.json:
        call.out.document(
            {name: step[name] for name in ("namespace", "embedder", "dimensions")} | {"embedded": embedded}
        )
        return
    call.out.line(f"Embedded {counted(embedded, 'record')} with {step['embedder']} ({step['dimensions']} dimensions).")


def _place(namespace: str) -> str:
    from urllib.parse import quote

    if "/" in namespace or namespace in ("", ".", ".."):
        raise InvalidInput(
            f"'{namespace}' cannot be the name of a namespace.",
            field="namespace",
            fix="A name has 1 to 512 bytes without a slash, and is not '.' or '..': team.docs",
        )
    return f"{BASE}/{quote(namespace, safe='')}"


def _record(namespace: str, key: str) -> str:
    from urllib.parse import quote

    if not key:
        raise InvalidInput("A key is not empty.", field="key")
    return f"{_place(namespace)}/records/{quote(key, safe='')}"


def _json(text: str, field: str, fix: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"{short(text, 100)!r} is no JSON ({error}).", field=field, fix=fix) from error


def _filter(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise InvalidInput(
            f"{short(text, 100)!r} is no filter.", field="filter", fix="Write NAME=JSON: team='\"docs\"'"
        )
    return name, _json(value, "filter", f"Write a text in quotes of JSON: --filter {name}='\"TEXT\"'")


def _text(record: Json) -> str:
    content = record["content"]
    text = content.get("text")
    return short(text if isinstance(text, str) else json.dumps(content.get("value"), ensure_ascii=False), 200)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(printable(text))


def _print(call: Invocation, record: Json) -> None:
    call.out.line(f"[bold]{_escaped(record['key'])}[/] [dim]version {record['version']} · {record['updated_at']}[/]")
    who = record["written_by"] + (f" · {record['run_id']}" if record["run_id"] else "")
    until = f" · until {record['expires_at']}" if record["expires_at"] else ""
    call.out.line(f"[dim]by {_escaped(who)}{until}[/]")
    for name, value in record["metadata"].items():
        call.out.line(f"{_escaped(name)}: {_escaped(json.dumps(value, ensure_ascii=False))}")
    content = record["content"]
    if content["type"] == "json":
        call.out.line(_escaped(json.dumps(content["value"], ensure_ascii=False, indent=2)))
    if content.get("text") is not None:
        call.out.line(_escaped(content["text"]))
