"""What every back end must do, whatever else it claims: whole files, ids that run once, stops, Sessions apart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from milepost.domain.errors import InvalidInput, ProcessNotFound, SandboxLost, SandboxUnavailable
from milepost.ports.sandbox import Exec, ProcessEnd, ReadFile, Spawn, TerminalSize, WriteFile
from tests.sandbox.boxes import new_id
from tests.sandbox.conformance.backends import Backend, Box

pytestmark = pytest.mark.asyncio(loop_scope="session")

DATA = bytes(range(256))


async def test_bytes_come_back_as_they_went_in(box: Box) -> None:
    wrote = await box.run(WriteFile("a.bin", DATA))
    assert (wrote.error_code, wrote.detail["bytes"]) == (None, 256)
    read = await box.run(ReadFile("a.bin"))
    assert (read.error_code, read.stdout, read.detail["size"]) == (None, DATA, 256)
    missing = await box.run(ReadFile("b.bin"))
    assert missing.error_code == "not_found"
    assert "b.bin" in str(missing.error)


async def test_the_same_id_runs_once_for_all_who_ask(box: Box) -> None:
    effect, other = new_id(), await box.another()
    first = await box.sandbox.perform(effect, WriteFile("f", b"one"))
    again = await other.perform(effect, WriteFile("f", b"two"))
    late = await other.attach(effect)
    assert [first.attached, again.attached, late.attached] == [False, True, True]
    assert (await box.run(ReadFile("f"))).stdout == b"one"


async def test_a_command_has_an_end_and_a_failed_one_has_its_code(box: Box) -> None:
    assert (await box.run(Exec("true"))).exit_code == 0
    failed = await box.run(Exec("exit 3"))
    assert (failed.exit_code, failed.killed, failed.timed_out) == (3, False, False)


async def test_a_stop_ends_a_command_and_is_idempotent(box: Box) -> None:
    effect = new_id()
    # `hang` is no program: where commands are real, the shell waits in a function of that name.
    task = asyncio.create_task(box.sandbox.perform(effect, Exec("hang() { sleep 300; }; hang")))
    outcome = None
    async with asyncio.timeout(60):
        while outcome is None:
            # A stop may come before the command does; what has ended stays ended.
            await box.sandbox.kill(effect)
            done, _ = await asyncio.wait({task}, timeout=0.2)
            outcome = task.result() if done else None
    assert (outcome.killed, outcome.exit_code) == (True, None)
    await box.sandbox.kill(effect)
    assert (await box.sandbox.attach(effect)).killed


async def test_processes_are_known_by_their_ids_until_they_end(box: Box) -> None:
    process_id, other = new_id(), await box.another()
    first = await box.sandbox.spawn(process_id, Spawn("hang() { sleep 300; }; hang", terminal=TerminalSize()))
    assert (first.running, first.exit_code, first.terminal) == (True, None, TerminalSize())
    assert (await other.spawn(process_id, Spawn("exit 1"))).started_at == first.started_at
    assert process_id in {info.process_id for info in await other.processes() if info.running}
    await other.resize(process_id, TerminalSize(40, 100))
    await box.sandbox.end(process_id)
    await box.sandbox.end(process_id)
    ended = await other.read(process_id, -1)
    assert (ended.running, ended.exit_code, ended.ended_by) == (False, None, ProcessEnd.ENDED)
    with pytest.raises(InvalidInput):
        await box.sandbox.write(process_id, b"x")
    for call in (box.sandbox.read("unknown"), box.sandbox.end("unknown"), box.sandbox.write("unknown", b"")):
        with pytest.raises(ProcessNotFound):
            await call


async def test_only_the_one_it_was_meant_for_starts_an_operation(box: Box) -> None:
    await box.run(Exec("true"))
    with pytest.raises(SandboxUnavailable):
        await box.sandbox.perform(new_id(), WriteFile("never", b""), boot="another one")
    for operation, boot in ((None, None), (WriteFile("never", b""), "another one")):
        with pytest.raises(SandboxLost):
            await box.sandbox.attach(new_id(), operation=operation, boot=boot)
    assert (await box.run(ReadFile("never"))).error_code == "not_found"
    handed = await box.sandbox.attach(new_id(), operation=WriteFile("now", b"x"), boot=box.sandbox.boot)
    assert (handed.error_code, handed.attached) == (None, False)


async def test_sessions_are_apart_and_end_apart(backend: Backend, tmp_path: Path) -> None:
    """Opened and used at the same time; what one is told the other never heard of."""
    names = [f"{backend.name}-{number}" for number in range(3)]
    for name in names:
        (tmp_path / name).mkdir()
    boxes = await asyncio.gather(*(backend.open(tmp_path / name, name) for name in names))
    effects = [new_id() for _ in names]
    wrote = await asyncio.gather(
        *(
            box.sandbox.perform(effect, WriteFile("own", name.encode()))
            for box, effect, name in zip(boxes, effects, names, strict=True)
        )
    )
    assert [outcome.error_code for outcome in wrote] == [None] * 3
    read = await asyncio.gather(*(box.run(ReadFile("own")) for box in boxes))
    assert [outcome.stdout.decode() for outcome in read] == names
    with pytest.raises(SandboxLost):
        await boxes[1].sandbox.attach(effects[0])
    assert {holding.session_id for holding in await backend.provider.holdings()} >= set(names)
    await backend.provider.remove(names[0])
    await backend.provider.remove(names[0])
    assert (await backend.provider.sessions()) & set(names) == set(names[1:])
    assert (await boxes[1].run(ReadFile("own"))).stdout.decode() == names[1]
    for name in names:
        await backend.provider.destroy(name)
    assert (await backend.provider.sessions()) & set(names) == set()
    assert not {holding.session_id for holding in await backend.provider.holdings()} & set(names)


async def test_its_health_says_what_it_is(backend: Backend) -> None:
    health = await backend.provider.check()
    assert health.ok and health.detail
