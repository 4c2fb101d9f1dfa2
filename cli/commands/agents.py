"""`milepost agents ...` and `milepost consolidations ...`."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import quote

import typer

from cli.commands import agent_settings
from cli.invocation import Invocation, command
from cli.output import counted, short
from cli.routes import API, Json

AgentId = Annotated[str, typer.Argument(metavar="AGENT", help="Id of an agent.")]
ConsolidationId = Annotated[str, typer.Argument(metavar="ID", help="Id of a consolidation.")]
Why = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; kept in the ledger.")]
State = Literal["running", "pending", "applied", "empty", "rejected", "reverted", "failed"]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    agents = typer.Typer(help="List agents, edit them, stop them, start them again.", no_args_is_help=True)
    app.add_typer(agents, name="agents")
    command(agents, "list")(list_)
    command(agents, "stop")(stop)
    command(agents, "start")(start)
    agent_settings.register(agents)
    group = typer.Typer(help="Facts that were promoted into core blocks: review, revert.", no_args_is_help=True)
    app.add_typer(group, name="consolidations")
    command(group, "list")(list_consolidations)
    command(group, "show")(show)
    command(group, "apply")(apply)
    command(group, "reject")(reject)
    command(group, "revert")(revert)


async def list_(call: Invocation) -> None:
    """List the agents of the configuration with their state."""
    from cli.connection import Need, reach

    async with reach(call, Need.READ) as reached:
        found = await reached.client.get(f"{API}/agents")
    if call.json:
        call.out.document(found)
        return
    rows = [
        [item["agent"], item["state"], item["provider"], item["model"], item["reason"] or item["stopped_by"] or ""]
        for item in found["agents"]
    ]
    call.out.table(["AGENT", "STATE", "PROVIDER", "MODEL", "STOPPED"], rows)


async def stop(call: Invocation, agent: AgentId, reason: Why = None) -> None:
    """Stop an agent: it begins nothing any more, and its running turns are asked to stop."""
    await _life(call, agent, "stop", {"reason": reason})


async def start(call: Invocation, agent: AgentId) -> None:
    """Start a stopped agent again."""
    await _life(call, agent, "start", None)


async def _life(call: Invocation, agent: str, action: str, body: Json | None) -> None:
    from cli.connection import Need, reach

    async with reach(call, Need.WRITE) as reached:
        found = await reached.client.post(f"{API}/agents/{quote(agent, safe='')}/{action}", body)
    if call.json:
        call.out.document(found)
        return
    turns = f"; asked {counted(len(found['turns']), 'turn')} to stop" if action == "stop" and found["turns"] else ""
    call.out.line(f"Agent {agent} is {found['state']}{turns}.")


async def list_consolidations(
    call: Invocation,
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="Only of this Session.")] = None,
    state: Annotated[State | None, typer.Option("--state", help="Only these.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="At most so many.")] = 50,
) -> None:
    """List consolidations, newest first."""
    from cli.connection import Need, reach

    async with reach(call, Need.READ) as reached:
        found = await reached.client.pages(
            f"{API}/consolidations", "consolidations", limit, session_id=session, state=state
        )
    if call.json:
        call.out.document({"consolidations": found})
        return
    rows = [
        [
            item["consolidation_id"],
            item["state"],
            item["agent"],
            item["session_id"],
            str(len(item["promotions"])),
            short(item["error"] or "", 200),
        ]
        for item in found
    ]
    call.out.table(["CONSOLIDATION", "STATE", "AGENT", "SESSION", "PROMOTIONS", "REASON"], rows)


async def show(call: Invocation, consolidation: ConsolidationId) -> None:
    """Show what a consolidation promotes, and what became of it."""
    from cli.connection import Need, reach

    async with reach(call, Need.READ) as reached:
        found = await reached.client.get(f"{API}/consolidations/{quote(consolidation, safe='')}")
    _print(call, found)


async def apply(call: Invocation, consolidation: ConsolidationId) -> None:
    """Put the texts of a proposed consolidation into their blocks."""
    await _decide(call, consolidation, "apply", None)


async def reject(call: Invocation, consolidation: ConsolidationId, reason: Why = None) -> None:
    """Drop a proposed consolidation."""
    await _decide(call, consolidation, "reject", {"reason": reason})


async def revert(call: Invocation, consolidation: ConsolidationId) -> None:
    """Take the texts of an applied consolidation out of their blocks again."""
    await _decide(call, consolidation, "revert", None)


async def _decide(call: Invocation, consolidation: str, action: str, body: Json | None) -> None:
    from cli.connection import Need, reach

    async with reach(call, Need.WRITE) as reached:
        found = await reached.client.post(f"{API}/consolidations/{quote(consolidation, safe='')}/{action}", body)
    _print(call, found)


def _print(call: Invocation, found: Json) -> None:
    if call.json:
        call.out.document(found)
        return
    usage = found["usage"] or {"total_tokens": 0, "complete": True}
    facts = [
        ("consolidation", found["consolidation_id"]),
        ("state", found["state"]),
        ("agent", f"{found['agent']} in {found['session_id']}"),
        ("records", str(found["records"])),
        ("tokens", f"{'' if usage['complete'] else 'at least '}{usage['total_tokens']}"),
        ("error", found["error"]),
        ("decided by", found["actor"]),
    ]
    call.out.table(["", ""], [[name, value] for name, value in facts if value])
    for item in found["promotions"]:
        call.out.line(f"[{item['block']}] {item['text']}")
        if item["problem"]:
            call.out.note(f"  {item['problem']}")
