"""What a snapshot has of every kind of folder and file; the Workspace's own repository is untouched."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from milepost.bootstrap import checks
from milepost.bootstrap.data_root import DataRoot
from milepost.config.loading import load_config
from milepost.domain.errors import SnapshotFailed, SnapshotNotFound
from milepost.snapshots import GitSnapshots
from tests.snapshots.conftest import Bench, everything, git

NAMES = [
    "plain.txt",
    "with space.txt",
    "new\nline",
    "tab\tand \"quotes\" 'single'",
    "back\\slash",
    "-leading-dash",
    ":(glob)pathspec*?[x]",
    "e\u0301 nfd",
    "\U0001f9ed",
    os.fsdecode(b"no utf-8 \xff\xfe"),
    "git~1",
    ".gitx/config",
    "n" * 200,
    "deep/" * 20 + "file",
]


async def test_every_name_mode_and_content(bench: Bench) -> None:
    empty = await bench.take()
    for number, name in enumerate(NAMES):
        path = bench.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number, 0, 255]) * number)
    (bench.folder / "run.sh").write_text("#!/bin/sh\n")
    (bench.folder / "run.sh").chmod(0o755)
    (bench.folder / "crlf.txt").write_bytes(b"a\r\nb\n\r")
    (bench.folder / "absolute").symlink_to("/etc/passwd")
    (bench.folder / "dangling").symlink_to("nowhere\n")
    (bench.folder / "to-folder").symlink_to("deep")
    os.mkfifo(bench.folder / "pipe")
    (bench.folder / "no-files").mkdir()
    taken = await bench.snapshot()
    assert taken.omitted == ()
    expected = {*NAMES, "run.sh", "crlf.txt", "absolute", "dangling", "to-folder"}
    assert set(await bench.changed(empty, taken.tree)) == expected
    target = bench.root / "copy"
    assert await bench.snapshots.export("wsp_1", taken.tree, target) == len(expected)
    (bench.folder / "pipe").unlink()
    (bench.folder / "no-files").rmdir()
    assert everything(target) == everything(bench.folder)
    assert (await bench.take()) == taken.tree  # equal states have equal ids


async def test_a_person_s_repository_is_byte_equal_afterwards(bench: Bench) -> None:
    git(bench.folder, "init", "-q")
    (bench.folder / ".gitignore").write_text("*.log\nbuild/\n")
    (bench.folder / "a.txt").write_text("one\n")
    (bench.folder / "kept.log").write_text("tracked although ignored\n")
    git(bench.folder, "add", "a.txt", ".gitignore")
    git(bench.folder, "add", "-f", "kept.log")
    git(bench.folder, "commit", "-qm", "first")
    git(bench.folder, "branch", "other")
    (bench.folder / "a.txt").write_text("two\n")
    (bench.folder / "staged.txt").write_text("staged\n")
    git(bench.folder, "add", "staged.txt")
    (bench.folder / "staged.txt").write_text("and changed\n")
    (bench.folder / "noise.log").write_text("x")
    (bench.folder / "build").mkdir()
    (bench.folder / "build" / "out").write_text("x")
    (bench.folder / ".git" / "info" / "exclude").write_text("private.txt\n")
    (bench.folder / "private.txt").write_text("x")
    before = everything(bench.folder)
    stamps = {name: (bench.folder / ".git" / name).stat().st_mtime_ns for name in ("index", "HEAD")}
    taken = await bench.take()
    assert set(await bench.files(taken)) == {".gitignore", "a.txt", "kept.log", "staged.txt"}
    assert everything(bench.folder) == before
    assert stamps == {name: (bench.folder / ".git" / name).stat().st_mtime_ns for name in stamps}
    # The tracked one keeps being followed, and so does one that is added later.
    (bench.folder / "kept.log").write_text("changed\n")
    later = await bench.take()
    assert await bench.changed(taken, later) == ["kept.log"]
    git(bench.folder, "add", "-f", "noise.log")
    assert await bench.changed(later, await bench.take()) == ["noise.log"]


async def test_repositories_inside_are_plain_files(bench: Bench) -> None:
    library = bench.root / "library"
    library.mkdir()
    git(library, "init", "-q")
    (library / "lib.py").write_text("1\n")
    git(library, "add", ".")
    git(library, "commit", "-qm", "x")
    git(bench.folder, "init", "-q")
    git(bench.folder, "submodule", "--quiet", "add", str(library), "sub")
    for name in ("with", "without", "without/inner", "none"):
        (bench.folder / name).mkdir(exist_ok=True)
        git(bench.folder / name, "init", "-q")
    (bench.folder / "with" / "a").write_text("a")
    (bench.folder / "with" / ".gitignore").write_text("ignored\n")
    (bench.folder / "with" / "ignored").write_text("x")
    git(bench.folder / "with", "add", ".")
    git(bench.folder / "with", "commit", "-qm", "x")
    (bench.folder / "without" / "b").write_text("b")
    (bench.folder / "without" / "inner" / "c").write_text("c")
    (bench.folder / "broken").mkdir()
    (bench.folder / "broken" / ".git").write_text("gitdir: /nowhere\n")
    (bench.folder / "broken" / "d").write_text("d")
    first = await bench.take()
    assert set(await bench.files(first)) == {
        ".gitmodules",
        "sub/lib.py",
        "with/a",
        "with/.gitignore",
        "without/b",
        "without/inner/c",
        "broken/d",
    }
    (bench.folder / "sub" / "lib.py").write_text("2\n")
    (bench.folder / "with" / "new").write_text("n")
    (bench.folder / "without" / "inner" / "c").unlink()
    assert await bench.changed(first, await bench.take()) == ["sub/lib.py", "with/new", "without/inner/c"]


async def test_a_folder_of_a_repository_obeys_the_rules_above_it(bench: Bench) -> None:
    git(bench.folder, "init", "-q")
    (bench.folder / ".gitignore").write_text("node_modules/\n/packages/app/dist/\n/dist\n!keep\npackages/app/tmp*\n")
    (bench.folder / "packages" / ".gitignore").parent.mkdir()
    (bench.folder / "packages" / ".gitignore").write_text("*.cache\n")
    app = bench.folder / "packages" / "app"
    for name in ("src", "node_modules", "dist", "tmp1"):
        (app / name).mkdir(parents=True)
        (app / name / "file").write_text("x")
    (app / "x.cache").write_text("x")
    inner = Bench(bench.snapshots, app, bench.root)
    assert await inner.files(await inner.take()) == ["src/file"]


async def test_no_repository_and_an_empty_folder(bench: Bench) -> None:
    assert await bench.files(await bench.take()) == []
    (bench.folder / ".gitignore").write_text("x\n")
    (bench.folder / "x").write_text("x")
    assert await bench.files(await bench.take()) == [".gitignore"]


async def test_kinds_that_change_into_each_other(bench: Bench) -> None:
    for name in ("file-to-dir", "file-to-link", "file-to-pipe", "file-to-repo"):
        (bench.folder / name).write_text("x")
    (bench.folder / "dir-to-file").mkdir()
    (bench.folder / "dir-to-file" / "a").write_text("a")
    first = await bench.take()
    for name in ("file-to-dir", "file-to-link", "file-to-pipe", "file-to-repo"):
        (bench.folder / name).unlink()
    (bench.folder / "file-to-dir").mkdir()
    (bench.folder / "file-to-dir" / "in").write_text("i")
    (bench.folder / "file-to-link").symlink_to("x")
    os.mkfifo(bench.folder / "file-to-pipe")
    (bench.folder / "file-to-repo").mkdir()
    git(bench.folder / "file-to-repo", "init", "-q")
    (bench.folder / "file-to-repo" / "r").write_text("r")
    (bench.folder / "dir-to-file" / "a").unlink()
    (bench.folder / "dir-to-file").rmdir()
    (bench.folder / "dir-to-file").write_text("now a file")
    second = await bench.take()
    assert set(await bench.files(second)) == {"file-to-dir/in", "file-to-link", "file-to-repo/r", "dir-to-file"}
    assert set(await bench.files(first)) == {
        "file-to-dir",
        "file-to-link",
        "file-to-pipe",
        "file-to-repo",
        "dir-to-file/a",
    }


async def test_what_cannot_be_taken_is_named(bench: Bench) -> None:
    bench.snapshots = GitSnapshots(bench.root / "snapshots", max_file_bytes=1000)
    (bench.folder / "small").write_bytes(b"x" * 1000)
    (bench.folder / "big").write_bytes(b"x" * 1001)
    first = await bench.snapshot()
    assert (await bench.files(first.tree), first.omitted) == (["small"], ("big",))
    assert await bench.snapshot() == first
    (bench.folder / "small").write_bytes(b"x" * 2000)
    (bench.folder / "big").write_bytes(b"x")
    second = await bench.snapshot()
    assert (await bench.files(second.tree), second.omitted) == (["big"], ("small",))


async def test_same_size_and_time_is_no_excuse(bench: Bench) -> None:
    path = bench.folder / "racy"
    trees = set()
    for number in range(12):
        path.write_bytes(b"%02d" % number)
        trees.add(await bench.take())
    assert len(trees) == 12


async def test_a_damaged_index_and_a_lock_left_behind(bench: Bench) -> None:
    (bench.folder / "a").write_text("a")
    first = await bench.take()
    repository = bench.root / "snapshots" / "wsp_1.git"
    (repository / "index").write_bytes(b"rubbish")
    (repository / "index.lock").write_bytes(b"")
    assert await bench.take() == first
    (bench.folder / "a").write_text("b")
    (repository / "milepost-state.json").write_text("{]")
    assert await bench.changed(first, await bench.take()) == ["a"]


async def test_refusals(bench: Bench, tmp_path: Path) -> None:
    await bench.take()
    with pytest.raises(SnapshotNotFound):
        await bench.snapshots.changes("wsp_1", "0" * 40, "0" * 40)
    for workspace, tree in (("../x", "0" * 40), ("wsp_1", "HEAD"), ("wsp_1", "--output=x")):
        with pytest.raises(SnapshotFailed):
            await bench.snapshots.changes(workspace, tree, tree)
    with pytest.raises(SnapshotFailed, match="does not exist"):
        await bench.snapshots.take("wsp_1", tmp_path / "gone")
    with pytest.raises(SnapshotFailed, match="too long"):
        await GitSnapshots(tmp_path / "other", seconds=0).take("wsp_1", bench.folder)


async def test_without_git(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await bench.snapshots.check()).startswith("git 2.")
    monkeypatch.setenv("PATH", str(bench.root / "nothing"))
    for call in (bench.snapshots.check(), bench.snapshots.take("wsp_1", bench.folder)):
        with pytest.raises(SnapshotFailed, match="git is not installed") as refused:
            await call
        assert "apt-get install git" in (refused.value.fix or "")


async def test_doctor_tells_what_goes_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEPOST_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    config = load_config()
    parts = SimpleNamespace(config=config, root=DataRoot(config.data_root))
    assert (await checks._snapshots(parts)).ok  # type: ignore[arg-type]
    monkeypatch.setenv("PATH", str(tmp_path))
    check = await checks._snapshots(parts)  # type: ignore[arg-type]
    assert not check.ok and "a rewind restores no files" in check.detail
    assert check.fix == "Install git from your distribution: apt-get install git"
    monkeypatch.setenv("MILEPOST_SNAPSHOTS__ENABLED", "false")
    parts.config = load_config()
    assert (await checks._snapshots(parts)).ok  # type: ignore[arg-type]
