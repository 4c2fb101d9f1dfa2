"""`milepost turn ...`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cli.budgets import TurnBudget, budget_body
from cli.commands import changes, estimates
from cli.commands.attachments import Attach
from cli.commands.run import Agent, Model, Provider, Request, Script, Wait, exit_of_turn, show_turn
from cli.failures import Exit
from cli.invocation import Invocation, command
from cli.overrides import Override, Stateless, override_body
from cli.routes import API
from milepost.domain.errors import TemporalUnavailable

TurnId = Annotated[str, typer.Argument(metavar="TURN", help="Id of a turn.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Send, watch and stop turns of a Session.", no_args_is_help=True)
    app.add_typer(group, name="turn")
    command(group, "send")(send)
    command(group, "watch")(watch)
    command(group, "stop")(stop)
    command(group, "retry")(retry)
    command(group, "show")(show)
    changes.register(group)
    estimates.register(group)


async def send(
    call: Invocation,
    session: Annotated[str, typer.Argument(metavar="SESSION", help="Id of the Session.")],
    request: Request,
    agent: Agent = None,
    provider: Provider = None,
    model: Model = None,
    script: Script = None,
    budget: TurnBudget = None,
    override: Override = None,
    stateless: Stateless = False,
    attach: Attach = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once the turn is accepted; a running instance does it.")
    ] = False,
    wait: Wait = False,
) -> Exit:
    """Send a turn to a Session and follow it to its end."""
    from cli.attaching import check_files, send_files
    from cli.connection import Need, reach
    from cli.live import LiveView
    from cli.requests import request_text
    from cli.turning import Order, begin, carry_out, read_script

    text = await request_text(call, request)
    script_text, limits, files = read_script(script), budget_body(budget), attach or []
    order = Order(text, session, None, None, agent, provider, model, script_text, limits, attach=files)
    order.overrides = override_body(override, stateless=stateless)
    if detach:
        check_files(call, files)
        async with reach(call, Need.WRITE) as reached:
            await send_files(reached.client, session, files, once=True)
            turn = await begin(reached.client, order)
            if reached.info is None:
                call.out.note("No instance is running: the turn waits until one is (milepost dev).", style="yellow")
        if call.json:
            call.out.document(turn)
        else:
            call.out.line(f"Turn {turn['turn_id']} is accepted. Follow it with: milepost turn watch {turn['turn_id']}")
        return Exit.OK
    view = LiveView(sys.stderr if call.json else sys.stdout)
    done = await carry_out(call, order, view=view, patient=wait or sys.stdin.isatty())
    show_turn(call, done)
    return exit_of_turn(done)


async def watch(
    call: Invocation,
    turn: TurnId,
    after: Annotated[
        str, typer.Option("--after", metavar="CURSOR", help="Cursor to go on after; 0 is the beginning.")
    ] = "0",
) -> Exit:
    """Follow a turn live to its end, from its first event on. With --json every frame is a line. Ctrl-C only leaves."""
    from cli.connection import Need, reach
    from cli.follow import Position, follow
    from cli.live import LiveView
    from cli.turning import EXIT_BY_STATE, entry

    async with reach(call, Need.READ) as reached:
        found = await reached.client.get(f"{API}/turns/{turn}")
        if reached.info is None and found["state"] == "running":
            raise TemporalUnavailable(
                "No instance is running, so nothing works on this turn now.", fix="Start one: milepost dev"
            )
        if reached.info is not None:
            view = LiveView()

            def on_frame(frame: dict[str, object]) -> None:
                if call.json:
                    call.out.record(frame)
                else:
                    view.frame(frame)

            try:
                await follow(reached.client, found["session_id"], turn, on_frame, Position(after))
            finally:
                view.close()
        done = await entry(reached.client, turn)
    if not call.json:
        show_turn(call, done)
    elif reached.info is None:
        call.out.record({"type": "turn", "data": done})
    return EXIT_BY_STATE[done["state"]]


async def stop(
    call: Invocation,
    turn: TurnId,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; kept in the ledger.")] = None,
) -> None:
    """Ask a running turn to stop. What it wrote so far is kept."""
    from cli.connection import Need, reach

    async with reach(call, Need.WRITE) as reached:
        found = await reached.client.post(f"{API}/turns/{turn}/stop", {"reason": reason})
    if call.json:
        call.out.document(found)
    else:
        call.out.line(f"Turn {turn}: {'stop was asked for' if found['state'] == 'running' else found['state']}.")


async def retry(
    call: Invocation,
    turn: TurnId,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be sent.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once the turn is accepted; a running instance does it.")
    ] = False,
    wait: Wait = False,
) -> Exit:
    """Send a turn's request again, as a new turn of its Session, and follow it to its end."""
    from rich.markup import escape

    from cli.connection import Need, reach
    from cli.live import LiveView
    from cli.output import short
    from cli.turning import Order, carry_out

    if dry_run or detach:
        async with reach(call, Need.WRITE) as reached:
            found = await reached.client.post(f"{API}/turns/{turn}/retry", {"dry_run": dry_run})
            if detach and not dry_run and reached.info is None:
                call.out.note("No instance is running: the turn waits until one is (milepost dev).", style="yellow")
        if call.json:
            call.out.document(found)
        elif dry_run:
            call.out.line(
                f"A new turn of Session {found['session_id']} would ask: {escape(short(found['request'], 300))}"
            )
        else:
            call.out.line(
                f"Turn {found['turn_id']} is accepted. Follow it with: milepost turn watch {found['turn_id']}"
            )
        return Exit.OK
    view = LiveView(sys.stderr if call.json else sys.stdout)
    done = await carry_out(call, Order("", retry_of=turn), view=view, patient=wait or sys.stdin.isatty())
    show_turn(call, done)
    return exit_of_turn(done)


async def show(call: Invocation, turn: TurnId) -> None:
    """Show one turn with its output, agents and tool calls."""
    from cli.commands.ledger import print_entry
    from cli.connection import Need, reach
    from cli.turning import entry

    async with reach(call, Need.READ) as reached:
        found = await entry(reached.client, turn)
    if call.json:
        call.out.document(found)
    else:
        print_entry(call, found)
