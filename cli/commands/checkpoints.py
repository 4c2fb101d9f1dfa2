"""`milepost checkpoint ...`."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.failures import Exit
from cli.invocation import Invocation, command
from cli.output import counted
from cli.routes import API, Json

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="Id of a Session.")]
Agent = Annotated[str | None, typer.Option("--agent", metavar="ID", help="Only of this agent.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Cached conversations; the ledger has them all.", no_args_is_help=True)
    app.add_typer(group, name="checkpoint")
    command(group, "list")(list_)
    command(group, "show")(show)
    command(group, "write")(write)
    command(group, "discard")(discard)
    command(group, "recover")(recover)


async def list_(call: Invocation, session: SessionId, agent: Agent = None) -> None:
    """List a Session's checkpoints, newest first."""
    found = await _found(call, session, agent)
    if call.json:
        call.out.document(found)
        return
    rows = [
        [
            item["agent"],
            str(item["position"]),
            item["written_at"] or "",
            str(len(item["turns"])),
            str(item["messages"]),
            str(item["bytes"]),
            item["problem"] or "usable",
        ]
        for item in found["checkpoints"]
    ]
    call.out.table(["AGENT", "POSITION", "WRITTEN", "TURNS", "MESSAGES", "BYTES", "STATE"], rows)


async def show(
    call: Invocation,
    session: SessionId,
    agent: Agent = None,
    position: Annotated[
        int | None, typer.Option("--position", metavar="N", min=0, help="Which one; default: the newest.")
    ] = None,
) -> Exit:
    """Show what a checkpoint holds."""
    found = (await _found(call, session, agent))["checkpoints"]
    chosen = next((item for item in found if position is None or item["position"] == position), None)
    if call.json:
        call.out.document({"checkpoint": chosen})
    elif chosen is None:
        call.out.line("There is no such checkpoint.")
    else:
        call.out.table(["", ""], [[name, value] for name, value in _facts(chosen)])
        rows = [
            [
                str(turn["number"]),
                turn["turn_id"],
                str(turn["messages"]),
                str(turn["bytes"]),
                "" if turn["ended"] else "running",
            ]
            for turn in chosen["turns"]
        ]
        call.out.table(["TURN", "ID", "MESSAGES", "BYTES", ""], rows)
    return Exit.OK if chosen is not None else Exit.FAILED


def _facts(item: Json) -> list[tuple[str, str]]:
    usage = item["usage"] or {"total_tokens": 0, "complete": False}
    tokens = f"{usage['total_tokens']}" if usage["complete"] else f"at least {usage['total_tokens']}"
    return [
        ("agent", item["agent"]),
        ("position", str(item["position"])),
        ("written", item["written_at"] or ""),
        ("state", item["problem"] or "usable"),
        ("bytes", str(item["bytes"])),
        ("tokens of the Session", tokens),
        ("left out", f"turns up to number {item['omitted']}" if item["omitted"] else "nothing"),
    ]


async def write(call: Invocation, session: SessionId, agent: Agent = None) -> None:
    """Write checkpoints from the ledger now, whatever the policy."""
    from cli.connection import Need, reach

    async with reach(call, Need.WRITE) as reached:
        made = await reached.client.post(f"{API}/sessions/{session}/checkpoints", {"agent": agent})
    if call.json:
        call.out.document(made)
        return
    for item in made["checkpoints"]:
        call.out.line(f"{item['agent']}: {counted(len(item['turns']), 'turn')}, {item['bytes']} bytes.")
    if not made["checkpoints"]:
        call.out.line("No agent of this Session has said anything yet.")


async def discard(call: Invocation, session: SessionId, agent: Agent = None) -> None:
    """Throw checkpoints away; the conversation stays in the ledger."""
    from cli.connection import Need, reach

    async with reach(call, Need.WRITE) as reached:
        done = await reached.client.post(f"{API}/sessions/{session}/checkpoints/discard", {"agent": agent})
    if call.json:
        call.out.document(done)
    else:
        call.out.line(f"Discarded {counted(done['discarded'], 'checkpoint')}.")


async def recover(
    call: Invocation,
    session: SessionId,
    name: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="NAME", help="Folder below checkpoints in the data root; default: SESSION:AGENT."
        ),
    ] = None,
) -> None:
    """Give a Session without turns those of a checkpoint of before 1.0."""
    from cli.connection import Need, reach

    async with reach(call, Need.WRITE) as reached:
        done = await reached.client.post(f"{API}/sessions/{session}/checkpoints/recover", {"name": name})
    if call.json:
        call.out.document(done)
        return
    for note in done["notes"]:
        call.out.note(note)
    what = f"{counted(done['turns'], 'turn')} ({done['interrupted']} interrupted)"
    what += f" of {done['name']}, version {done['version']}"
    call.out.line(f"Recovered {what}." if done["created"] else f"Recovered before: {what}. Nothing was changed.")


async def _found(call: Invocation, session: str, agent: str | None) -> Json:
    from cli.connection import Need, reach

    async with reach(call, Need.READ) as reached:
        return await reached.client.get(f"{API}/sessions/{session}/checkpoints", agent=agent)
