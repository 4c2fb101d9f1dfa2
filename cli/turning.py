"""Having a turn done: begin it, show it, stop it on Ctrl-C, and take over when the instance goes away."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cli.attaching import check_files, send_files
from cli.client import ApiClient
from cli.connection import Need, Reached, reach
from cli.failures import ConnectionLost, Exit, RemoteFailure
from cli.follow import Position, follow
from cli.invocation import Invocation
from cli.live import LiveView
from cli.questions import NeedsPerson, Questions
from cli.routes import API, Json
from milepost.bootstrap.system import UuidIds
from milepost.domain.errors import AgentUnknown, EnvironmentNotReady, InvalidInput
from milepost.domain.suggestions import nearest

MAX_INSTANCES = 4
"""How many instances may go away under one turn before the command gives up."""

MAX_SCRIPT_BYTES = 4 * 1024 * 1024

EXIT_BY_STATE = {"completed": Exit.OK, "failed": Exit.FAILED, "interrupted": Exit.FAILED, "stopped": Exit.STOPPED}


Settle = Callable[[ApiClient, str], Awaitable[None]]
"""(client, Session) -> when its environment is settled. Raises EnvironmentNotReady."""


@dataclass(slots=True)
class Order:
    """What a person asks for: a new request, or the one of the turn `retry_of` again.

    Without `session_id` a new request opens a Session on `workspace`, with `agents` if there are several; `settle` gets
    its environment Ready first. `attach` are files that are not sent yet.
    """

    text: str
    session_id: str | None = None
    workspace: Path | None = None
    title: str | None = None
    agent: str | None = None
    provider: str | None = None
    model: str | None = None
    script: str | None = None
    budget: Json | None = None
    overrides: Json = field(default_factory=dict)
    settle: Settle | None = None
    attach: list[Path] = field(default_factory=list)
    retry_of: str | None = None
    agents: tuple[str, ...] = ()
    turn_id: str = field(default_factory=lambda: UuidIds().new("trn"))


def read_script(path: Path | None) -> str | None:
    """The text of a script file. Raises InvalidInput."""
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SCRIPT_BYTES + 1)
        text = raw.decode("utf-8")
    except OSError as error:
        raise InvalidInput(f"The script {path} cannot be read: {error.strerror}.", field="script") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"The script {path} is not UTF-8.", field="script") from error
    if len(raw) > MAX_SCRIPT_BYTES:
        raise InvalidInput(f"The script {path} is over {MAX_SCRIPT_BYTES} bytes.", field="script")
    return text


def check_order(call: Invocation, order: Order) -> None:
    """What can be known to fail before anything is started or written.

    Raises:
        InvalidInput, AgentUnknown, ProviderUnknown, SecretMissing.
    """
    from milepost.providers.gateway import Gateway
    from milepost.services.sessions import workspace_folder

    if order.retry_of is not None:
        return
    check_files(call, order.attach)
    if order.session_id is None:
        workspace_folder(workspace_of(order), call.root.path)
    config = call.config
    gateway = Gateway(config.providers, config.secrets)
    for agent_id in order.agents or (order.agent or config.default_agent,):
        agent = config.agents.get(agent_id)
        if agent is None:
            fix = f"{nearest(agent_id, config.agents)}Known agents: {', '.join(sorted(config.agents))}."
            raise AgentUnknown(f"There is no agent '{agent_id}'.", field="agent", fix=fix)
        gateway.validate(order.provider or agent.provider, order.model or (agent.model if not order.provider else ""))


async def carry_out(call: Invocation, order: Order, *, view: LiveView, patient: bool = True) -> Json:
    """Do the whole turn and return its History entry with the whole output.

    Unless `patient`, it ends as soon as the turn does nothing but wait for a person: the entry then has `approvals`,
    the open questions. An instance of its own goes on with the turn; a stack that was started here stops it.

    Ctrl-C stops the turn and waits for its end; a second one leaves at once. When the instance goes away under the
    turn, another one is used or started, and the turn goes on.

    Raises:
        Any refusal of the instance, ConnectionLost, failures of starting the stack.
    """
    if order.retry_of is None and not order.text.strip():
        raise InvalidInput("The request has no text.", field="text", fix="Say what the agent shall do.")
    position = Position()
    for remaining in reversed(range(MAX_INSTANCES)):
        try:
            async with reach(call, Need.EXECUTE, before_start=lambda: check_order(call, order)) as reached:
                return await one_turn(reached, order, view=view, position=position, patient=patient)
        except ConnectionLost:
            if not remaining:
                raise
            call.out.note("The running instance went away; going on with another one ...", style="yellow")
    raise AssertionError("unreachable")


async def one_turn(reached: Reached, order: Order, *, view: LiveView, position: Position, patient: bool = True) -> Json:
    """The turn on one instance. Sending it again after a lost connection does not double it."""
    client = reached.client
    fresh = order.session_id is None and order.retry_of is None
    if fresh:
        order.session_id = await open_session(client, order)
    try:
        if fresh and order.settle is not None:
            await order.settle(client, str(order.session_id))
        await send_files(client, str(order.session_id), order.attach, once=True)
        turn = await begin(client, order)
    except (RemoteFailure, EnvironmentNotReady):
        if fresh:
            # A Session nobody asked for by itself is of no use without its turn.
            with contextlib.suppress(RemoteFailure, ConnectionLost):
                await client.post(f"{API}/sessions/{order.session_id}/close")
            order.session_id = None
        raise
    try:
        await watch(client, turn["session_id"], turn["turn_id"], view=view, position=position, patient=patient)
    except NeedsPerson as waiting:
        return await _leave_waiting(reached, turn, waiting, view=view, position=position)
    return await entry(client, turn["turn_id"])


async def _leave_waiting(
    reached: Reached, turn: Json, waiting: NeedsPerson, *, view: LiveView, position: Position
) -> Json:
    """The turn as it waits, or as it was stopped because nobody would go on with it."""
    client = reached.client
    if reached.embedded:
        ids = ", ".join(asked["approval_id"] for asked in waiting.asked)
        with contextlib.suppress(RemoteFailure):
            await client.post(f"{API}/turns/{turn['turn_id']}/stop", {"reason": f"Needs a person: {ids}"})
        await watch(client, turn["session_id"], turn["turn_id"], view=view, position=position)
    return await entry(client, turn["turn_id"]) | {"approvals": waiting.asked}


async def open_session(client: ApiClient, order: Order) -> str:
    """Open a Session on the order's folder and return its id."""
    body = {"workspace": workspace_of(order), "title": order.title, "agents": _agents(order) or None}
    return str((await client.post(f"{API}/sessions", body))["session_id"])


