"""Comparing states, and putting one back without overwriting what it does not know."""

from __future__ import annotations

import os

import pytest

from milepost.domain.errors import SnapshotFailed, WorkspaceChanged
from milepost.ports.snapshots import DiffLine
from tests.snapshots.conftest import Bench, everything


def _state(bench: Bench) -> None:
    (bench.folder / "sub").mkdir(exist_ok=True)
    (bench.folder / "text").write_text("one\ntwo\nthree\n")
    (bench.folder / "sub" / "binary").write_bytes(bytes(range(256)))
    (bench.folder / "tool").write_text("#!/bin/sh\n")
    (bench.folder / "tool").chmod(0o755)
    (bench.folder / "link").symlink_to("text")
    (bench.folder / "new\nline").write_text("x")
    (bench.folder / os.fsdecode(b"\xff")).write_text("x")
    (bench.folder / ".gitignore").write_text("ignored\n")
    (bench.folder / "ignored").write_text("stays")


async def test_every_kind_of_change_is_put_back(bench: Bench) -> None:
    _state(bench)
    before = everything(bench.folder)
    first = await bench.take()
    (bench.folder / "text").write_text("one\n2\nthree")
    (bench.folder / "sub" / "binary").unlink()
    (bench.folder / "sub").rmdir()
    (bench.folder / "sub").write_text("a file now")
    (bench.folder / "tool").chmod(0o644)
    (bench.folder / "link").unlink()
    (bench.folder / "link").mkdir()
    (bench.folder / "link" / "in").write_text("i")
    (bench.folder / "new\nline").rename(bench.folder / "renamed")
    (bench.folder / os.fsdecode(b"\xff")).unlink()
    second = await bench.take()
    after = everything(bench.folder)
    differ = await bench.changed(first, second)
    assert (await bench.snapshots.restore("wsp_1", bench.folder, second, first)).changed == len(differ)
    assert everything(bench.folder) == before
    assert await bench.take() == first
    assert (await bench.snapshots.restore("wsp_1", bench.folder, first, second)).failed == ()
    assert everything(bench.folder) == after
    assert (await bench.snapshots.restore("wsp_1", bench.folder, second, second)).changed == 0


async def test_what_it_does_not_know_is_not_overwritten(bench: Bench) -> None:
    _state(bench)
    first = await bench.take()
    (bench.folder / "text").write_text("changed by the turn\n")
    second = await bench.take()
    (bench.folder / "text").write_text("changed by a person\n")
    before = everything(bench.folder)
    with pytest.raises(WorkspaceChanged):
        await bench.snapshots.restore("wsp_1", bench.folder, second, first)
    assert everything(bench.folder) == before
    # An ignored file in the place of one that is to come back is somebody's file too.
    (bench.folder / "text").unlink()
    third = await bench.take()
    (bench.folder / ".gitignore").write_text("ignored\ntext\n")
    fourth = await bench.take()
    (bench.folder / "text").write_text("secret notes\n")
    target = await bench.snapshots.compose("wsp_1", fourth, dict(await _entries(bench, third, first)))
    with pytest.raises(WorkspaceChanged):
        await bench.snapshots.restore("wsp_1", bench.folder, fourth, target)
    assert (bench.folder / "text").read_text() == "secret notes\n"


@pytest.mark.parametrize("comes_back", ["place", "place/in", "place/in/deep"])
async def test_ignored_files_in_the_way(bench: Bench, comes_back: str) -> None:
    """Git itself would take an ignored file away to make room."""
    (bench.folder / ".gitignore").write_text("*.ignored\nplace/keep\n/place\n")
    (bench.folder / "other").write_text("x")
    first = await bench.take()
    entry = {
        change.path: change.after for change in await bench.snapshots.changes("wsp_1", await bench.nothing(), first)
    }
    target = await bench.snapshots.compose("wsp_1", first, {comes_back: entry["other"]})
    if comes_back == "place/in":
        (bench.folder / "place").write_text("mine")
    else:
        mine = bench.folder / ("place/keep" if comes_back == "place" else "place/in")
        mine.parent.mkdir()
        mine.write_text("mine")
    before = everything(bench.folder)
    with pytest.raises(WorkspaceChanged, match="in the way"):
        await bench.snapshots.restore("wsp_1", bench.folder, first, target)
    assert everything(bench.folder) == before


async def _entries(bench: Bench, before: str, after: str) -> list[tuple[str, object]]:
    return [(change.path, change.after) for change in await bench.snapshots.changes("wsp_1", before, after)]


