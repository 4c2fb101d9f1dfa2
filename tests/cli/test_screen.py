"""`milepost terminal attach` as a person uses it: on a pseudo-terminal, against a served instance."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import struct
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cli.failures import RemoteFailure, code_of
from cli.screen import Address, Screen, Shown, attach
from milepost.ports.sandbox import ProcessEnd, TerminalSize
from tests.api.stack import TOKEN, Stack, running_stack


@asynccontextmanager
async def attached(
    stack: Stack, socket: Path, address: Address, shown: Shown
) -> AsyncIterator[tuple[int, asyncio.Task[None]]]:
    """A window of 33 x 77 on the terminal: its other end, and the command at work."""
    mine, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    os.set_blocking(mine, False)
    before = termios.tcgetattr(theirs)
    task = asyncio.create_task(attach(Screen(theirs, theirs), address, shown))
    try:
        yield mine, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert termios.tcgetattr(theirs) == before, "the window is as it was"
        os.close(mine)
        os.close(theirs)


async def seen(window: int, text: bytes) -> bytes:
    data = b""
    async with asyncio.timeout(20):
        while text not in data:
            try:
                data += os.read(window, 65536)
            except BlockingIOError:
                await asyncio.sleep(0.01)
    return data


async def opened(stack: Stack, socket: Path) -> Address:
    session = await stack.open_session()
    response = await stack.post(f"/api/v1/sessions/{session}/terminals", {})
    return Address(str(socket), TOKEN, session, str(response.json()["terminal_id"]))


async def test_keys_output_and_size_pass_through_and_ctrl_bracket_detaches(sqlite_url: str, tmp_path: Path) -> None:
    socket, shown = tmp_path / "api.sock", Shown()
    async with running_stack(sqlite_url, tmp_path, uds=socket, allowed_hosts=["milepost"]) as stack:
        address = await opened(stack, socket)
        process = stack.sandboxes.by_session[address.session].spawned[address.terminal]
        process.say(b"\x1b[1m$ ")
        async with attached(stack, socket, address, shown) as (window, task):
            await seen(window, b"\x1b[1m$ ")
            os.write(window, b"ls\x03\r")
            assert await seen(window, b"ls\x03\r") == b"ls\x03\r"
            assert process.info.terminal == TerminalSize(33, 77)
            fcntl.ioctl(window, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 88, 0, 0))
            os.kill(os.getpid(), signal.SIGWINCH)
            async with asyncio.timeout(20):
                while process.info.terminal != TerminalSize(44, 88):
                    await asyncio.sleep(0.01)
            os.write(window, b"x\x1dy")
            await asyncio.wait_for(task, 20)
        assert (shown.detached, shown.ended, process.info.running) == (True, None, True)
        async with asyncio.timeout(20):
            while not process.data.endswith(b"x"):
                assert b"y" not in process.data, "what follows the key is not typed"
                await asyncio.sleep(0.01)
        again = Shown(process.info.bytes_out)
        async with attached(stack, socket, address, again) as (window, task):
            process.say(b"more")
            assert await seen(window, b"more") == b"more"
            process.finish(ProcessEnd.EXIT, 3)
            await asyncio.wait_for(task, 20)
        assert again.ended is not None and again.ended["exit_code"] == 3


async def test_a_lost_connection_is_made_again_and_a_refusal_is_not(sqlite_url: str, tmp_path: Path) -> None:
    socket, shown = tmp_path / "api.sock", Shown()
    async with running_stack(sqlite_url, tmp_path, uds=socket, allowed_hosts=["milepost"]) as stack:
        address = await opened(stack, socket)
        process = stack.sandboxes.by_session[address.session].spawned[address.terminal]
        async with attached(stack, socket, address, shown) as (window, task):
            process.say(b"before ")
            await seen(window, b"before ")
            stack.app.state.live_readers.drain()
            await asyncio.sleep(0.1)
            process.say(b"meanwhile ")
            stack.app.state.live_readers.draining = False
            stack.app.state.live_readers.stopped.clear()
            assert await seen(window, b"meanwhile ") == b"meanwhile "
            process.finish(ProcessEnd.ENDED)
            await asyncio.wait_for(task, 20)
        missing = Address(address.socket, TOKEN, address.session, "prc_" + "0" * 32)
        async with attached(stack, socket, missing, Shown()) as (_, task):
            with pytest.raises(RemoteFailure) as refused:
                await asyncio.wait_for(task, 20)
        assert code_of(refused.value) == "process_not_found"
