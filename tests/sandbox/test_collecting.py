"""`milepost gc` on real containers and volumes: shown first, then removed; what others made stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from milepost.bootstrap.collecting_sandboxes import collect_sandboxes
from milepost.bootstrap.data_root import DataRoot
from milepost.config.loading import load_config
from milepost.ports.sandbox import SandboxSpec, Volume
from milepost.sandboxes.podman.provider import PodmanProvider
from milepost.storage import open_ledger, open_notifier, upgrade

pytestmark = pytest.mark.podman


async def test_what_no_session_needs_is_shown_and_then_removed(
    podman_root: Path, podman: PodmanProvider, tmp_path: Path
) -> None:
    """`podman` is another instance here."""
    path = tmp_path / "milepost.yaml"
    path.write_text(f"data_root: {tmp_path / 'data'}\nsandbox: {{socket: {podman_root}/run/podman.sock}}\n")
    config, root = load_config(path), DataRoot(tmp_path / "data")
    root.prepare()
    await upgrade(config.database_url())
    notifier = await open_notifier(config.database_url())
    ledger = await open_ledger(config.database_url(), notifier)
    instance = ledger.instance_id
    await ledger.close()
    await notifier.close()
    workspace = tmp_path / "work"
    workspace.mkdir()
    spec = SandboxSpec("ses_gone", instance, str(workspace), volumes=frozenset({Volume.HOME}))
    mine = PodmanProvider(podman_root, instance)
    await mine.open(spec)
    await podman.open(replace(spec, session_id="ses_of_others", instance_id=podman.instance_id))
    theirs = await podman.holdings()
    shown = await collect_sandboxes(config, root, dry_run=True)
    assert (len(shown.containers), len(shown.volumes), shown.problem) == (1, 1, None)
    assert {each.name for each in await mine.holdings()} == {*shown.containers, *shown.volumes}
    assert await collect_sandboxes(config, root, dry_run=False) == shown
    assert await mine.holdings() == ()
    assert await collect_sandboxes(config, root, dry_run=True) == replace(shown, containers=(), volumes=())
    assert await podman.holdings() == theirs
    await podman.destroy("ses_of_others")
    await mine.close()