def _agents(order: Order) -> list[str]:
    return list(order.agents or ((order.agent,) if order.agent else ()))


def workspace_of(order: Order) -> str:
    """The absolute path of the folder that a new Session is opened on."""
    return str((order.workspace or Path()).expanduser().absolute())


async def begin(client: ApiClient, order: Order) -> Json:
    """Send the turn."""
    if order.retry_of is not None:
        return await client.post(f"{API}/turns/{order.retry_of}/retry", {"turn_id": order.turn_id})
    body = {
        "text": order.text,
        "agent": order.agent,
        "provider": order.provider,
        "model": order.model,
        "script": order.script,
        "budget": order.budget,
        **order.overrides,
        "turn_id": order.turn_id,
    }
    return await client.post(f"{API}/sessions/{order.session_id}/turns", body)


async def watch(
    client: ApiClient, session_id: str, turn_id: str, *, view: LiveView, position: Position, patient: bool = True
) -> None:
    """Show the turn until it has ended; the first Ctrl-C stops it.

    Raises:
        NeedsPerson: unless `patient`, once the turn does nothing but wait for a person.
    """
    questions = Questions()

    def on_frame(frame: Json) -> None:
        view.frame(frame)
        questions.frame(frame)
        if not patient and questions.only_waits:
            raise NeedsPerson(questions.open)

    async with _stopping(client, turn_id):
        try:
            await follow(client, session_id, turn_id, on_frame, position)
        finally:
            view.close()


async def entry(client: ApiClient, turn_id: str) -> Json:
    """The turn's History entry, request and output whole."""
    return await whole(client, await client.get(f"{API}/turns/{turn_id}/history"))


async def whole(client: ApiClient, turn: Json) -> Json:
    """A History entry with texts that were cut for the list."""
    for name in ("output", "request"):
        if turn.get(f"{name}_truncated"):
            turn = turn | {name: await client.text(f"{API}/turns/{turn['turn_id']}/{name}"), f"{name}_truncated": False}
    return turn


@asynccontextmanager
async def _stopping(client: ApiClient, turn_id: str) -> AsyncIterator[None]:
    """SIGINT and SIGTERM ask the turn to stop once; the next one cancels this command."""
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    tasks: set[asyncio.Task[None]] = set()

    def on_signal() -> None:
        if tasks and main is not None:
            main.cancel()
            return
        tasks.add(loop.create_task(_stop(client, turn_id)))

    with _handling(loop, on_signal):
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def _handling(loop: asyncio.AbstractEventLoop, on_signal: Any) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            loop.add_signal_handler(number, on_signal)
    except (ValueError, RuntimeError):
        # Not in the main thread: signals are somebody else's.
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


async def _stop(client: ApiClient, turn_id: str) -> None:
    try:
        await client.post(f"{API}/turns/{turn_id}/stop", {"reason": "Ctrl-C"})
    except (RemoteFailure, ConnectionLost):
        # It has just ended, or the instance is gone: the reader of the turn finds out which.
        return
