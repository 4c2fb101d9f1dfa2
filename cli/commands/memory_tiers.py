"""`milepost memory ...`: what agents keep in mind, their logs and what they can recall."""

from __future__ import annotations

import asyncio
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from cli.failures import Exit
from cli.invocation import Invocation, command
from cli.output import counted, printable, short
from cli.routes import API, Json
from milepost.domain.errors import InvalidInput, TargetNotEmpty

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from cli.client import ApiClient

REBUILD_SECONDS = 1800
POLL_SECONDS = 0.5

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="Id of a Session.")]
SessionOrShared = Annotated[str, typer.Argument(metavar="SESSION", help="Id of a Session; 'shared' for shared blocks.")]
Label = Annotated[str, typer.Argument(metavar="LABEL", help="Label of a core block.")]
Agent = Annotated[
    str | None,
    typer.Option("--agent", metavar="ID", help="Whose memory; default: the Session's only agent."),
]
Note = Annotated[str, typer.Option("--note", metavar="TEXT", help="Why; kept with the version.")]
SHARED = "shared"
NOTHING = "Nothing was found."


def register(group: typer.Typer) -> None:
    """Add the commands of this module to the group `memory`."""
    command(group, "show")(show)
    command(group, "blocks")(blocks)
    command(group, "log")(log)
    command(group, "records")(records)
    command(group, "recall")(recall)
    command(group, "forget")(forget)
    command(group, "reindex-records")(reindex_records)
    command(group, "export")(export)
    command(group, "rebuild")(rebuild)
    block = typer.Typer(help="Look at and edit one core block.", no_args_is_help=True)
    group.add_typer(block, name="block")
    command(block, "show")(show_block)
    command(block, "set")(set_block)
    command(block, "revert")(revert_block)


async def show(call: Invocation, session: SessionId) -> None:
    """Show whose memory a Session has, and how much."""
    from cli.connection import Need, reach

    async with reach(call, Need.READ) as reached:
        found = await reached.client.get(f"{API}/sessions/{session}/memory")
    if call.json:
        call.out.document(found)
        return
    rows = [
        [
            owner["owner"],
            ", ".join(f"{block['label']} {block['characters']}/{block['limit']}" for block in owner["blocks"]),
            str(len(owner["days"])),
            str(owner["records"]),
            str(owner["pending"] + owner["failed"]),
        ]
        for owner in found["owners"]
    ]
    call.out.table(["OWNER", "BLOCKS", "DAYS", "RECORDS", "WITHOUT VECTOR"], rows)
    for task in found["waiting"]:
        why = f": {task['error']}" if task["error"] else ""
        call.out.note(f"Still to be done: {task['kind']} {task['subject']}{why}")
    _tell_rebuild(call, session, found)


async def blocks(call: Invocation, session: SessionOrShared, agent: Agent = None) -> None:
    """List core blocks with their values."""
    from rich.markup import escape

    from cli.connection import Need, reach

    async with reach(call, Need.READ) as reached:
        found = await reached.client.get(f"{await _place(reached.client, session, agent)}")
        memory = (
            None if session == SHARED or call.json else await reached.client.get(f"{API}/sessions/{session}/memory")
        )
    if call.json:
        call.out.document(found)
        return
    for block in found["blocks"]:
        marks = "".join(f" · {word}" for word in ("shared", "read_only") if block[word])
        size = f"{block['characters']}/{block['limit']} · version {block['version']}"
        call.out.line(f"[bold]{block['label']}[/] [dim]{size}{marks}[/]")
        if block["value"]:
            call.out.line(escape(printable(block["value"])))
    if memory is not None:
        _tell_rebuild(call, session, memory)


async def show_block(call: Invocation, session: SessionOrShared, label: Label, agent: Agent = None) -> None:
    """Show a core block and its history, newest version first."""
    from rich.markup import escape

    from cli.connection import Need, reach

    async with reach(call, Need.READ) as reached:
        found = await reached.client.get(f"{await _place(reached.client, session, agent)}/{_part(label)}")
    if call.json:
        call.out.document(found)
        return
    block = found["block"]
    call.out.line(escape(printable(block["value"])) if block["value"] else "(empty)")
    call.out.note(f"{block['characters']} of {block['limit']} characters, version {block['version']}.")
    rows = [
        [
            str(version["version"]),
            version["written_at"],
            version["by"],
            "superseded" if version["superseded"] else "",
            short(version["value"], 80),
            short(version["note"], 80),
        ]
        for version in found["versions"]
    ]
    call.out.table(["VERSION", "WRITTEN", "BY", "", "TEXT", "NOTE"], rows)


async def set_block(
    call: Invocation,
    session: SessionOrShared,
    label: Label,
    value: Annotated[str | None, typer.Argument(metavar="[VALUE]", help="The new value; '-' or none reads it.")] = None,
    agent: Agent = None,
    expected: Annotated[
        int | None, typer.Option("--expect", metavar="N", min=0, help="Only if the block is at this version.")
    ] = None,
    note: Note = "",
) -> None:
    """Write a core block; agents see it with their next turn."""
    from cli.connection import Need, reach

    text = await asyncio.to_thread(sys.stdin.read) if value in (None, "-") else value
    body = {"value": text, "expected_version": expected, "note": note}
    async with reach(call, Need.WRITE) as reached:
        path = f"{await _place(reached.client, session, agent)}/{_part(label)}"
        version = await reached.client.put(path, body)
    _told(call, label, version)


