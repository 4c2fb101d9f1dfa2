"""`milepost run` and `milepost chat`."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from cli.failures import Exit
from cli.invocation import Invocation, command
from cli.routes import API, Json
from milepost.domain.errors import MilepostError

Workspace = Annotated[Path, typer.Option("--workspace", "-w", help="Folder the agent works on.")]
Agent = Annotated[str | None, typer.Option("--agent", help="Agent to use instead of the default one.")]
Provider = Annotated[str | None, typer.Option("--provider", help="Provider to use instead of the agent's.")]
Model = Annotated[str | None, typer.Option("--model", help="Model to use instead of the agent's.")]
Script = Annotated[Path | None, typer.Option("--script", help="Script file (YAML) for the 'scripted' provider.")]

Wait = Annotated[
    bool, typer.Option("--wait", help="Without a terminal: go on waiting when the turn waits for a person.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(app, "run")(run)
    command(app, "chat")(chat)


async def run(
    call: Invocation,
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="What the agent shall do.")],
    workspace: Workspace = Path(),
    agent: Agent = None,
    provider: Provider = None,
    model: Model = None,
    script: Script = None,
    wait: Wait = False,
) -> Exit:
    """Do one turn on a folder and exit with its outcome; starts what is needed for the time of the turn."""
    from cli.live import LiveView
    from cli.turning import Order, carry_out, read_script

    order = Order(
        text=request,
        workspace=workspace,
        agent=agent,
        provider=provider,
        model=model,
        script=read_script(script),
    )
    view = LiveView(sys.stderr if call.json else sys.stdout)
    turn = await carry_out(call, order, view=view, patient=wait or sys.stdin.isatty())
    show_turn(call, turn)
    return exit_of_turn(turn)


def exit_of_turn(turn: Json) -> Exit:
    """The exit code of a turn as `carry_out` returned it."""
    from cli.turning import EXIT_BY_STATE

    return Exit.NEEDS_PERSON if turn.get("approvals") else EXIT_BY_STATE[turn["state"]]


async def chat(
    call: Invocation,
    session: Annotated[
        str | None, typer.Argument(help="Session to go on with; without one a new one is opened.")
    ] = None,
    workspace: Workspace = Path(),
    agent: Agent = None,
    provider: Provider = None,
    model: Model = None,
    script: Script = None,
) -> Exit:
    """Talk to an agent: each line is a turn. Ctrl-C stops the turn at hand; at the prompt it leaves."""
    from cli.connection import Need, reach
    from cli.follow import Position
    from cli.live import LiveView
    from cli.turning import Order, check_order, one_turn, open_session, read_script

    def order(text: str) -> Order:
        return Order(text, session, workspace, None, agent, provider, model, read_script(script))

    view = LiveView(sys.stderr if call.json else sys.stdout)
    async with reach(call, Need.EXECUTE, before_start=lambda: check_order(call, order("-"))) as reached:
        if session is None:
            session = await open_session(reached.client, order("-"))
        opened = await reached.client.get(f"{API}/sessions/{session}")
        call.out.note(f"Session {session} on {opened['workspace']['path']}. /exit leaves, Ctrl-C stops a turn.")
        position = Position("0")
        while (text := await _ask(call, "> ")) is not None:
            if text.strip() in ("/exit", "/quit"):
                break
            if not text.strip():
                continue
            try:
                turn = await one_turn(reached, order(text), view=view, position=position)
            except MilepostError as error:
                call.out.error(error)
                continue
            if call.json:
                call.out.record(turn)
            else:
                _summary(call, turn)
    return Exit.OK


async def _ask(call: Invocation, prompt: str) -> str | None:
    """A line from standard input, None at its end. Read in a thread that does not hold up the end of the process."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str | None] = loop.create_future()
    interactive = sys.stdin.isatty() and not call.json

    def deliver(text: str | None) -> None:
        if not answer.done():
            answer.set_result(text)

    def read() -> None:
        try:
            if interactive:
                import readline  # noqa: F401 - editing and history of the line

                text: str | None = input(prompt)
            else:
                line = sys.stdin.readline()
                text = line.rstrip("\r\n") if line else None
        except (EOFError, OSError, ValueError):
            text = None
        loop.call_soon_threadsafe(deliver, text)

    threading.Thread(target=read, daemon=True, name="prompt").start()
    return await answer


def show_turn(call: Invocation, turn: Json) -> None:
    """The end of a turn: the document, or the History entry with its links."""
    if call.json:
        call.out.document(turn)
        return
    _summary(call, turn)


def _summary(call: Invocation, turn: Json) -> None:
    from rich.markup import escape

    from cli.output import short

    style = {"completed": "green", "stopped": "yellow"}.get(turn["state"], "red")
    usage = turn["usage"]
    tokens = f"{usage['total_tokens']} tokens" + ("" if usage["complete"] else " known")
    rounds = sum(agent["rounds"] for agent in turn["agents"])
    call.out.line()
    call.out.line(
        f"[{style}]● Turn {turn['number']} {turn['state']}[/] · {rounds} model calls · {len(turn['tools'])} tool calls "
        f"· {tokens}"
    )
    if turn["error"]:
        call.out.line(f"[red]{escape(turn['error']['code'])}: {escape(short(turn['error']['message'], 500))}[/]")
    for asked in turn.get("approvals", ()):
        call.out.line(f"  Needs approval: {escape(asked['tool'])} {escape(short(asked['arguments'], 100))}")
        if turn["state"] == "running":
            call.out.line(f"    milepost approvals approve {asked['approval_id']}   (or reject)")
    call.out.line(f"  History:  milepost history {turn['session_id']}   (turn {turn['turn_id']})")
    call.out.line(f"  Temporal: {escape(turn['temporal_url'])}")
