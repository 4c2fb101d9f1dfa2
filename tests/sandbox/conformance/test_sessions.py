"""Several Sessions at work at once, each in a system of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from milepost.domain.errors import SandboxLost
from tests.sandbox.boxes import new_id
from tests.sandbox.conformance.backends import Backend, Capability

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs(Capability.SHELL)]


async def test_sessions_do_not_see_each_other(backend: Backend, tmp_path: Path) -> None:
    """Neither files, processes nor operations; a stop in one ends nothing in the other."""
    names = ("one", "two")
    for name in names:
        (tmp_path / name).mkdir()
    one, two = await asyncio.gather(*(backend.open(tmp_path / name, name) for name in names))
    await asyncio.gather(one.sh("touch one"), two.sh("touch two"))
    effects = [new_id(), new_id()]
    tasks = [await box.start(effect, "echo x; sleep 43210") for box, effect in zip((one, two), effects, strict=True)]
    assert [(await box.sh("ls")).stdout for box in (one, two)] == [b"one\n", b"two\n"]
    assert len(await two.processes("sleep 43210")) == 1
    with pytest.raises(SandboxLost):
        await two.sandbox.attach(effects[0])
    await two.sandbox.kill(effects[0])
    await one.sandbox.kill(effects[0])
    assert (await tasks[0]).killed
    assert [len(await box.processes("sleep 43210")) for box in (one, two)] == [0, 1]
    await two.sandbox.kill(effects[1])
    assert (await tasks[1]).killed
    for name in names:
        await backend.provider.remove(name)