async def test_compose_replaces_only_the_named_paths(bench: Bench) -> None:
    _state(bench)
    first = await bench.take()
    (bench.folder / "text").write_text("2\n")
    (bench.folder / "tool").unlink()
    (bench.folder / "tool").mkdir()
    (bench.folder / "tool" / "in").write_text("i")
    second = await bench.take()
    changes = {change.path: change for change in await bench.snapshots.changes("wsp_1", first, second)}
    assert set(changes) == {"text", "tool", "tool/in"}
    back = await bench.snapshots.compose("wsp_1", second, {name: changes[name].before for name in ("tool", "tool/in")})
    assert await bench.changed(first, back) == ["text"]
    assert await bench.snapshots.compose("wsp_1", second, {}) == second


async def test_the_diff_has_files_and_hunks(bench: Bench) -> None:
    (bench.folder / "text").write_text("".join(f"{n}\n" for n in range(30)))
    (bench.folder / "gone").write_text("diff --git a/x b/x\n@@ -1 +1 @@\n-not a header\r\nformfeed\x0cin line\n")
    (bench.folder / "binary").write_bytes(b"\0\1")
    (bench.folder / "tool").write_text("x")
    (bench.folder / "kind").write_text("text\n")
    (bench.folder / "tail").write_text("end")
    first = await bench.take()
    lines = [f"{n}\n" for n in range(30)]
    lines[2], lines[25] = "two\n", ""
    (bench.folder / "text").write_text("".join(lines))
    (bench.folder / "gone").unlink()
    (bench.folder / "binary").write_bytes(b"\0\2")
    (bench.folder / "tool").chmod(0o755)
    (bench.folder / "kind").unlink()
    (bench.folder / "kind").symlink_to("tail")
    (bench.folder / "tail").write_text("end\n")
    (bench.folder / 'n\new "q"').write_bytes(b"\xff\n")
    files = {file.path: file for file in await bench.snapshots.diff("wsp_1", first, await bench.take())}
    assert {path: file.status for path, file in files.items()} == {
        "text": "modified",
        "gone": "deleted",
        "binary": "modified",
        "tool": "modified",
        "kind": "type_changed",
        "tail": "modified",
        'n\new "q"': "added",
    }
    assert [(hunk.old_start, hunk.new_start) for hunk in files["text"].hunks] == [(1, 1), (23, 23)]
    assert (files["text"].additions, files["text"].deletions) == (1, 2)
    assert [line for line in files["text"].hunks[0].lines if line.kind != " "] == [
        DiffLine("-", "2"),
        DiffLine("+", "two"),
    ]
    assert [line.text for line in files["gone"].hunks[0].lines] == [
        "diff --git a/x b/x",
        "@@ -1 +1 @@",
        "-not a header\r",
        "formfeed\x0cin line",
    ]
    assert files["binary"].binary and files["binary"].hunks == ()
    assert (files["tool"].old_mode, files["tool"].new_mode, files["tool"].hunks) == ("100644", "100755", ())
    assert [line.text for hunk in files["kind"].hunks for line in hunk.lines] == ["text", "tail"]
    assert files["tail"].hunks[0].lines == (DiffLine("-", "end", ended=False), DiffLine("+", "end"))
    assert files['n\new "q"'].hunks[0].lines == (DiffLine("+", "\N{REPLACEMENT CHARACTER}"),)


async def test_a_large_diff_is_cut_and_says_so(bench: Bench) -> None:
    first = await bench.take()
    for number in range(7):
        (bench.folder / f"f{number}").write_text(f"{number}\n" * 60_000)
    files = await bench.snapshots.diff("wsp_1", first, await bench.take())
    assert [file.truncated for file in files] == [False] * 5 + [True] * 2
    assert all(file.additions == 60_000 for file in files)
    assert all(bool(file.hunks) is not file.truncated for file in files)


async def test_export_needs_a_free_place(bench: Bench) -> None:
    _state(bench)
    tree = await bench.take()
    taken = bench.root / "taken"
    taken.mkdir()
    (taken / "mine").write_text("mine")
    with pytest.raises(SnapshotFailed):
        await bench.snapshots.export("wsp_1", tree, taken)
    assert everything(taken) == {"mine": ((taken / "mine").stat().st_mode, b"mine")}
    assert sorted(path.name for path in bench.root.iterdir() if "part" in path.name) == []
    (taken / "mine").unlink()
    assert await bench.snapshots.export("wsp_1", tree, taken) == 7
