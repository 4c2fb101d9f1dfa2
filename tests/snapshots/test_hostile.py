"""Nothing in a Workspace makes a program run on the host, is written to, or leads out of the Workspace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.snapshots.conftest import Bench, everything, git


def _trap(bench: Bench) -> tuple[Path, Path]:
    """A program that leaves a mark, and the mark."""
    mark, program = bench.root / "mark", bench.root / "trap"
    program.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    program.chmod(0o755)
    return program, mark


def _hostile(bench: Bench, folder: Path) -> Path:
    program, mark = _trap(bench)
    git(folder, "init", "-q")
    for name, value in {
        "core.fsmonitor": program,
        "core.hooksPath": folder / "hooks",
        "core.pager": program,
        "core.editor": program,
        "diff.external": program,
        "filter.evil.clean": program,
        "filter.evil.smudge": program,
        "filter.evil.process": program,
        "filter.evil.required": "true",
        "diff.evil.command": program,
        "diff.evil.textconv": program,
        "merge.evil.driver": program,
        "alias.ls-files": f"!{program}",
        "alias.update-index": f"!{program}",
        "include.path": folder / "more",
        "gpg.program": program,
        "core.sshCommand": program,
        "core.worktree": "/",
    }.items():
        git(folder, "config", name, str(value))
    (folder / "hooks").mkdir()
    for hook in ("post-index-change", "post-checkout", "pre-commit", "reference-transaction"):
        (folder / "hooks" / hook).write_text(f"#!/bin/sh\ntouch {mark}\n")
        (folder / "hooks" / hook).chmod(0o755)
    (folder / ".gitattributes").write_text(
        "[attr]text filter=evil\n* filter=evil diff=evil merge=evil text eol=crlf ident\n"
    )
    return mark


@pytest.mark.parametrize("where", [".", "inner"])
async def test_configuration_hooks_and_attributes(bench: Bench, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = bench.folder / where
    folder.mkdir(exist_ok=True)
    (folder / "a.txt").write_bytes(b"$Id$ one\r\n")
    mark = _hostile(bench, folder)
    program = bench.root / "trap"
    # Nor does this process's own environment steer it.
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(program))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(program))
    monkeypatch.setenv("HOME", str(bench.root / "home"))
    (bench.root / "home").mkdir()
    (bench.root / "home" / ".gitconfig").write_text(f"[core]\n\tfsmonitor = {program}\n")
    before = everything(bench.folder)
    first = await bench.take()
    (folder / "a.txt").write_bytes(b"two\r\n")
    second = await bench.take()
    await bench.snapshots.diff("wsp_1", first, second)
    await bench.snapshots.restore("wsp_1", bench.folder, second, first)
    await bench.snapshots.export("wsp_1", first, bench.root / "copy")
    assert not mark.exists()
    assert everything(bench.folder) == before
    assert (bench.root / "copy" / where / "a.txt").read_bytes() == b"$Id$ one\r\n"


async def test_links_lead_nowhere(bench: Bench) -> None:
    outside = bench.root / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (bench.folder / "dir").mkdir()
    (bench.folder / "dir" / "secret").write_text("mine")
    first = await bench.take()
    (bench.folder / "dir" / "secret").unlink()
    (bench.folder / "dir").rmdir()
    (bench.folder / "dir").symlink_to(outside)
    second = await bench.take()
    assert await bench.changed(first, second) == ["dir", "dir/secret"]
    await bench.snapshots.restore("wsp_1", bench.folder, second, first)
    assert (outside / "secret").read_text() == "secret"
    assert (bench.folder / "dir" / "secret").read_text() == "mine"
    assert not (bench.folder / "dir").is_symlink()


async def test_a_repository_made_of_traps_for_readers(bench: Bench) -> None:
    (bench.folder / ".git" / "info").mkdir(parents=True)
    os.mkfifo(bench.folder / ".git" / "info" / "exclude")
    os.mkfifo(bench.folder / ".git" / "index")
    (bench.folder / "a").write_text("a")
    assert await bench.files(await bench.take()) == ["a"]
    (bench.folder / ".git" / "info" / "exclude").unlink()
    (bench.folder / ".git" / "info" / "exclude").symlink_to("/dev/zero")
    (bench.folder / ".git" / "index").unlink()
    (bench.folder / ".git" / "index").symlink_to("/dev/zero")
    assert await bench.files(await bench.take()) == ["a"]
