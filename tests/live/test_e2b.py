"""The real service, with a real key: `E2B_API_KEY=... pytest -m live tests/live/test_e2b.py`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from milepost.domain.errors import SandboxMissing
from milepost.ports.sandbox import Exec, ReadFile, SandboxSpec
from milepost.sandboxes.e2b.provider import E2BProvider
from milepost.sandboxes.e2b.settings import E2BSettings
from tests.sandbox.boxes import new_id

KEY = os.environ.get("E2B_API_KEY", "")
pytestmark = [pytest.mark.live, pytest.mark.skipif(not KEY, reason="E2B_API_KEY is not set")]


async def test_made_used_paused_resumed_and_killed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("from here\n")
    instance = f"live-{new_id()}"
    provider, other = (E2BProvider(E2BSettings(key=lambda: KEY), instance) for _ in range(2))
    spec = SandboxSpec("session", instance, str(tmp_path))
    try:
        sandbox = await provider.open(spec)
        effect = new_id()
        outcome = await sandbox.perform(effect, Exec("cat file; echo err >&2; exit 3"))
        assert (outcome.stdout, outcome.stderr, outcome.exit_code) == (b"from here\n", b"err\n", 3)
        await provider.remove("session")
        again = await other.open(replace(spec, placement=sandbox.placement, fresh=False))
        assert again.boot == sandbox.boot
        assert (await again.attach(effect)).stdout == b"from here\n"
        assert (await again.perform(new_id(), ReadFile("file"))).stdout == b"from here\n"
    finally:
        await other.destroy("session")
    with pytest.raises(SandboxMissing):
        await other.open(replace(spec, placement=sandbox.placement, fresh=False))
    await provider.close()
    await other.close()
