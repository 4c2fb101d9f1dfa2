"""`milepost search`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli.invocation import Invocation, command
from cli.output import printable
from cli.routes import API, Json

PAGE = 100


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    command(app, "search")(search)


async def search(
    call: Invocation,
    query: Annotated[str, typer.Argument(metavar="QUERY", help='Words; "in order", -without, this OR that, begin*.')],
    literal: Annotated[bool, typer.Option("--literal", help="Look for the exact string; newest first.")] = False,
    session: Annotated[str | None, typer.Option("--session", metavar="SESSION", help="Only in this Session.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="ID", help="Only texts of this agent.")] = None,
    state: Annotated[str | None, typer.Option("--state", metavar="STATE", help="Only turns in this state.")] = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", metavar="KIND", help="session, request, attachment, output, error, call or result."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="From this time on: 2026-01-31T12:00:00Z.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Before this time.")] = None,
    live: Annotated[bool, typer.Option("--live", help="Without turns that a rewind has superseded.")] = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1_000, help="At most so many hits.")] = 20,
) -> None:
    """Search requests, outputs, errors, tool calls and titles of all Sessions, or of one."""
    from cli.connection import Need, reach

    body: Json = {
        "q": query,
        "literal": literal,
        "session_id": session,
        "agent": agent,
        "state": state,
        "kind": kind,
        "since": since,
        "until": until,
        "superseded": not live,
    }
    hits: list[Json] = []
    async with reach(call, Need.READ) as reached:
        while True:
            page = await reached.client.post(f"{API}/search", body | {"limit": min(PAGE, limit - len(hits))})
            hits += page["hits"]
            body["cursor"] = page["next_cursor"]
            if body["cursor"] is None or len(hits) >= limit:
                break
    if call.json:
        more = page["next_cursor"] is not None
        call.out.document({"hits": hits, "literal": page["literal"], "complete": page["complete"], "truncated": more})
        return
    for hit in hits:
        _print(call, hit)
    if not hits:
        call.out.note("Nothing was found.")
    if page["next_cursor"] is not None:
        call.out.note(f"There is more: --limit {limit * 2}")
    if not page["complete"]:
        call.out.note("The index does not have every event; make it anew: milepost db reindex", style="yellow")


def _print(call: Invocation, hit: dict[str, Any]) -> None:
    from rich.markup import escape

    turn = "" if hit["turn_number"] is None else f" · turn {hit['turn_number']} {hit['turn_state']}"
    old = " · [yellow]superseded[/]" if hit["superseded"] else ""
    title = escape(" ".join(printable(hit["session_title"]).split()))
    call.out.line(f"[bold]{title}[/] [dim]{hit['session_id']}[/]{turn} · {hit['kind']}{old}")
    text = "".join(_fragment(piece) for piece in hit["snippet"])
    call.out.line(f"  {' '.join(printable(text).split())}")
    if hit["turn_id"]:
        call.out.line(f"  [dim]{hit['at']} · {hit['turn_id']}[/]")


def _fragment(piece: dict[str, Any]) -> str:
    from rich.markup import escape

    text = escape(piece["text"])
    return f"[black on yellow]{text}[/]" if piece["match"] else text
