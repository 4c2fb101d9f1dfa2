"""What is swapped between the look and the open: exactly in that moment, not by chance."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from milepost.sandboxes.supervisor import workspace as module
from milepost.sandboxes.supervisor.workspace import Refused, Workspace


@pytest.fixture
def swap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Workspace]:
    """A Workspace in which the named entry becomes a link to the outside right after so many looks."""
    root, outside = tmp_path / "workspace", tmp_path / "outside"
    for folder in (root / "d", outside):
        folder.mkdir(parents=True)
        (folder / "f").write_text(folder.name)
    look = os.stat

    def arm(name: str, looks: int = 1) -> Workspace:
        left = looks

        def stat(path: bytes, *arguments: object, **options: object) -> os.stat_result:
            found = look(path, *arguments, **options)  # type: ignore[arg-type]
            entry = root / name
            nonlocal left
            if path == os.fsencode(entry.name):
                left -= 1
                if left:
                    return found
                entry.rename(tmp_path / "was")
                entry.symlink_to(outside / "f" if entry.name == "f" else outside)
            return found

        monkeypatch.setattr(module.os, "stat", stat)
        return Workspace(str(root))

    return arm


def test_a_directory_that_becomes_a_link(swap: Callable[..., Workspace]) -> None:
    with pytest.raises(Refused):
        swap("d").locate("d/f")


def test_a_file_that_becomes_a_link(swap: Callable[..., Workspace]) -> None:
    place = swap("d/f", looks=2).locate("d/f")
    with pytest.raises((Refused, OSError)):
        os.close(place.open_file())
