"""Background processes and terminals: output, input, ends, trees, other workers."""

from __future__ import annotations

import asyncio

import pytest

from milepost.domain.errors import InvalidInput, PayloadTooLarge, ProcessBusy, ProcessLimit, ProcessNotFound
from milepost.ports.sandbox import (
    BACKGROUND_BYTES,
    MAX_PROCESSES,
    TERMINAL_BYTES,
    ProcessEnd,
    ProcessOutput,
    Sandbox,
    Spawn,
    TerminalSize,
)
from tests.sandbox.boxes import new_id
from tests.sandbox.conformance.backends import Box, Capability

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs(Capability.SHELL, Capability.PROCESSES)]


async def read_until(sandbox: Sandbox, process_id: str, text: bytes, offset: int = 0) -> tuple[bytes, int]:
    """All output from the offset until the text is in it, and the next offset."""
    data = b""
    async with asyncio.timeout(60):
        while text not in data:
            found = await sandbox.read(process_id, offset, wait=20)
            data, offset = data + found.data, found.next_offset
            assert found.running or found.next_offset < found.bytes_out or text in data, data
    return data, offset


async def finished(sandbox: Sandbox, process_id: str) -> ProcessOutput:
    """The last piece of its output."""
    offset = 0
    async with asyncio.timeout(60):
        while True:
            found = await sandbox.read(process_id, offset, wait=20)
            offset = found.next_offset
            if not found.running and offset == found.bytes_out:
                return found


async def test_a_background_command_outlives_its_call_and_its_output_is_one_stream(box: Box) -> None:
    process_id = new_id()
    (box.workspace / "sub").mkdir()
    command = "echo out; echo err >&2; until [ -e go ]; do sleep 0.02; done; pwd; cat; exit 7"
    info = await box.sandbox.spawn(process_id, Spawn(command, cwd="sub"))
    assert (info.process_id, info.command, info.cwd, info.terminal, info.running) == (
        *(process_id, command, "sub", None),
        True,
    )
    _, offset = await read_until(box.sandbox, process_id, b"out\nerr\n")
    assert (await box.sandbox.read(process_id, offset)).data == b""
    (box.workspace / "sub" / "go").touch()
    last = await finished(box.sandbox, process_id)
    assert (last.running, last.exit_code, last.ended_by) == (False, 7, ProcessEnd.EXIT)
    whole = await box.sandbox.read(process_id)
    assert whole.data == f"out\nerr\n{box.root}/sub\n".encode()
    assert (await box.sandbox.read(process_id, -4)).data == b"sub\n"
    with pytest.raises(InvalidInput, match="no terminal"):
        await box.sandbox.write(process_id, b"x")


async def test_the_same_id_starts_nothing_twice_and_another_worker_finds_it(box: Box) -> None:
    process_id = new_id()
    spec = Spawn("echo once >> count; echo counted; sleep 300")
    first = await box.sandbox.spawn(process_id, spec)
    again = await box.sandbox.spawn(process_id, spec)
    other = await box.another()
    assert again.started_at == first.started_at == (await other.spawn(process_id, spec)).started_at
    assert process_id in {found.process_id for found in await other.processes()}
    await read_until(other, process_id, b"counted")
    await other.end(process_id)
    await other.end(process_id)
    assert (box.workspace / "count").read_text() == "once\n"
    found = await box.sandbox.read(process_id)
    assert (found.running, found.exit_code, found.ended_by) == (False, None, ProcessEnd.ENDED)


@pytest.mark.parametrize("terminal", [None, TerminalSize()], ids=["background", "terminal"])
async def test_its_end_takes_children_in_other_sessions_and_double_forks(
    box: Box, terminal: TerminalSize | None
) -> None:
    marker = f"sleep 3{new_id()[:6].translate(str.maketrans('abcdef', '123456'))}"
    command = f"setsid {marker} & (setsid sh -c '{marker} & {marker} &' &) ; trap '' TERM HUP; echo up; {marker}"
    process_id = new_id()
    await box.sandbox.spawn(process_id, Spawn(command, terminal=terminal))
    await read_until(box.sandbox, process_id, b"up")
    async with asyncio.timeout(30):
        while len(await box.processes(marker)) < 4:
            await asyncio.sleep(0.05)
    await box.sandbox.end(process_id)
    assert await box.processes(marker) == []


async def test_what_it_leaves_behind_ends_with_it(box: Box) -> None:
    process_id, marker = new_id(), "sleep 31415"
    await box.sandbox.spawn(process_id, Spawn(f"setsid {marker} & exit 3"))
    last = await finished(box.sandbox, process_id)
    assert (last.exit_code, last.ended_by) == (3, ProcessEnd.EXIT)
    assert await box.processes(marker) == []


async def test_a_lifetime_is_the_end(box: Box) -> None:
    process_id = new_id()
    await box.sandbox.spawn(process_id, Spawn("echo begun; sleep 300", lifetime=0.3))
    last = await finished(box.sandbox, process_id)
    assert (last.exit_code, last.ended_by) == (None, ProcessEnd.LIFETIME)


