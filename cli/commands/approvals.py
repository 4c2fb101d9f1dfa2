"""`milepost approvals ...` and `milepost policies ...`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from cli.invocation import Invocation, command
from cli.output import short
from cli.routes import API


class State(StrEnum):
    """States of an approval."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CLOSED = "closed"


class Remember(StrEnum):
    """What an answer is remembered for."""

    ONCE = "once"
    AGENT_TOOL = "agent_tool"
    ANY_AGENT_TOOL = "any_agent_tool"


class Verdict(StrEnum):
    """What a policy rule says."""

    ALLOW = "allow"
    DENY = "deny"


ApprovalId = Annotated[str, typer.Argument(metavar="APPROVAL", help="Id of an approval.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; kept in the ledger.")]
Actor = Annotated[str | None, typer.Option("--actor", metavar="NAME", help="Who decides; kept in the ledger.")]
Remembered = Annotated[
    Remember,
    typer.Option("--remember", help="Decide calls of the same tool alike from now on: of this agent, or of any."),
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="At most so many.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Answer calls that wait for a person.", no_args_is_help=True)
    app.add_typer(group, name="approvals")
    command(group, "list")(list_approvals)
    command(group, "approve")(approve)
    command(group, "reject")(reject)
    rules = typer.Typer(help="Decisions about calls to come.", no_args_is_help=True)
    app.add_typer(rules, name="policies")
    command(rules, "list")(list_rules)
    command(rules, "add")(add_rule)
    command(rules, "revoke")(revoke_rule)


async def list_approvals(
    call: Invocation,
    session: Annotated[
        str | None, typer.Option("--session", metavar="SESSION", help="Only those of this Session.")
    ] = None,
    state: Annotated[State | None, typer.Option("--state", help="Only those in this state.")] = None,
    limit: Limit = 100,
) -> None:
    """List approvals, pending ones first."""
    from cli.connection import Need, reach

    wanted = None if state is None else state.value
    async with reach(call, Need.READ) as reached:
        found = await reached.client.pages(f"{API}/approvals", "approvals", limit + 1, session_id=session, state=wanted)
    if call.json:
        call.out.document({"approvals": found[:limit], "truncated": len(found) > limit})
        return
    rows = [
        [item["approval_id"], item["state"], item["agent"], item["tool"], short(item["arguments"], 60), item["turn_id"]]
        for item in found[:limit]
    ]
    call.out.table(["APPROVAL", "STATE", "AGENT", "TOOL", "ARGUMENTS", "TURN"], rows)
    if len(found) > limit:
        call.out.note(f"There are more: --limit {limit * 2}")


async def approve(
    call: Invocation,
    approval: ApprovalId,
    reason: Reason = None,
    actor: Actor = None,
    remember: Remembered = Remember.ONCE,
) -> None:
    """Let exactly this call run, once."""
    await _answer(call, approval, "approve", reason, actor, remember)


async def reject(
    call: Invocation,
    approval: ApprovalId,
    reason: Reason = None,
    actor: Actor = None,
    remember: Remembered = Remember.ONCE,
) -> None:
    """Refuse this call; the agent is told so, with the reason, and goes on."""
    await _answer(call, approval, "reject", reason, actor, remember)


async def _answer(
    call: Invocation, approval: str, verb: str, reason: str | None, actor: str | None, remember: Remember
) -> None:
    from cli.connection import Need, reach

    body = {"reason": reason, "actor": actor, "remember": remember.value}
    async with reach(call, Need.WRITE) as reached:
        found = await reached.client.post(f"{API}/approvals/{approval}/{verb}", body)
        if reached.info is None:
            call.out.note("No instance is running: the turn goes on when one is (milepost dev).", style="yellow")
    if call.json:
        call.out.document(found)
        return
    call.out.line(f"{found['tool']} is {found['state']}. Turn {found['turn_id']}")
    rule = found["rule_id"]
    if rule:
        call.out.line(f"Remembered as rule {rule}. Take it back: milepost policies revoke {rule}")


async def list_rules(
    call: Invocation,
    every: Annotated[bool, typer.Option("--all", help="Also revoked and used ones.")] = False,
    limit: Limit = 100,
) -> None:
    """List policy rules, newest first."""
    from cli.connection import Need, reach

    async with reach(call, Need.READ) as reached:
        found = await reached.client.pages(f"{API}/policy-rules", "rules", limit + 1, all=every or None)
    if call.json:
        call.out.document({"rules": found[:limit], "truncated": len(found) > limit})
        return
    rows = [
        [
            item["rule_id"],
            item["verdict"] + (" once" if item["once"] else ""),
            item["agent"] or "any",
            item["tool"] or "any",
            "active" if item["active"] else "revoked" if item["revoked_at"] else "used",
            item["created_by"],
            short(item["reason"] or "", 60),
        ]
        for item in found[:limit]
    ]
    call.out.table(["RULE", "SAYS", "AGENT", "TOOL", "STATE", "MADE BY", "REASON"], rows)
    if len(found) > limit:
        call.out.note(f"There are more: --limit {limit * 2}")


async def add_rule(
    call: Invocation,
    verdict: Annotated[Verdict, typer.Argument(metavar="VERDICT", help="allow or deny.")],
    agent: Annotated[str | None, typer.Option("--agent", metavar="ID", help="Only calls of this agent.")] = None,
    tool: Annotated[str | None, typer.Option("--tool", metavar="NAME", help="Only calls of this tool.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Decides the next such call and is used up.")] = False,
    reason: Reason = None,
    actor: Actor = None,
) -> None:
    """Decide calls to come. The most specific rule counts (agent 2, tool 1); deny wins a tie."""
    from cli.connection import Need, reach

    body = {
        "verdict": verdict.value,
        "agent": agent,
        "tool": tool,
        "once": once,
        "reason": reason,
        "actor": actor,
    }
    async with reach(call, Need.WRITE) as reached:
        found = await reached.client.post(f"{API}/policy-rules", body)
    if call.json:
        call.out.document(found)
    else:
        call.out.line(f"Rule {found['rule_id']} is in force.")


async def revoke_rule(
    call: Invocation,
    rule: Annotated[str, typer.Argument(metavar="RULE", help="Id of a policy rule.")],
    actor: Actor = None,
) -> None:
    """Take a policy rule back: from now on it decides no call."""
    from cli.connection import Need, reach

    async with reach(call, Need.WRITE) as reached:
        found = await reached.client.post(f"{API}/policy-rules/{rule}/revoke", {"actor": actor})
    if call.json:
        call.out.document(found)
    else:
        call.out.line(f"Rule {rule} is revoked.")
