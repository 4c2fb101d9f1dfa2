"""A Session's environment for people: shown, waited for, and decided about before a turn."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from cli.invocation import Invocation
from cli.output import short
from cli.routes import API, Json
from milepost.domain.errors import EnvironmentNotReady

if TYPE_CHECKING:
    from cli.client import ApiClient

POLL_SECONDS = 0.5
PREPARING = "preparing"
SHOWN_LINES = 15


class Setup(StrEnum):
    """What `run` and `chat` do about a setup that a folder proposes."""

    ASK = "ask"
    RUN = "run"
    SKIP = "skip"


def path_of(session_id: str) -> str:
    """Where the API has the environment."""
    return f"{API}/sessions/{session_id}/environment"


async def waited(client: ApiClient, session_id: str, found: Json, show: Callable[[str], None] | None = None) -> Json:
    """The environment once nothing is being prepared any more. `show` is given the setup command's output meanwhile."""
    if show is not None and found["state"] == PREPARING:
        await followed(client, session_id, found["generation"], show)
        found = await client.get(path_of(session_id))
    while found["state"] == PREPARING:
        await asyncio.sleep(POLL_SECONDS)
        found = await client.get(path_of(session_id))
    return found


async def followed(client: ApiClient, session_id: str, generation: int, show: Callable[[str], None]) -> None:
    """Give what a generation's setup command has put out and puts out to `show`, until it has ended."""
    after = -1
    while True:
        found = await client.get(f"{API}/sessions/{session_id}/environments/{generation}/progress", after=after)
        for piece in found["pieces"]:
            if piece["left_out"]:
                show(f"\n[... {piece['left_out']} bytes left out ...]\n")
            show(piece["text"])
            after = piece["number"]
        if found["state"] != PREPARING and not found["more"]:
            return
        if not found["more"]:
            await asyncio.sleep(POLL_SECONDS)


def require_ready(found: Json) -> None:
    """Raises EnvironmentNotReady unless what was asked for has become Ready."""
    if found["state"] == "ready":
        return
    result = found["result"] or {}
    why = f": {result['error']}" if result.get("error") else "."
    session = found["session_id"]
    raise EnvironmentNotReady(
        f"The environment of Session {session} is {found['state'].replace('_', ' ')}{why}",
        fix=result.get("fix") or f"See: milepost env show {session}",
    )


def describe(call: Invocation, found: Json) -> None:
    """The generation as lines."""
    from rich.markup import escape

    plan, consent, result = found["plan"], found["consent"], found["result"]
    style = {"ready": "green", "failed": "red"}.get(found["state"], "yellow")
    state = found["state"].replace("_", " ")
    call.out.line(f"[bold]Generation {found['generation']}[/] [{style}]{state}[/] · {found['changed_at']}")
    call.out.line(f"  image    {escape(plan['image'] or 'the default one')}")
    for line in proposal(found):
        call.out.line(f"  {escape(line)}")
    if consent is not None:
        word = "agreed" if consent["approved"] else "refused"
        why = f": {short(consent['reason'], 200)}" if consent["reason"] else ""
        call.out.line(f"  {word} by {escape(consent['actor'])} at {consent['at']}{escape(why)}")
    if result is not None and result["exit_code"] is not None:
        call.out.line(f"  exit code {result['exit_code']} after {result['seconds']:.1f} s")
    if result is not None and result["error"]:
        call.out.line(f"  [red]{escape(result['error_code'])}: {escape(short(result['error'], 500))}[/]")
        if result["fix"]:
            call.out.line(f"  [yellow]→ {escape(result['fix'])}[/]")


def proposal(found: Json) -> list[str]:
    """What the plan has beside an image, in words."""
    plan = found["plan"]
    lines = []
    if plan["command"]:
        source = ", ".join(plan["files"]) if plan["source"] != "edited" else "edited"
        lines.append(f"setup    {plan['command']}   ({source})")
    if plan["ports"]:
        lines.append(f"ports    {', '.join(map(str, plan['ports']))} on this machine's loopback")
    if plan["variables"]:
        lines.append(f"sets     {', '.join(sorted(plan['variables']))}")
    if plan["node"]:
        lines.append("volume   over node_modules")
    return lines + [f"note     {note}" for note in plan["notes"]]


async def decide(call: Invocation, setup: Setup, client: ApiClient, session_id: str) -> None:
    """Before the first turn of a new Session: decide about what its folder proposes, and wait until it is prepared.

    A folder that proposes nothing needs no decision and no waiting. Without a terminal nobody can be asked, so nothing
    runs that the operator's configuration does not let run, and that is told.

    Raises EnvironmentNotReady (what was agreed to failed).
    """
    found = await client.get(path_of(session_id))
    if not found["asks"] and not found["plan"]["command"] and not found["plan"]["ports"]:
        return
    found = await client.post(f"{path_of(session_id)}/prepare", {})
    if found["state"] == "awaiting_approval":
        approve = await _answer(call, found, setup)
        body = {"approve": approve, "generation": found["generation"]}
        found = await client.post(f"{path_of(session_id)}/review", body)
    if found["state"] == PREPARING and found["plan"]["command"]:
        call.out.note(f"Setting up: {short(found['plan']['command'], 200)}")
    require_ready(await waited(client, session_id, found))


async def _answer(call: Invocation, found: Json, setup: Setup) -> bool:
    if setup is not Setup.ASK:
        return setup is Setup.RUN
    lines = "\n".join(f"  {line}" for line in proposal(found))
    image = found["plan"]["image"]
    call.out.note(f"This folder proposes an environment{f' on {image}' if image else ''}:\n{lines}")
    if not sys.stdin.isatty():
        call.out.note("It is not used, since nobody can be asked here. To use it: --setup run", style="yellow")
        return False
    from cli.commands.chat import ask

    answer = await ask(call, "Run it in the sandbox? [y/N] ")
    return (answer or "").strip().lower() in ("y", "yes")
