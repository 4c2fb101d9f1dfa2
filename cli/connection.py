"""Finding the instance of a data root, or standing in for it.

While an instance runs, every command is its client. Without one, commands on the ledger use the same API inside this
process, and commands that need work done start the whole stack for as long as they take.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum

import httpx

from cli.agreement import require_agreement
from cli.client import ApiClient
from cli.inprocess import StreamingTransport
from cli.invocation import Invocation
from milepost.bootstrap.data_root import DataRoot, InstanceInfo
from milepost.domain.errors import InstanceLocked
from milepost.security.token import load_or_create_token

WAIT_FOR_START_SECONDS = 30.0
"""How long a command waits for another process that holds the data root and may be about to serve it."""

POLL_SECONDS = 0.1


class Need(StrEnum):
    """What a command wants of the instance: read the ledger, write to it, or have turns executed."""

    READ = "read"
    WRITE = "write"
    EXECUTE = "execute"


@dataclass(frozen=True, slots=True)
class Reached:
    """An instance one can talk to. `info` is None for this process's own short stand-in."""

    client: ApiClient
    info: InstanceInfo | None
    embedded: bool


@asynccontextmanager
async def reach(
    call: Invocation, need: Need, *, before_start: Callable[[], None] | None = None
) -> AsyncIterator[Reached]:
    """Connect to the running instance, else stand in for it as far as `need` asks.

    `before_start` runs before a stack is started here, to refuse at once what cannot succeed.

    Raises:
        InstanceLocked: another process holds the data root and does not serve it.
        ConfigInvalid: --config names another configuration than the running instance's.
        Any failure of starting the stack.
    """
    root = call.root
    async with contextlib.AsyncExitStack() as stack:
        found = await running(root)
        if found is None and need is not Need.READ:
            found = await _await_or_own(root, stack, call, need)
        if found is not None:
            stack.push_async_callback(found.client.close)
            if need is not Need.READ and found.info is not None:
                require_agreement(call, found.info)
            yield found
        elif need is Need.EXECUTE:
            if before_start is not None:
                before_start()
            yield await stack.enter_async_context(_embedded(call))
        else:
            yield await stack.enter_async_context(_in_process(call))


async def running_info(root: DataRoot) -> InstanceInfo | None:
    """What the running instance tells about itself; None when none runs."""
    reached = await running(root)
    if reached is None:
        return None
    await reached.client.close()
    return reached.info


async def running(root: DataRoot) -> Reached | None:
    """A client of the instance that serves the data root, None when none does; whoever gets it closes it."""
    info = root.read_info()
    if info is None or not root.token.exists():
        return None
    try:
        async with asyncio.timeout(5):
            _, writer = await asyncio.open_unix_connection(info.socket)
    except (OSError, TimeoutError):
        return None
    writer.close()
    client = ApiClient(httpx.AsyncHTTPTransport(uds=info.socket), load_or_create_token(root.token))
    return Reached(client, info, embedded=False)


async def _await_or_own(
    root: DataRoot, stack: contextlib.AsyncExitStack, call: Invocation, need: Need
) -> Reached | None:
    """The instance that holds the data root, once it serves; None when nobody holds it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WAIT_FOR_START_SECONDS
    told = False
    while True:
        try:
            root.prepare()
            stack.enter_context(root.lock("run" if need is Need.EXECUTE else "command"))
        except InstanceLocked:
            found = await running(root)
            if found is not None:
                return found
            if loop.time() > deadline:
                raise
            if not told:
                call.out.note("Waiting for another Milepost process that is starting or stopping ...")
                told = True
            await asyncio.sleep(POLL_SECONDS)
        else:
            return None


@asynccontextmanager
async def _embedded(call: Invocation) -> AsyncIterator[Reached]:
    from cli.stack import running_stack

    call.log("WARNING")
    async with running_stack(call.config, call.root, role="run", tcp=False, say=call.out.note) as stack:
        client = ApiClient(httpx.AsyncHTTPTransport(uds=stack.served.info.socket), stack.served.token)
        try:
            yield Reached(client, stack.served.info, embedded=True)
        finally:
            await client.close()


@asynccontextmanager
async def _in_process(call: Invocation) -> AsyncIterator[Reached]:
    from cli.standin import stand_in

    call.log("WARNING")
    async with stand_in(call.config, call.root) as (app, token):
        client = ApiClient(StreamingTransport(app), token)
        try:
            yield Reached(client, None, embedded=False)
        finally:
            await client.close()
