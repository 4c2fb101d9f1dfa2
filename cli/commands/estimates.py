"""`milepost turn estimate`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli.commands.run import Agent, Request
from cli.invocation import Invocation, command
from cli.money import cost_words
from cli.routes import API


def register(group: typer.Typer) -> None:
    """Add the command to the group of turns."""
    command(group, "estimate")(estimate)


async def estimate(
    call: Invocation,
    session: Annotated[str, typer.Argument(metavar="SESSION", help="Id of the Session.")],
    request: Request,
    agent: Agent = None,
) -> None:
    """Say what a turn with this request may use, without sending it."""
    from cli.connection import Need, reach
    from cli.requests import request_text

    body = {"text": await request_text(call, request), "agent": agent}
    async with reach(call, Need.READ) as reached:
        found = await reached.client.post(f"{API}/sessions/{session}/estimate", body)
    if call.json:
        call.out.document(found)
        return
    rows = [_row(each["agent"], f"{each['provider']}/{each['model']}", each["usage"]) for each in found["first"]]
    rows.append(_row("at least", "the calls that are sure", found["least"]))
    if found["earlier"] is not None:
        rows.append(_row("so far", f"mean of {found['turns']} turns", found["earlier"]))
    call.out.table(["", "", "input", "output", "cost"], rows)
    limits = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in found["limits"].items() if value)
    call.out.line(f"Limits of the turn: {limits or 'none'}.")


def _row(name: str, what: str, usage: dict[str, Any]) -> list[str]:
    tokens = usage["input_tokens"] + usage["cached_input_tokens"]
    output = usage["output_tokens"] + usage["reasoning_tokens"]
    return [name, what, f"{tokens:,}", f"{output:,}", cost_words(usage["cost"])]
