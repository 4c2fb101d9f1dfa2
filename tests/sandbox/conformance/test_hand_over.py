"""Who may start an operation that an earlier worker meant to start: the very supervisor it was meant for, or nobody."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from milepost.domain.errors import SandboxLost, SandboxUnavailable
from milepost.ports.sandbox import Exec
from tests.sandbox.boxes import new_id
from tests.sandbox.conformance.backends import Box, Capability

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs(Capability.SHELL, Capability.FOLDER)]

COMMAND = Exec("echo ran >> journal; echo out")


def ran(workspace: Path) -> int:
    journal = workspace / "journal"
    return len(journal.read_text().split()) if journal.exists() else 0


async def test_a_lost_hand_over_is_made_good_once(box: Box) -> None:
    effect, boot = new_id(), await boot_of(box)
    first = await box.sandbox.attach(effect, operation=COMMAND, boot=boot)
    other = await box.another()
    again = await other.attach(effect, operation=COMMAND, boot=boot)
    late = await box.sandbox.perform(effect, COMMAND, boot=boot)
    assert [outcome.stdout for outcome in (first, again, late)] == [b"out\n"] * 3
    assert [outcome.attached for outcome in (first, again, late)] == [False, True, True]
    assert ran(box.workspace) == 1


async def test_many_workers_make_a_lost_hand_over_good_once(box: Box) -> None:
    effect, boot = new_id(), await boot_of(box)
    sandboxes = [box.sandbox, await box.another(), await box.another()]
    outcomes = await asyncio.gather(*(each.attach(effect, operation=COMMAND, boot=boot) for each in sandboxes))
    assert [outcome.stdout for outcome in outcomes] == [b"out\n"] * 3
    assert ran(box.workspace) == 1


async def test_a_supervisor_it_was_not_meant_for_starts_nothing(box: Box) -> None:
    with pytest.raises(SandboxLost):
        await box.sandbox.attach(new_id(), operation=COMMAND, boot="another one")
    with pytest.raises(SandboxUnavailable, match="nothing was done"):
        await box.sandbox.perform(new_id(), COMMAND, boot="another one")
    with pytest.raises(SandboxLost):
        await box.sandbox.attach(new_id(), operation=COMMAND)
    assert ran(box.workspace) == 0


async def boot_of(box: Box) -> str:
    """The supervisor that answers."""
    await box.sh("true")
    return box.sandbox.boot
