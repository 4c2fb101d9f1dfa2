"""`milepost env ...`."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.environments import path_of
from cli.invocation import Invocation, command
from cli.output import printable, short
from cli.routes import API, Json
from milepost.domain.errors import InvalidInput

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="Id of a Session.")]
Image = Annotated[str | None, typer.Option("--image", metavar="NAME", help="Another image; '' is the default one.")]
Command = Annotated[
    str | None, typer.Option("--command", metavar="TEXT", help="Another setup command; '' is none at all.")
]
Ports = Annotated[
    list[int] | None, typer.Option("--port", metavar="N", help="Port to publish on loopback; may be repeated.")
]
Actor = Annotated[str | None, typer.Option("--actor", metavar="NAME", help="Who decides; kept in the ledger.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return at once; needs a running instance.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="What a Session's sandbox is made of.", no_args_is_help=True)
    app.add_typer(group, name="env")
    command(group, "show")(show)
    command(group, "log")(log)
    command(group, "prepare")(prepare)
    command(group, "review")(review)
    command(group, "change")(change)
    command(group, "rebuild")(rebuild)
    command(group, "stop")(stop)


async def show(call: Invocation, session: SessionId) -> None:
    """Show the environment: its state, what it is made of, who agreed, and what to do next."""
    from cli.connection import Need, reach
    from cli.environments import describe

    async with reach(call, Need.READ) as reached:
        found = await reached.client.get(path_of(session))
    if call.json:
        call.out.document(found)
        return
    describe(call, found)
    hint = _next(found)
    if hint:
        call.out.note(hint)


def _next(found: Json) -> str | None:
    session = found["session_id"]
    return {
        "unprepared": f"Prepare it: milepost env prepare {session}" if found["asks"] else "It needs no preparation.",
        "awaiting_approval": f"Decide: milepost env review {session} --approve   (or --skip)",
        "failed": f"See its output: milepost env log {session} --output {found['generation']}",
    }.get(found["state"])


async def log(
    call: Invocation,
    session: SessionId,
    output: Annotated[
        int | None, typer.Option("--output", metavar="GENERATION", help="Print what its setup command put out.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="At most so many.")] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print what the newest one's setup command puts out, until it has ended.")
    ] = False,
) -> None:
    """List the generations, newest first, or print the output of one."""
    from cli.connection import Need, reach
    from cli.environments import describe, followed

    if follow and (output is not None or call.json):
        raise InvalidInput(
            "--follow prints text as it comes.", field="follow", fix="Use it without --output and --json."
        )

    async with reach(call, Need.READ) as reached:
        path = f"{API}/sessions/{session}/environments"
        if follow:
            newest = await reached.client.get(path_of(session))
            if newest["state"] in ("unprepared", "awaiting_approval"):
                call.out.note("Nothing has been put out.")
            else:
                await followed(
                    reached.client, session, newest["generation"], lambda text: call.out.write(printable(text))
                )
            return
        if output is not None:
            text = await reached.client.text(f"{path}/{output}/output")
            if call.json:
                call.out.document({"session_id": session, "generation": output, "output": text})
            else:
                typer.echo(text, nl=not text.endswith("\n"))
            return
        found = await reached.client.pages(path, "environments", limit)
    if call.json:
        call.out.document({"environments": found})
        return
    for each in found:
        describe(call, each)
        if each["result"] is not None and each["result"]["output"]:
            call.out.note(f"  {short(each['result']['output'][-300:], 300)}")


async def prepare(call: Invocation, session: SessionId, actor: Actor = None, no_wait: NoWait = False) -> None:
    """Look at the folder and prepare the environment, or show what a person has to agree to."""
    await _act(call, session, "prepare", {"actor": actor}, no_wait=no_wait)


async def review(
    call: Invocation,
    session: SessionId,
    approve: Annotated[bool, typer.Option("--approve", help="Run the setup command, publish the ports.")] = False,
    skip: Annotated[bool, typer.Option("--skip", help="Use nothing of the proposal.")] = False,
    image: Image = None,
    setup: Command = None,
    port: Ports = None,
    generation: Annotated[int | None, typer.Option("--generation", metavar="N", help="Only if this one waits.")] = None,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; kept in the ledger.")] = None,
    actor: Actor = None,
    no_wait: NoWait = False,
) -> None:
    """Decide about the setup that waits, and prepare the environment."""
    if approve == skip:
        raise InvalidInput("Say what you decide.", field="approve", fix="Use --approve or --skip.")
    body: Json = {
        "approve": approve,
        "image": image,
        "command": setup,
        "ports": port or None,
        "generation": generation,
        "reason": reason,
        "actor": actor,
    }
    await _act(call, session, "review", body, no_wait=no_wait)


async def change(
    call: Invocation,
    session: SessionId,
    image: Image = None,
    setup: Command = None,
    port: Ports = None,
    detect: Annotated[bool, typer.Option("--detect", help="Read the folder's files again.")] = False,
    actor: Actor = None,
    no_wait: NoWait = False,
) -> None:
    """Begin a new generation with another image, command or ports. The container and its volumes go."""
    if image is None and setup is None and not port and not detect:
        raise InvalidInput("Say what changes.", fix="Use --image, --command, --port or --detect.")
    body: Json = {"image": image, "command": setup, "ports": port or None, "detect": detect, "actor": actor}
    await _act(call, session, "change", body, no_wait=no_wait)


async def rebuild(call: Invocation, session: SessionId, actor: Actor = None, no_wait: NoWait = False) -> None:
    """Prepare the same environment again from nothing, by the same consent."""
    await _act(call, session, "rebuild", {"actor": actor}, no_wait=no_wait)


async def stop(call: Invocation, session: SessionId, actor: Actor = None) -> None:
    """Stop preparing; the setup command is killed."""
    from cli.connection import Need, reach

    async with reach(call, Need.WRITE) as reached:
        found = await reached.client.post(f"{path_of(session)}/stop", {"actor": actor})
    _report(call, found)


async def _act(call: Invocation, session: str, action: str, body: Json, *, no_wait: bool) -> None:
    from cli.connection import Need, reach
    from cli.environments import require_ready, waited

    async with reach(call, Need.WRITE if no_wait else Need.EXECUTE) as reached:
        found = await reached.client.post(f"{path_of(session)}/{action}", body)
        if not no_wait:
            found = await waited(reached.client, session, found, None if call.json else call.out.aside)
    _report(call, found)
    if not no_wait:
        require_ready(found)


def _report(call: Invocation, found: Json) -> None:
    from cli.environments import describe

    if call.json:
        call.out.document(found)
        return
    describe(call, found)
    hint = _next(found)
    if hint and found["state"] != "unprepared":
        call.out.note(hint)
