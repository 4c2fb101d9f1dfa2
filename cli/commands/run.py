"""`milepost run`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cli.budgets import TurnBudget, budget_body
from cli.commands.attachments import Attach
from cli.environments import Setup, decide
from cli.failures import Exit
from cli.invocation import Invocation, command
from cli.overrides import Override, Stateless, override_body
from cli.routes import Json

Request = Annotated[
    str, typer.Argument(metavar="REQUEST", help="What the agent shall do; - reads it from standard input.")
]
Workspace = Annotated[Path, typer.Option("--workspace", "-w", metavar="DIR", help="Folder the agent works on.")]
Agent = Annotated[str | None, typer.Option("--agent", metavar="ID", help="Agent to use instead of the default one.")]
Agents = Annotated[
    list[str] | None,
    typer.Option("--agent", metavar="ID", help="Agent to use instead of the default one; again for several."),
]
Provider = Annotated[
    str | None, typer.Option("--provider", metavar="NAME", help="Provider to use instead of the agent's.")
]
Model = Annotated[str | None, typer.Option("--model", metavar="NAME", help="Model to use instead of the agent's.")]
Script = Annotated[
    Path | None, typer.Option("--script", metavar="FILE", help="Script file (YAML) for the 'scripted' provider.")
]

Wait = Annotated[
    bool, typer.Option("--wait", help="Without a terminal: go on waiting when the turn waits for a person.")
]

SetupChoice = Annotated[
    Setup,
    typer.Option("--setup", help="What the folder proposes to set up: ask on a terminal (else skip), run it, or skip."),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(app, "run")(run)


async def run(
    call: Invocation,
    request: Request,
    workspace: Workspace = Path(),
    agents: Agents = None,
    provider: Provider = None,
    model: Model = None,
    script: Script = None,
    budget: TurnBudget = None,
    override: Override = None,
    stateless: Stateless = False,
    attach: Attach = None,
    wait: Wait = False,
    setup: SetupChoice = Setup.ASK,
) -> Exit:
    """Do one turn on a folder and exit with its outcome; starts what is needed for the time of the turn."""
    from cli.live import LiveView
    from cli.requests import request_text
    from cli.turning import Order, carry_out, read_script

    order = Order(
        text=await request_text(call, request),
        workspace=workspace,
        agent=agents[0] if agents and len(agents) == 1 else None,
        agents=tuple(agents or ()),
        provider=provider,
        model=model,
        script=read_script(script),
        budget=budget_body(budget),
        overrides=override_body(override, stateless=stateless),
        attach=attach or [],
        settle=partial(decide, call, setup),
    )
    view = LiveView(sys.stderr if call.json else sys.stdout)
    turn = await carry_out(call, order, view=view, patient=wait or sys.stdin.isatty())
    show_turn(call, turn)
    return exit_of_turn(turn)


def exit_of_turn(turn: Json) -> Exit:
    """The exit code of a turn as `carry_out` returned it."""
    from cli.turning import EXIT_BY_STATE

    return Exit.NEEDS_PERSON if turn.get("approvals") else EXIT_BY_STATE[turn["state"]]


def show_turn(call: Invocation, turn: Json) -> None:
    """The end of a turn: the document, or the History entry with its links."""
    if call.json:
        call.out.document(turn)
    else:
        summarize(call, turn)


def summarize(call: Invocation, turn: Json) -> None:
    """How a turn ended, for people, with the links to its History entry and its workflow."""
    from rich.markup import escape

    from cli.money import usage_words
    from cli.output import counted, short

    style = {"completed": "green", "stopped": "yellow"}.get(turn["state"], "red")
    tokens = usage_words(turn["usage"])
    models = counted(sum(agent["calls"] for agent in turn["agents"]), "model call")
    tools = counted(len(turn["tools"]), "tool call")
    call.out.line()
    call.out.line(f"[{style}]● Turn {turn['number']} {turn['state']}[/] · {models} · {tools} · {tokens}")
    if turn["error"]:
        call.out.line(f"[red]{escape(turn['error']['code'])}: {escape(short(turn['error']['message'], 500))}[/]")
    for asked in turn.get("approvals", ()):
        call.out.line(f"  Needs approval: {escape(asked['tool'])} {escape(short(asked['arguments'], 100))}")
        if turn["state"] == "running":
            call.out.line(f"    milepost approvals approve {asked['approval_id']}   (or reject)")
    call.out.line(f"  History:  milepost history {turn['session_id']}   (turn {turn['turn_id']})")
    if turn["temporal_url"]:
        call.out.line(f"  Temporal: {escape(turn['temporal_url'])}")
