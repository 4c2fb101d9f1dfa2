"""`milepost history` and `milepost effects ...`: what the ledger holds of turns and their calls."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from cli.commands.sessions import SessionId
from cli.invocation import Invocation, command
from cli.marks import mark_of
from cli.money import cost_words
from cli.output import counted, printable, short
from cli.routes import API, Json


class Resolution(StrEnum):
    """How a lost call turned out."""

    APPLIED = "applied"
    NOT_APPLIED = "not_applied"
    COMPENSATED = "compensated"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(app, "history")(history)
    command(app, "usage")(usage)
    group = typer.Typer(
        help="Look at the calls that left the process; say how lost ones turned out.", no_args_is_help=True
    )
    app.add_typer(group, name="effects")
    command(group, "list")(effects)
    command(group, "reconcile")(reconcile)


async def history(
    call: Invocation,
    session: SessionId,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="At most so many turns.")] = 100,
    superseded: Annotated[bool, typer.Option("--superseded", help="Also turns that a rewind has superseded.")] = False,
) -> None:
    """Print a Session's turns, newest first, with outputs, tool calls and usage."""
    from cli.connection import Need, reach
    from cli.turning import whole

    path = f"{API}/sessions/{session}/history"
    rewinds: list[Json] = []
    environments: list[Json] = []
    async with reach(call, Need.READ) as reached:
        found = await reached.client.pages(
            path,
            "turns",
            limit + 1,
            also={"rewinds": rewinds, "environments": environments},
            superseded=superseded or None,
        )
        turns = [await whole(reached.client, turn) for turn in found[:limit]] if call.json else found[:limit]
    more = len(found) > limit
    if more:
        oldest = found[limit]["number"]
        rewinds = [rewind for rewind in rewinds if rewind["last_number"] >= oldest]
        environments = [each for each in environments if each["after_number"] >= oldest]
    if call.json:
        document = {"session_id": session, "turns": turns, "rewinds": rewinds, "environments": environments}
        call.out.document(document | {"truncated": more})
        return
    for turn in turns:
        while environments and environments[0]["after_number"] >= turn["number"]:
            _print_environment(call, environments.pop(0))
        while rewinds and rewinds[0]["last_number"] >= turn["number"]:
            _print_rewind(call, rewinds.pop(0))
        print_entry(call, turn)
    for rewind in rewinds:
        _print_rewind(call, rewind)
    for environment in environments:
        _print_environment(call, environment)
    if more:
        call.out.note(f"There are earlier turns: --limit {limit * 2}")


def _print_rewind(call: Invocation, rewind: Json) -> None:
    from rich.markup import escape

    to = f"turn {rewind['to_number']}" if rewind["to_number"] else "before the first turn"
    why = f": {escape(short(rewind['reason'], 200))}" if rewind["reason"] else ""
    count = counted(rewind["superseded"], "turn")
    verb = "counts" if rewind["superseded"] == 1 else "count"
    call.out.line(f"[yellow]── Rewound to {to}; {count} up to {rewind['last_number']} no longer {verb}{why} ──[/]")
    call.out.line()


def _print_environment(call: Invocation, found: Json) -> None:
    """Nothing for an environment that nobody had to decide about and that works."""
    from rich.markup import escape

    if found["state"] == "ready" and found["generation"] == 1 and not found["plan"]["command"]:
        return
    command = f": {escape(short(found['plan']['command'], 100))}" if found["plan"]["command"] else ""
    state = found["state"].replace("_", " ")
    call.out.line(f"[dim]── Environment {found['generation']} {state}{command} ──[/]")
    call.out.line()