async def revert_block(
    call: Invocation,
    session: SessionOrShared,
    label: Label,
    to: Annotated[int, typer.Option("--to", metavar="N", min=0, help="An earlier version; 0: as configured.")],
    agent: Agent = None,
    note: Note = "",
) -> None:
    """Give a core block the value of an earlier version, as a new one."""
    from cli.connection import Need, reach

    async with reach(call, Need.WRITE) as reached:
        path = f"{await _place(reached.client, session, agent)}/{_part(label)}/revert"
        version = await reached.client.post(path, {"to": to, "note": note})
    _told(call, label, version)


async def log(
    call: Invocation,
    session: SessionId,
    agent: Agent = None,
    start: Annotated[str | None, typer.Option("--from", metavar="TIME", help="From this time on.")] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Before this time.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="At most so many.")] = 100,
) -> None:
    """Print an agent's daily log, oldest entry first. Times are ISO 8601; without an offset, of this machine's zone."""
    from rich.markup import escape

    from cli.connection import Need, reach

    bounds: dict[str, Any] = {"from": _moment(start), "to": _moment(end)}
    async with reach(call, Need.READ) as reached:
        path = f"{await _owner(reached.client, session, agent)}/log"
        found = await reached.client.pages(path, "entries", limit + 1, **bounds)
    if call.json:
        call.out.document({"session_id": session, "entries": found[:limit], "truncated": len(found) > limit})
        return
    for entry in found[:limit]:
        old = " [yellow]superseded[/]" if entry["superseded"] else ""
        call.out.line(f"[dim]{entry['at']} {escape(entry['speaker'])}[/]{old} {escape(short(entry['text'], 500))}")
    if not found:
        call.out.note(NOTHING)
    if len(found) > limit:
        call.out.note(f"There are more: --limit {limit * 2}, or name a time.")


async def records(
    call: Invocation,
    session: SessionId,
    agent: Agent = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="At most so many.")] = 100,
) -> None:
    """List what an agent can recall, newest first."""
    from cli.connection import Need, reach

    async with reach(call, Need.READ) as reached:
        path = f"{await _owner(reached.client, session, agent)}/records"
        found = await reached.client.pages(path, "records", limit + 1)
    if call.json:
        call.out.document({"session_id": session, "records": found[:limit], "truncated": len(found) > limit})
        return
    if not found:
        call.out.note(NOTHING)
        return
    rows = [
        [record["id"], record["at"][:19], record["kind"], record["embedding"], short(record["text"], 100)]
        for record in found[:limit]
    ]
    call.out.table(["ID", "SAID", "KIND", "VECTOR", "TEXT"], rows)


async def recall(
    call: Invocation,
    session: SessionId,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to look for.")],
    agent: Agent = None,
    limit: Annotated[int, typer.Option("--limit", "-k", metavar="N", min=1, max=100, help="At most so many.")] = 10,
    min_score: Annotated[
        float, typer.Option("--min-score", metavar="X", min=0, max=1, help="Leave out what fits less.")
    ] = 0.15,
) -> None:
    """Search an agent's memory as the agent would, with scores and reasons."""
    from rich.markup import escape

    from cli.connection import Need, reach

    body = {"query": query, "k": limit, "min_score": round(min_score * 1_000_000)}
    async with reach(call, Need.READ) as reached:
        found = await reached.client.post(f"{await _owner(reached.client, session, agent)}/recall", body)
    if call.json:
        call.out.document(found)
        return
    for item in found["items"]:
        where = f"turn {item['turn_number']}, " if item["turn_number"] else ""
        call.out.line(f"[bold]{item['score'] / 1_000_000:.2f}[/] {item['id']} [dim]{where}{item['at'][:19]}[/]")
        call.out.line(f"  {escape(short(item['text'], 300))}")
        call.out.line(f"  [dim]{escape(item['reason'])}[/]")
    if not found["items"]:
        call.out.note(NOTHING)
    if found["problem"]:
        call.out.note(found["problem"])
    elif found["incomplete"]:
        call.out.note(f"{counted(found['incomplete'], 'record')} without a vector: searched by words only.")


async def forget(
    call: Invocation,
    session: SessionId,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of records.")],
    agent: Agent = None,
) -> None:
    """Forget records for good. The turns they came from stay in the ledger."""
    from cli.connection import Need, reach

    async with reach(call, Need.WRITE) as reached:
        path = f"{await _owner(reached.client, session, agent)}/forget"
        done = await reached.client.post(path, {"ids": ids})
    if call.json:
        call.out.document(done)
    else:
        call.out.line(f"Forgotten: {', '.join(done['forgotten'])}")


