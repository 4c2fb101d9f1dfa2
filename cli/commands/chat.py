"""`milepost chat`."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands.attachments import Attach
from cli.commands.run import Agent, Model, Provider, Script, SetupChoice, Workspace, summarize
from cli.environments import Setup, decide
from cli.failures import ConnectionLost, Exit
from cli.invocation import Invocation, command
from cli.output import short
from cli.routes import API
from milepost.domain.errors import MilepostError

if TYPE_CHECKING:
    from cli.connection import Reached
    from cli.follow import Position
    from cli.live import LiveView
    from cli.turning import Order

LEAVE = ("/exit", "/quit")
COMMANDS = (
    "Commands: /attach FILE (goes with the next line), /help, /exit (or /quit). "
    "A line that begins with a space is sent as it is."
)
_COMMAND = re.compile(r"/[A-Za-z_-]*(\s|$)")

MAX_INSTANCES = 20
"""How many instances may go away under one conversation."""


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(app, "chat")(chat)


async def chat(
    call: Invocation,
    session: Annotated[
        str | None, typer.Argument(metavar="SESSION", help="Session to go on with; without one a new one is opened.")
    ] = None,
    workspace: Workspace = Path(),
    agent: Agent = None,
    provider: Provider = None,
    model: Model = None,
    script: Script = None,
    setup: SetupChoice = Setup.ASK,
    attach: Attach = None,
) -> Exit:
    """Talk to an agent: each line is a turn. Ctrl-C stops the turn at hand; at the prompt it leaves."""
    from cli.connection import Need, reach
    from cli.turning import Order, check_order, read_script

    files = attach or []
    first = Order("-", session, workspace, None, agent, provider, model, read_script(script), attach=files)
    first.settle = partial(decide, call, setup)
    conversation = _Conversation(call, first)
    for remaining in reversed(range(MAX_INSTANCES)):
        try:
            async with reach(call, Need.EXECUTE, before_start=lambda: check_order(call, first)) as reached:
                with _terminal_restored():
                    await conversation.go_on(reached)
                return Exit.OK
        except ConnectionLost:
            if not remaining:
                raise
            call.out.note("The running instance went away; going on with another one ...", style="yellow")
    raise AssertionError("unreachable")


class _Conversation:
    """What outlives the instance it is held on: the Session, the place in its stream, a turn that is not finished."""

    def __init__(self, call: Invocation, first: Order) -> None:
        from cli.follow import Position
        from cli.live import LiveView

        self._call = call
        self._template = first
        self._pending: Order | None = None
        self._position: Position = Position()
        self._view: LiveView = LiveView(sys.stderr if call.json else sys.stdout)

    async def go_on(self, reached: Reached) -> None:
        """Turn after turn until the end of input. Raises ConnectionLost; nothing that was sent is lost by it."""
        self._call.out.note(f"{await self._where(reached)} /help lists commands, Ctrl-C stops a turn.")
        while (order := self._pending or await self._next()) is not None:
            self._pending = order
            await self._turn(reached, order)
            self._pending = None

    async def _where(self, reached: Reached) -> str:
        """The Session; a new one is opened with the first turn, so that leaving before leaves none behind."""
        from cli.turning import workspace_of
        from milepost.services.sessions import workspace_folder

        if self._template.session_id is None:
            return f"New Session on {workspace_folder(workspace_of(self._template), self._call.root.path)}."
        session = await reached.client.get(f"{API}/sessions/{self._template.session_id}")
        return f"Session {session['session_id']} on {session['workspace']['path']}."

    async def _next(self) -> Order | None:
        from milepost.bootstrap.system import UuidIds

        while (text := await ask(self._call, "> ")) is not None:
            word = text.strip()
            if word in LEAVE:
                return None
            if text.startswith("/attach "):
                self._attach(text.removeprefix("/attach ").strip())
            elif _COMMAND.match(text):
                known = word == "/help"
                self._call.out.note(COMMANDS if known else f"There is no command {short(text.split()[0])}. {COMMANDS}")
            elif word:
                return dataclasses.replace(self._template, text=text, turn_id=UuidIds().new("trn"))
        return None

    def _attach(self, name: str) -> None:
        """Keep a file for the next turn."""
        from cli.attaching import check_files

        path = Path(name)
        try:
            check_files(self._call, [path])
        except MilepostError as error:
            self._call.out.error(error)
            return
        self._template.attach.append(path)
        self._call.out.note(f"{short(path.name)} goes with the next line.")

    async def _turn(self, reached: Reached, order: Order) -> None:
        from cli.turning import one_turn

        try:
            turn = await one_turn(reached, order, view=self._view, position=self._position)
        except ConnectionLost:
            raise
        except MilepostError as error:
            self._call.out.error(error)
            return
        finally:
            self._template.session_id = order.session_id
        if self._call.json:
            self._call.out.record(turn)
        else:
            summarize(self._call, turn)


async def ask(call: Invocation, prompt: str) -> str | None:
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


@contextlib.contextmanager
def _terminal_restored() -> Iterator[None]:
    """Whoever leaves at the prompt leaves while the line editor holds the terminal in its own mode."""
    if not sys.stdin.isatty():
        yield
        return
    import termios

    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
