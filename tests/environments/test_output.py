"""What a setup command puts out is shown while it runs: whole while it is slow, bounded, once, without secrets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from activities import setup_output
from milepost.domain.environments import EnvironmentState
from milepost.domain.events import EnvironmentOutput
from milepost.ports.sandbox import Outcome
from tests.environments.test_workflow import approve, begun, proposed
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(setup_output, "FIRST_SECONDS", 0.05)
    yield


async def shown(stack: Stack, session_id: str, text: str) -> list[EnvironmentOutput]:
    """All pieces, once the text is in them."""
    async with asyncio.timeout(30):
        while True:
            pieces = await stack.environments.pieces(session_id, "1", -1)
            if text in "".join(piece.text for piece in pieces):
                return pieces
            await asyncio.sleep(0.02)


async def test_output_is_shown_while_the_command_runs_and_a_later_attempt_goes_on(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session_id = await proposed(stack, tmp_path, "hang on")
    async with stack.worker(grace=0):
        await approve(stack, session_id)
        await begun(sandboxes, session_id)
        box = sandboxes.by_session[session_id]
        (effect_id, _), *_ = box.journal
        box.says(effect_id, "stdout", "spä".encode()[:3])
        box.says(effect_id, "stdout", "spä".encode()[3:] + b"t\n")
        box.says(effect_id, "stderr", b"warning\n")
        pieces = await shown(stack, session_id, "warning")
        assert "".join(piece.text for piece in pieces) == "spät\nwarning\n"
        found = await stack.environments.get(session_id)
        assert found.state is EnvironmentState.PREPARING
    async with stack.worker():
        async with asyncio.timeout(30):
            while not box.listeners[effect_id]:
                await asyncio.sleep(0.02)
        # The new attempt was given all from the start; it shows what is new.
        box.says(effect_id, "stdout", b"and more\n")
        await shown(stack, session_id, "and more")
        box.outcomes[effect_id].set_result(
            Outcome(exit_code=0, stdout="spät\nand more\n".encode(), stderr=b"warning\n")
        )
        ready = await stack.settled(session_id)
    assert ready.state is EnvironmentState.READY
    pieces = await stack.environments.pieces(session_id, "1", -1)
    assert "".join(piece.text for piece in pieces) == "spät\nwarning\nand more\n"
    assert [piece.number for piece in pieces] == list(range(len(pieces)))
    assert await stack.environments.pieces(session_id, "1", pieces[-1].number) == []


async def test_a_flood_is_bounded_and_secrets_are_hidden(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    secret = "canary-0123456789-canary"
    stack.parts.redactor.learn(secret)
    session_id = await proposed(stack, tmp_path, "hang on")
    async with stack.worker():
        await approve(stack, session_id)
        await begun(sandboxes, session_id)
        box = sandboxes.by_session[session_id]
        (effect_id, _), *_ = box.journal
        for _ in range(50):
            box.says(effect_id, "stdout", b"x" * 100_000)
        box.says(effect_id, "stdout", f"{secret[:9]}".encode())
        await asyncio.sleep(0.2)
        box.says(effect_id, "stdout", f"{secret[9:]} end\n".encode())
        pieces = await shown(stack, session_id, "end\n")
        box.outcomes[effect_id].set_result(Outcome(exit_code=0))
        await stack.settled(session_id)
    text = "".join(piece.text for piece in pieces)
    assert text.endswith("x[hidden] end\n")
    assert "canary" not in text
    assert all(len(piece.text) <= setup_output.PIECE_CHARACTERS for piece in pieces)
    assert sum(piece.left_out + len(piece.text.encode()) for piece in pieces) == 5_000_000 + len("[hidden] end\n")
    assert pieces[-1].stdout_bytes == 5_000_000 + len(secret) + 5


def test_hours_of_output_are_few_events() -> None:
    """The pauses grow with the time so far."""
    elapsed, events = 0.0, 0
    while elapsed < 3 * 3600:
        events += 1
        elapsed += max(1.0, elapsed / setup_output.GROWTH)
    assert events < 300 < setup_output.MAX_NUMBER