async def reindex_records(call: Invocation, session: SessionId, agent: Agent = None) -> None:
    """Make the vectors of what an agent can recall anew. Searches go on with the old ones until it is finished."""
    from cli.connection import Need, reach

    embedded, after = 0, 0
    async with reach(call, Need.WRITE) as reached:
        path = f"{await _owner(reached.client, session, agent)}/reindex"
        while True:
            step = await reached.client.post(path, {"after": after})
            embedded, after = embedded + step["embedded"], step["after"]
            if step["finished"]:
                break
            call.out.note(f"{embedded:,} of about {step['records']:,} records ...")
    if call.json:
        call.out.document({name: step[name] for name in ("embedder", "dimensions", "records")} | {"embedded": embedded})
        return
    call.out.line(f"Embedded {counted(embedded, 'record')} with {step['embedder']} ({step['dimensions']} dimensions).")


async def export(
    call: Invocation,
    session: SessionId,
    agent: Agent = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="A new file.")] = None,
) -> None:
    """Write all that an agent has in memory as JSON lines."""
    from cli.connection import Need, reach

    async with reach(call, Need.READ) as reached:
        path = f"{await _owner(reached.client, session, agent)}/export"
        pieces = reached.client.pieces(path)
        if output is None:
            async for piece in pieces:
                sys.stdout.buffer.write(piece)
            sys.stdout.flush()
            return
        await _write_new(output.expanduser(), pieces)
    call.out.note(f"Written to {output}.")


async def rebuild(call: Invocation, session: SessionId) -> Exit:
    """Make a Session's memory anew from the ledger. What was forgotten stays so."""
    from cli.connection import Need, reach

    path = f"{API}/sessions/{session}/memory"
    async with reach(call, Need.EXECUTE) as reached:
        found = await reached.client.post(f"{path}/rebuild")
        for _ in range(int(REBUILD_SECONDS / POLL_SECONDS)):
            if not any(task["kind"] == "rebuild" for task in found["waiting"]):
                break
            await asyncio.sleep(POLL_SECONDS)
            found = await reached.client.get(path)
    waits = [task for task in found["waiting"] if task["kind"] == "rebuild"]
    if call.json:
        call.out.document(found)
    elif waits:
        call.out.note(f"It is not done yet: {waits[0]['error'] or 'a worker is at it'}.", style="yellow")
    else:
        total = sum(owner["records"] for owner in found["owners"])
        call.out.line(f"Rebuilt: {counted(total, 'record')} of {counted(len(found['owners']), 'agent')}.")
    return Exit.FAILED if waits else Exit.OK


def _tell_rebuild(call: Invocation, session: str, memory: Json) -> None:
    """As after a restore: what is shown is not what the Session's memory will be."""
    if any(task["kind"] == "rebuild" for task in memory["waiting"]):
        text = f"This memory will be rebuilt when a worker runs; now: milepost memory rebuild {session}"
        call.out.note(text, style="yellow")


async def _write_new(output: Path, pieces: AsyncGenerator[bytes, None]) -> None:
    """Write a file that is not there yet. Raises TargetNotEmpty, InvalidInput (it cannot be written)."""
    made = False
    try:
        with await asyncio.to_thread(output.open, "xb") as file:
            made = True
            async for piece in pieces:
                await asyncio.to_thread(file.write, piece)
        made = False
    except FileExistsError as error:
        raise TargetNotEmpty(f"The file {output} exists already.", field="output", fix="Name a new file.") from error
    except OSError as error:
        raise InvalidInput(
            f"{output} cannot be written: {error.strerror or error}.", field="output", fix="Name another file."
        ) from error
    finally:
        if made:
            # Part of an export looks like a whole one. Not in a thread, whose end a cancellation would not wait for.
            output.unlink(missing_ok=True)  # noqa: ASYNC240


def _told(call: Invocation, label: str, version: Json) -> None:
    if call.json:
        call.out.document(version)
    else:
        call.out.line(f"'{label}' is at version {version['version']}, {len(version['value'])} characters.")


async def _owner(client: ApiClient, session: str, agent: str | None) -> str:
    """The routes of one owner's memory."""
    path = f"{API}/sessions/{session}/memory"
    if agent is None:
        owners = (await client.get(path))["owners"]
        if len(owners) != 1:
            names = ", ".join(owner["owner"] for owner in owners)
            raise InvalidInput("The Session has several agents.", field="agent", fix=f"Name one with --agent: {names}.")
        agent = owners[0]["owner"]
    return f"{path}/{_part(agent)}"


async def _place(client: ApiClient, session: str, agent: str | None) -> str:
    """The routes of an owner's blocks, or of the shared ones."""
    return f"{API}/shared-blocks" if session == SHARED else f"{await _owner(client, session, agent)}/blocks"


def _part(text: str) -> str:
    return quote(text, safe=":")


def _moment(text: str | None) -> str | None:
    """A time with its offset; a date is its beginning, in this machine's zone."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone().isoformat()
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"{text[:60]!r} is no time.", field="time", fix="Write it like 2026-11-30 or 2026-11-30T15:30:00+01:00."
        ) from None
