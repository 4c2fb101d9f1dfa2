"""When the supervisor measures disk use, and what follows from what it finds."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from milepost.ports.sandbox import SandboxLimits
from milepost.sandboxes import bundle
from milepost.sandboxes.supervisor import disk

MIB = 1024 * 1024


def made(folder: Path, limit: int = 100 * MIB, free: int = 0) -> disk.Disk:
    limits = SandboxLimits(workspace_bytes=limit, volume_bytes=limit, free_bytes=free)
    config = bundle.disk_config(limits, str(folder), {"node_modules": str(folder / "node_modules")})
    return disk.Disk(config["places"], config["free"])


def ended(watch: disk.Disk) -> None:
    """The last command has ended, and the walk after it begins."""
    watch.ended(idle=True, for_disk=False)
    watch.walks()


def test_what_a_folder_takes(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "file").write_bytes(bytes(MIB))
    once = disk.usage(str(tmp_path), [])
    assert MIB <= once < 1.2 * MIB
    os.link(tmp_path / "deep" / "er" / "file", tmp_path / "again")
    (tmp_path / "link").symlink_to("/usr")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1024 * MIB)
    assert disk.usage(str(tmp_path), []) < once + 0.1 * MIB, "names, links and holes take nothing"
    assert disk.usage(str(tmp_path), [str(tmp_path / "deep")]) >= MIB, "the other name is counted then"
    assert disk.usage(str(tmp_path / "missing"), []) == 0


def test_who_meets_a_bound_is_told_and_who_was_over_before_may_tidy_up(tmp_path: Path) -> None:
    watch = made(tmp_path)
    watch.began()
    assert watch.measured({"workspace": 99 * MIB, "node_modules": 0}, 0.1) is None
    assert "The Workspace has 101 MiB and may have 100 MiB" in str(watch.measured({"workspace": 101 * MIB}, 0.1))
    assert "node_modules" in str(watch.measured({"workspace": 0, "node_modules": 101 * MIB}, 0.1))
    ended(watch)
    watch.measured({"workspace": 150 * MIB}, 0.1)
    assert "150 MiB" in str(watch.refusal(1))
    watch.began()
    assert watch.measured({"workspace": 160 * MIB}, 0.1) is None
    watch.began()
    assert watch.measured({"workspace": 167 * MIB}, 0.1) is not None, "one that begins later moves no bound"
    ended(watch)
    watch.measured({"workspace": 10 * MIB}, 0.1)
    assert watch.refusal(80 * MIB) is None
    assert watch.refusal(91 * MIB) is not None
    watch.began()
    watch.ended(idle=True, for_disk=False)
    assert watch.refusal(91 * MIB) is None, "it may have tidied up: what is known is old"
    watch.ended(idle=True, for_disk=True)
    watch.walks()
    assert watch.refusal(91 * MIB) is not None


def test_a_walk_costs_a_small_share_and_an_unfinished_one_is_told(tmp_path: Path) -> None:
    watch, now = made(tmp_path), time.monotonic()
    assert watch.due(now), "nothing is known yet"
    watch.walks()
    assert not watch.due(now + 1000)
    watch.began()
    watch.measured({"workspace": 0}, 3.0)
    assert not watch.due(time.monotonic() + 59)
    assert watch.due(time.monotonic() + 61)
    ended(watch)
    watch.measured({"workspace": 0}, 0.0)
    assert not watch.due(time.monotonic() + 1000), "nothing has run since"
    watch.began()
    assert watch.measured(None, 120.0) is None
    assert watch.unknown
    assert not made(tmp_path, 0).due(now)
    assert not made(tmp_path, 0).limited


def test_free_space_is_kept_also_where_there_is_too_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [500 * MIB]
    monkeypatch.setattr(disk.Disk, "_free_now", lambda _: free[0])
    watch = made(tmp_path, 0, 200 * MIB)
    watch.began()
    assert watch.exhausted() is None
    free[0] = 199 * MIB
    assert "must stay free" in str(watch.exhausted())
    ended(watch)
    watch.began()
    assert watch.exhausted() is None, "what begins on a full disk may still tidy up"
    free[0] = 130 * MIB
    assert watch.exhausted() is not None
    assert watch.refusal(1) is not None
