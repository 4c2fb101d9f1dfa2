"""What a Session's sandbox may be made on, looked at each time it is opened."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from milepost.bootstrap.data_root import DataRoot
from milepost.bootstrap.sandboxes import spec_of
from milepost.config.models import LimitsSection
from milepost.domain.errors import InvalidInput, SandboxUnavailable
from milepost.sandboxes.podman.folder import identity, not_writable


def made(workspace: Path, data_root: Path) -> str:
    limits = LimitsSection()
    section = SimpleNamespace(backend="podman", image=None, network="none", limits=limits)
    config: Any = SimpleNamespace(settings=SimpleNamespace(sandbox=section), sandbox_environment={})
    session: Any = SimpleNamespace(session_id="s", image=None, workspace=SimpleNamespace(path=str(workspace)))
    return spec_of(config, DataRoot(data_root), "i", session).workspace_path


def test_a_folder_apart_from_the_data_root_is_used(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    assert made(tmp_path / "w", tmp_path / "home") == str(tmp_path / "w")


@pytest.mark.parametrize(("workspace", "data_root"), [("a", "a/b"), ("a/b", "a"), ("a", "a")])
def test_neither_holds_the_other(tmp_path: Path, workspace: str, data_root: str) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(SandboxUnavailable, match="lie in each other") as caught:
        made(tmp_path / workspace, tmp_path / data_root)
    assert "MILEPOST_HOME" in str(caught.value.fix)


@pytest.mark.parametrize("link", ["w", "w/sub"])
def test_a_link_in_the_path_is_refused_with_where_it_leads(tmp_path: Path, link: str) -> None:
    victim = tmp_path / "victim"
    (victim / "sub").mkdir(parents=True)
    if link != "w":
        (tmp_path / "w").mkdir()
    (tmp_path / link).symlink_to(victim)
    workspace = tmp_path / "w" / "sub"
    with pytest.raises(SandboxUnavailable, match=f"leads to {victim}"):
        made(workspace, tmp_path / "home")
    with pytest.raises(InvalidInput, match="symbolic link") as caught:
        identity(workspace)
    assert str(tmp_path / link) in caught.value.message


def test_the_identity_of_a_folder_is_its_own(tmp_path: Path) -> None:
    found = tmp_path.stat()
    assert identity(tmp_path) == (found.st_dev, found.st_ino)
    (tmp_path / "file").touch()
    for path in (Path("relative"), tmp_path / "file", tmp_path / "none", tmp_path / ".." / tmp_path.name, Path("/")):
        with pytest.raises(InvalidInput):
            identity(path)


def test_why_a_folder_is_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my folder"
    folder.mkdir(mode=0o500)
    own = not_writable(folder, rootless=True)
    assert (own.message[:14], str(own.fix)[:18]) == ("The workspace ", "Run: chmod u+rwx '")
    assert "mode 0500" in own.message
    monkeypatch.setattr("os.getuid", lambda: folder.stat().st_uid + 1)
    assert 'chown -R "$USER" \'' in str(not_writable(folder, rootless=True).fix)
    assert "chmod" in str(not_writable(folder, rootless=False).fix), "root's containers run as the owner"
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    assert "read-only file system" in not_writable(folder, rootless=True).message