async def usage(call: Invocation, session: SessionId) -> None:
    """Show what a Session has used: tokens, cost, calls, and its limits."""
    from cli.connection import Need, reach

    async with reach(call, Need.READ) as reached:
        found = await reached.client.get(f"{API}/sessions/{session}/usage")
    if call.json:
        call.out.document(found)
        return
    tokens, limits = found["usage"], found["limits"]
    least = "" if tokens["complete"] else "at least "
    rows = [
        ["tokens", f"{least}{tokens['total_tokens']}", _of(limits["tokens"])],
        ["  input", str(tokens["input_tokens"]), ""],
        ["  cached input", str(tokens["cached_input_tokens"]), ""],
        ["  output", str(tokens["output_tokens"]), ""],
        ["  reasoning", str(tokens["reasoning_tokens"]), ""],
        ["cost", cost_words(tokens["cost"]), _of(limits["cost"])],
        ["model calls", str(found["model_calls"]), _of(limits["model_calls"])],
        ["tool calls", str(found["tool_calls"]), _of(limits["tool_calls"])],
    ]
    if found["reserved_tokens"]:
        rows.append(["reserved", f"{found['reserved_tokens']} tokens", ""])
    if found["assumed_tokens"]:
        rows.append(["assumed of lost calls", f"{found['assumed_tokens']} tokens", ""])
    call.out.table(["", "", ""], rows)


def _of(limit: object) -> str:
    return "" if limit is None else f"of at most {limit}"


def print_entry(call: Invocation, turn: Json) -> None:
    """One turn for people."""
    from rich.markup import escape

    style = {"completed": "green", "running": "cyan", "stopped": "yellow"}.get(turn["state"], "red")
    status = turn["status"] if turn["state"] == "running" else turn["state"]
    old = " · [yellow]superseded[/]" if turn["superseded"] else ""
    call.out.line(
        f"[bold]Turn {turn['number']}[/] [{style}]{status}[/]{old} · {turn['created_at']} · {turn['turn_id']}"
    )
    call.out.line(f"[dim]Asked:[/] {escape(short(turn['request'], 300))}")
    for file in turn["attachments"]:
        note = f" ({short(file['note'], 100)})" if file["note"] else ""
        call.out.line(
            f"  [dim]Attached:[/] {escape(short(file['name'], 100))} · {file['size']:,} bytes{escape(note)}"
            f" [dim]{file['attachment_id']}[/]"
        )
    for agent in turn["agents"]:
        _print_reminder(call, agent["memory"])
    for tool in turn["tools"]:
        mark = mark_of(tool["state"], is_error=tool["is_error"], ended=turn["state"] != "running")
        word = f" [{mark.style}]({mark.word})[/]" if mark.word else ""
        arguments = escape(short(tool["arguments"], 100))
        call.out.line(f"  [{mark.style}]{mark.sign}[/] {escape(tool['tool'])} {arguments}{word}")
    for plan in turn["plans"]:
        _print_plan(call, plan)
    for agent in turn["agents"] if len(turn["agents"]) > 1 else ():
        if agent["output"] and ":" not in agent["agent"] and agent["output"] != turn["output"]:
            call.out.line(f"  [cyan]{escape(agent['agent'])}[/]: {escape(short(agent['output'], 200))}")
    if turn["output"]:
        call.out.line(escape(printable(turn["output"])))
    if turn["error"]:
        call.out.line(f"[red]{escape(turn['error']['code'])}: {escape(short(turn['error']['message'], 500))}[/]")
    copied = f"copied from {turn['copied_from']}" if turn["copied_from"] else ""
    # A copy, an imported turn and one that ended before it began have no workflow.
    where = copied or turn["temporal_url"]
    call.out.line(f"[dim]{_tokens(turn['usage'])}{f' · {escape(where)}' if where else ''}[/]")
    call.out.line()


def _print_reminder(call: Invocation, memory: Json | None) -> None:
    """What an agent was reminded of, one line each."""
    from rich.markup import escape

    if memory is None:
        return
    for item in memory["items"]:
        where = f"turn {item['turn_number']}, " if item["turn_number"] else ""
        reason = f"{where}{item['at'][:10]}, score {item['score'] / 1_000_000:.2f}"
        call.out.line(f"[dim]Recalled ({reason}):[/] {escape(short(item['text'], 200))}")
    if memory["changed"]:
        call.out.line(f"[dim]Told of changed core memory:[/] {', '.join(memory['changed'])}")


