"""The data root: private, provably writable, owned by one instance."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
from collections import namedtuple
from pathlib import Path

import pytest

from milepost.bootstrap import data_root as module
from milepost.bootstrap.data_root import DataRoot, InstanceInfo
from milepost.domain.errors import InstanceLocked, StorageUnavailable

INFO = InstanceInfo(1, "dev", "/x/api.sock", "0.1.0", 5, "http://127.0.0.1:1", "http://127.0.0.1:2", "127.0.0.1:3")


@pytest.fixture
def root(tmp_path: Path) -> DataRoot:
    made = DataRoot(tmp_path / "deep" / "root")
    made.prepare()
    return made


def test_it_is_private(root: DataRoot) -> None:
    assert stat.S_IMODE(root.path.stat().st_mode) == 0o700
    root.prepare()
    assert list(root.path.iterdir()) == []


def test_a_folder_that_others_may_read_stays_as_it_is_with_private_files(tmp_path: Path) -> None:
    shown = DataRoot(tmp_path / "shown")
    shown.path.mkdir()
    shown.path.chmod(0o755)
    foreign = shown.path / "notes.txt"
    foreign.write_text("mine")
    foreign.chmod(0o644)
    for path in (shown.temporal_store, shown.temporal_log):
        path.write_text("private")
        path.chmod(0o644)
    shown.prepare()
    assert stat.S_IMODE(shown.path.stat().st_mode) == 0o755
    assert stat.S_IMODE(foreign.stat().st_mode) == 0o644
    assert stat.S_IMODE(shown.temporal_store.stat().st_mode) == 0o600
    # At the first start the server makes its files after `prepare`.
    shown.temporal_log.chmod(0o644)
    shown.write_info(INFO)
    assert stat.S_IMODE(shown.temporal_log.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_a_folder_that_others_may_write_is_refused_and_not_changed(tmp_path: Path, mode: int) -> None:
    shared = DataRoot(tmp_path / "a shared one")
    shared.path.mkdir()
    shared.path.chmod(mode)
    with pytest.raises(StorageUnavailable, match=f"written by other users .mode {mode:04o}") as caught:
        shared.prepare()
    assert f"chmod 700 '{shared.path}'" in (caught.value.fix or "")
    assert stat.S_IMODE(shared.path.stat().st_mode) == mode
    assert list(shared.path.iterdir()) == []


def test_a_folder_of_another_user_is_refused(root: DataRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(StorageUnavailable, match="belongs to another user") as caught:
        root.prepare()
    assert f"chown -R {other} {root.path}" in (caught.value.fix or "")


def test_a_disk_that_is_nearly_full_is_refused(root: DataRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage(10, 10, module.MIN_FREE_BYTES - 1))
    with pytest.raises(StorageUnavailable, match="31 MiB of free space; at least 32 MiB"):
        root.prepare()


def test_one_owner_at_a_time(root: DataRoot) -> None:
    with root.lock("dev"):
        root.write_info(InstanceInfo(os.getpid(), "dev", "/x/api.sock", "0.1.0", 5))
        for shared in (False, True):
            with pytest.raises(InstanceLocked) as caught:
                root.lock("run", shared=shared)
            assert f"milepost dev (pid {os.getpid()}), socket /x/api.sock" in caught.value.message
    with root.lock("run"):
        pass


def test_shared_owners_exclude_an_exclusive_one_only(root: DataRoot) -> None:
    with root.lock("worker", shared=True), root.lock("api", shared=True):
        with pytest.raises(InstanceLocked, match="another Milepost process"):
            root.lock("dev")
        with root.serving_lock("api"), pytest.raises(InstanceLocked, match="milepost api"):
            root.serving_lock("api")


def _hold(path: str, ready: object) -> None:
    lock = DataRoot(Path(path)).lock("dev")
    ready.set()  # type: ignore[attr-defined]
    multiprocessing.Event().wait(60)
    lock.release()


def test_a_killed_owner_leaves_nothing_locked(root: DataRoot) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_hold, args=(str(root.path), ready))
    process.start()
    assert ready.wait(60)
    with pytest.raises(InstanceLocked, match=f"pid {process.pid}"):
        root.lock("dev")
    process.kill()
    process.join(60)
    with root.lock("dev"):
        pass


def test_what_an_instance_tells_is_read_back_or_ignored(root: DataRoot) -> None:
    assert root.read_info() is None
    root.write_info(INFO)
    assert root.read_info() == INFO
    for damaged in ("", "[]", "{}", json.dumps({"pid": 1, "unknown": 2})):
        root.info.write_text(damaged)
        assert root.read_info() is None
    root.clear_info()
    root.clear_info()
    assert not root.info.exists()


def test_a_long_path_has_its_socket_elsewhere_and_in_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path))
    long = DataRoot(tmp_path / ("x" * 200))
    long.prepare()
    assert len(os.fsencode(long.socket)) < module.MAX_SOCKET_PATH_BYTES + 20
    assert long.socket != DataRoot(tmp_path / ("y" * 200)).socket
    assert stat.S_IMODE(long.socket.parent.stat().st_mode) == 0o700
    long.socket.parent.chmod(0o777)
    with pytest.raises(StorageUnavailable):
        long.prepare()


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageUnavailable, match="cannot be used"):
        DataRoot(tmp_path / "file").prepare()