@pytest.mark.needs(Capability.TERMINALS)
async def test_a_shell_in_a_terminal_takes_keys_size_and_signals(box: Box) -> None:
    process_id = new_id()
    info = await box.sandbox.spawn(process_id, Spawn(None, terminal=TerminalSize(30, 100)))
    assert (info.command, info.terminal) == (None, TerminalSize(30, 100))
    await box.sandbox.write(process_id, b"test -t 0 && stty size; echo $TERM\n")
    _, offset = await read_until(box.sandbox, process_id, b"30 100\r\nxterm-256color\r\n")
    await box.sandbox.resize(process_id, TerminalSize(50, 132))
    await box.sandbox.write(process_id, b"stty size\n")
    _, offset = await read_until(box.sandbox, process_id, b"50 132\r\n", offset)
    await box.sandbox.write(process_id, b"echo wait; sleep 30030\n")
    _, offset = await read_until(box.sandbox, process_id, b"wait\r\n", offset)
    async with asyncio.timeout(30):
        # A shell that is about to start a program takes the key itself and waits for the program.
        while not await box.processes("sleep 30030"):
            await asyncio.sleep(0.02)
    await box.sandbox.write(process_id, b"\x03")
    await box.sandbox.write(process_id, b"echo alive $((6*7))\n")
    _, offset = await read_until(box.sandbox, process_id, b"alive 42", offset)
    await box.sandbox.write(process_id, b"exit 5\n")
    last = await finished(box.sandbox, process_id)
    assert (last.exit_code, last.ended_by) == (5, ProcessEnd.EXIT)
    for call in (box.sandbox.write(process_id, b"x"), box.sandbox.resize(process_id, TerminalSize())):
        with pytest.raises(InvalidInput, match="ended"):
            await call


@pytest.mark.needs(Capability.TERMINALS)
async def test_a_change_of_size_is_signaled(box: Box) -> None:
    process_id = new_id()
    command = "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.02; done"
    await box.sandbox.spawn(process_id, Spawn(command, terminal=TerminalSize()))
    await read_until(box.sandbox, process_id, b"ready")
    await box.sandbox.resize(process_id, TerminalSize(11, 22))
    await read_until(box.sandbox, process_id, b"11 22")


@pytest.mark.parametrize(
    ("terminal", "kept"), [(None, BACKGROUND_BYTES), (TerminalSize(), TERMINAL_BYTES)], ids=["background", "terminal"]
)
async def test_what_is_dropped_of_a_flood_is_told(box: Box, terminal: TerminalSize | None, kept: int) -> None:
    process_id = new_id()
    await box.sandbox.spawn(process_id, Spawn("seq 400000; echo last", terminal=terminal))
    await finished(box.sandbox, process_id)
    found = await box.sandbox.read(process_id, 10, limit=100)
    assert found.bytes_out > 2_000_000
    assert found.offset == found.bytes_out - kept
    assert (found.gap, len(found.data)) == (found.offset - 10, 100)
    tail = await box.sandbox.read(process_id, -20)
    assert tail.gap == 0
    assert tail.data.replace(b"\r", b"").endswith(b"400000\nlast\n")


@pytest.mark.needs(Capability.TERMINALS)
async def test_much_that_is_typed_arrives_in_order_and_too_much_is_refused(box: Box) -> None:
    process_id = new_id()
    command = "stty raw -echo; echo ready; until [ -e go ]; do sleep 0.02; done; head -c 200000 > typed; echo done"
    await box.sandbox.spawn(process_id, Spawn(command, terminal=TerminalSize()))
    await read_until(box.sandbox, process_id, b"ready")
    pieces = [bytes([65 + n % 26]) * 50_000 for n in range(4)]
    for piece in pieces:
        await box.sandbox.write(process_id, piece)
    with pytest.raises(ProcessBusy):
        for _ in range(4):
            await box.sandbox.write(process_id, bytes(60_000))
    with pytest.raises(PayloadTooLarge):
        await box.sandbox.write(process_id, bytes(70_000))
    (box.workspace / "go").touch()
    await read_until(box.sandbox, process_id, b"done")
    assert (box.workspace / "typed").read_bytes() == b"".join(pieces)
    await box.sandbox.end(process_id)


async def test_what_cannot_be_started_is_refused(box: Box) -> None:
    for spec in (Spawn("x", cwd="missing"), Spawn("x", cwd="/etc"), Spawn("x", lifetime=0), Spawn(None)):
        with pytest.raises(InvalidInput):
            await box.sandbox.spawn(new_id(), spec)
    for call in (box.sandbox.read("unknown"), box.sandbox.end("unknown"), box.sandbox.write("unknown", b"")):
        with pytest.raises(ProcessNotFound):
            await call


async def test_they_are_bounded_and_an_operation_has_room_beside_them(box: Box) -> None:
    ids = [new_id() for _ in range(MAX_PROCESSES)]
    for process_id in ids:
        await box.sandbox.spawn(process_id, Spawn("exec sleep 300"))
    with pytest.raises(ProcessLimit):
        await box.sandbox.spawn(new_id(), Spawn("true"))
    assert (await box.sh("echo still")).stdout == b"still\n"
    await asyncio.gather(*(box.sandbox.end(process_id) for process_id in ids))
    assert not [found for found in await box.sandbox.processes() if found.running]