def _print_plan(call: Invocation, plan: Json) -> None:
    from rich.markup import escape

    call.out.line(f"  [bold]Plan of {escape(plan['agent'])}[/]")
    for subtask in plan["subtasks"]:
        style = {"succeeded": "green", "running": "cyan", "waiting": "dim"}.get(subtask["state"], "yellow")
        after = f" after {', '.join(map(str, subtask['depends_on']))}" if subtask["depends_on"] else ""
        who = f" · {escape(subtask['performer'])}" if subtask["performer"] else ""
        why = f": {escape(short(subtask['error'], 200))}" if subtask["error"] else ""
        name = f"{subtask['number']}. {escape(subtask['name'])}"
        call.out.line(f"    [{style}]{name} {subtask['state']}[/]{after}{who}{why}")
    for note in plan["notes"]:
        call.out.line(f"    [yellow]{escape(note)}[/]")


def _tokens(usage: Json) -> str:
    if not usage["complete"] and not usage["total_tokens"]:
        return f"tokens unknown · {cost_words(usage['cost'])}"
    known = "" if usage["complete"] else " (known subtotal)"
    return (
        f"{usage['input_tokens']} input, {usage['cached_input_tokens']} cached, {usage['output_tokens']} output, "
        f"{usage['reasoning_tokens']} reasoning tokens{known} · {cost_words(usage['cost'])}"
    )


async def effects(
    call: Invocation,
    session: SessionId,
    turn: Annotated[str | None, typer.Option("--turn", metavar="TURN", help="Only effects of this turn.")] = None,
    state: Annotated[
        str | None, typer.Option("--state", metavar="STATE", help="Only effects in this state, e.g. uncertain.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="At most so many.")] = 100,
) -> None:
    """List a Session's effects, oldest first: model and tool calls with state and attempts."""
    from cli.connection import Need, reach

    path = f"{API}/sessions/{session}/effects"
    async with reach(call, Need.READ) as reached:
        found = await reached.client.pages(path, "effects", limit + 1, turn_id=turn, state=state)
    if call.json:
        call.out.document({"session_id": session, "effects": found[:limit], "truncated": len(found) > limit})
        return
    names = ("effect_id", "operation", "position", "state", "attempt", "turn_id")
    rows = [[str(item[name]) for name in names] for item in found[:limit]]
    call.out.table(["EFFECT", "OPERATION", "POSITION", "STATE", "ATTEMPTS", "TURN"], rows)
    if len(found) > limit:
        call.out.note("There are more: raise --limit, or narrow the list with --turn or --state.")


async def reconcile(
    call: Invocation,
    effect: Annotated[str, typer.Argument(metavar="EFFECT", help="Id of an uncertain effect.")],
    resolution: Annotated[Resolution, typer.Option("--resolution", help="How it turned out.", show_default=False)],
    result: Annotated[
        str | None, typer.Option("--result", metavar="TEXT", help="What it returned, if it was applied.")
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; kept in the ledger.")] = None,
    evidence: Annotated[str | None, typer.Option("--evidence", metavar="TEXT", help="How this is known.")] = None,
    actor: Annotated[str | None, typer.Option("--actor", metavar="NAME", help="Who found out.")] = None,
) -> None:
    """Say how a call turned out whose outcome is unknown; also after its turn has ended, and once."""
    from cli.connection import Need, reach

    body = {
        "resolution": resolution.value,
        "result": result,
        "reason": reason,
        "evidence": evidence,
        "actor": actor,
    }
    async with reach(call, Need.WRITE) as reached:
        found = await reached.client.post(f"{API}/effects/{effect}/reconcile", body)
    if call.json:
        call.out.document(found)
    else:
        call.out.line(f"Effect {effect} is {found['state']} ({resolution.value}).")
