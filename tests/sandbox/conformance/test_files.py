"""File operations: results, confinement to the workspace, errors that help."""

from __future__ import annotations

import asyncio
import json
import os
import stat

import pytest

from milepost.ports.sandbox import EditFile, Exec, Glob, Grep, ListDir, Outcome, ReadFile, WriteFile
from tests.sandbox.conformance.backends import Box, Capability

MIB = 1024 * 1024

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs(Capability.FOLDER, Capability.SHELL)]


def ok(outcome: Outcome) -> Outcome:
    assert outcome.error_code is None, outcome.error
    return outcome


# --- read, write ------------------------------------------------------------------------------------------------


async def test_write_creates_parents_and_read_returns_the_bytes(box: Box) -> None:
    data = bytes(range(256)) * 10
    wrote = ok(await box.run(WriteFile("a/b/c.bin", data)))
    assert wrote.detail == {"bytes": 2560, "created": 1}
    assert (box.workspace / "a/b/c.bin").read_bytes() == data
    assert ok(await box.run(ReadFile("a/b/c.bin"))).stdout == data
    part = ok(await box.run(ReadFile("a/b/c.bin", offset=2550, limit=100)))
    assert part.stdout == data[2550:]
    assert part.detail == {"size": 2560, "offset": 2550, "end": 1}


async def test_replacing_keeps_the_mode_and_leaves_no_other_file(box: Box) -> None:
    script = box.workspace / "run.sh"
    script.write_text("old")
    script.chmod(0o750)
    box_owner = (await box.sh("stat -c %u run.sh; chmod 750 run.sh")).stdout
    wrote = ok(await box.run(WriteFile("run.sh", b"new")))
    assert wrote.detail["created"] == 0
    assert script.read_text() == "new"
    assert stat.S_IMODE(script.stat().st_mode) == 0o750
    assert [path.name for path in box.workspace.iterdir()] == ["run.sh"]
    assert (await box.sh("stat -c %u run.sh")).stdout == box_owner


async def test_names_need_not_be_ascii_or_utf8(box: Box) -> None:
    name = "späße ☃ \udcff"
    ok(await box.run(WriteFile(name, b"x")))
    assert os.fsencode(next(box.workspace.iterdir()).name) == "späße ☃ ".encode() + b"\xff"
    listed = ok(await box.run(ListDir()))
    assert json.loads(listed.stdout)["name"] == name


async def test_the_largest_write_is_accepted(box: Box) -> None:
    data = os.urandom(8 * MIB)
    ok(await box.run(WriteFile("big", data)))
    assert ok(await box.run(ReadFile("big"))).stdout == data


@pytest.mark.parametrize(
    ("content", "offset", "limit", "expected", "detail"),
    [
        (b"a\nb\nc\n", 0, 2, b"a\nb\n", {"first_line": 1, "lines": 2, "total_lines": 3, "end": 0}),
        (b"a\nb\nc\n", 2, 9, b"c\n", {"first_line": 3, "lines": 1, "total_lines": 3, "end": 1}),
        (b"a\nb\nc", 1, 9, b"b\nc", {"first_line": 2, "lines": 2, "total_lines": 3, "end": 1}),
        (b"a\n", 5, 9, b"", {"lines": 0, "total_lines": 1, "end": 1}),
        (b"", 0, 9, b"", {"lines": 0, "total_lines": 0, "end": 1}),
        (b"x" * 3_000_000 + b"\nlast\n", 1, 1, b"last\n", {"first_line": 2, "lines": 1, "total_lines": 2, "end": 1}),
    ],
)
async def test_reading_by_lines(
    box: Box, content: bytes, offset: int, limit: int, expected: bytes, detail: dict[str, int]
) -> None:
    (box.workspace / "f").write_bytes(content)
    outcome = ok(await box.run(ReadFile("f", offset, limit, "lines")))
    assert outcome.stdout == expected
    assert {key: outcome.detail[key] for key in detail} == detail


async def test_line_windows_join_to_the_file(box: Box) -> None:
    content = b"".join(b"line %d %s\n" % (n, b"x" * (n % 700)) for n in range(9000))
    (box.workspace / "f").write_bytes(content)
    joined, at = b"", 0
    while True:
        outcome = ok(await box.run(ReadFile("f", at, 1700, "lines")))
        joined += outcome.stdout
        at += int(outcome.detail["lines"])
        if outcome.detail["end"]:
            break
    assert joined == content


# --- the workspace is a boundary ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret", "a/../../secret", "/workspace/../etc/passwd", "/"])
async def test_paths_do_not_leave_the_workspace(box: Box, path: str) -> None:
    (box.workspace / "a").mkdir()
    for operation in (ReadFile(path), WriteFile(path, b"x"), EditFile(path, "a", "b"), ListDir(path), Grep("x", path)):
        outcome = await box.run(operation)
        assert outcome.error_code == "outside_workspace", (operation, outcome)


@pytest.mark.parametrize("target", ["/etc", "..", "../..", "/proc/self/root", "a/../../.."])
async def test_links_do_not_lead_out(box: Box, target: str) -> None:
    (box.workspace / "a").mkdir()
    (box.workspace / "link").symlink_to(target)
    for operation in (ReadFile("link/passwd"), WriteFile("link/new", b"x"), ListDir("link"), Glob("*", "link")):
        outcome = await box.run(operation)
        assert outcome.error_code == "outside_workspace", (operation, outcome)
    assert (await box.run(WriteFile("link", b"x"))).error_code == "outside_workspace"
    assert (box.workspace / "link").is_symlink()


async def test_links_inside_work_also_absolute_ones(box: Box) -> None:
    (box.workspace / "real").mkdir()
    (box.workspace / "relative").symlink_to("real")
    (box.workspace / "absolute").symlink_to(f"{box.root}/real")
    (box.workspace / "up").symlink_to("relative/../real")
    ok(await box.run(WriteFile("absolute/f", b"1")))
    assert ok(await box.run(ReadFile("up/f"))).stdout == b"1"
    (box.workspace / "file-link").symlink_to("relative/f")
    ok(await box.run(WriteFile("file-link", b"2")))
    assert (box.workspace / "file-link").is_symlink()
    assert (box.workspace / "real/f").read_bytes() == b"2"
    assert ok(await box.run(ReadFile(f"{box.root}/real/f"))).stdout == b"2"


async def test_a_loop_of_links_is_refused(box: Box) -> None:
    (box.workspace / "x").symlink_to("y")
    (box.workspace / "y").symlink_to("x")
    outcome = await box.run(ReadFile("x"))
    assert outcome.error_code == "invalid"
    assert "symbolic links" in str(outcome.error)


@pytest.mark.needs(Capability.SEARCH)
async def test_search_does_not_follow_links_out(box: Box) -> None:
    (box.workspace / "out").symlink_to("/etc")
    (box.workspace / "in").write_text("root:marker\n")
    found = ok(await box.run(Grep("root:")))
    assert found.stdout == b"in:1:root:marker"
    listed = ok(await box.run(Glob("**/*")))
    assert b"passwd" not in listed.stdout


async def test_a_directory_swapped_for_a_link_during_reads_never_leads_out(box: Box) -> None:
    """One process swaps `d` between a directory and a link to /etc as fast as it can while files are read."""
    (box.workspace / "real").mkdir()
    (box.workspace / "real/passwd").write_text("inside")
    swap = (
        "import os\n"
        "os.symlink('/etc', 'evil'); os.symlink('real', 'd')\n"
        "open('ready', 'w').close()\n"
        "for _ in range(10**7):\n"
        "    if os.path.exists('stop'): break\n"
        "    for name, target in (('e', '/etc'), ('r', 'real')):\n"
        "        os.symlink(target, name); os.rename(name, 'd')\n"
    )
    (box.workspace / "swap.py").write_text(swap)
    racer = asyncio.create_task(box.run(Exec("python3 swap.py", timeout=60)))
    async with asyncio.timeout(30):
        while not (box.workspace / "ready").exists():
            await asyncio.sleep(0.01)
    seen = [await box.run(ReadFile("d/passwd")) for _ in range(120)]
    (box.workspace / "stop").touch()
    await racer
    assert {outcome.stdout for outcome in seen if outcome.error_code is None} <= {b"inside"}
    assert {outcome.error_code for outcome in seen} <= {None, "outside_workspace", "not_found", "invalid"}
    assert "outside_workspace" in {outcome.error_code for outcome in seen}, "the race was never lost: no test"


# --- what is no regular file --------------------------------------------------------------------------------------


async def test_a_fifo_is_refused_at_once_and_is_not_replaced(box: Box) -> None:
    os.mkfifo(box.workspace / "pipe", 0o666)
    for operation in (ReadFile("pipe"), WriteFile("pipe", b"x"), EditFile("pipe", "a", "b"), Grep("x", "pipe")):
        outcome = await box.run(operation)
        assert outcome.error_code == "invalid", (operation, outcome)
    assert stat.S_ISFIFO((box.workspace / "pipe").stat().st_mode)
    assert ok(await box.run(Grep("x"))).stdout == b""


async def test_directories_and_missing_files_are_told_apart(box: Box) -> None:
    (box.workspace / "folder").mkdir()
    (box.workspace / "folder/settings.yaml").write_text("x")
    assert (await box.run(ReadFile("folder"))).error_code == "is_directory"
    assert (await box.run(WriteFile("folder", b""))).error_code == "is_directory"
    assert (await box.run(ListDir("folder/settings.yaml"))).error_code == "not_directory"
    missing = await box.run(ReadFile("folder/setings.yaml"))
    assert missing.error_code == "not_found"
    assert "settings.yaml" in str(missing.error)
    assert (await box.run(ReadFile("folder/settings.yaml/x"))).error_code == "not_found"
    assert (await box.run(ReadFile("a\0b"))).error_code == "invalid"
    assert (await box.run(ReadFile("x" * 5000))).error_code == "invalid"
    assert (await box.run(ReadFile("x" * 300))).error_code == "invalid"


@pytest.mark.needs(Capability.USER)
async def test_permissions_are_reported(box: Box) -> None:
    await box.sh("echo x > secret; chmod 000 secret; mkdir closed; chmod 500 closed; echo x > fixed; chmod 400 fixed")
    assert (await box.run(ReadFile("secret"))).error_code == "permission"
    assert (await box.run(WriteFile("closed/new", b""))).error_code == "permission"
    assert (await box.run(WriteFile("fixed", b""))).error_code == "permission"
    await box.sh("chmod 700 closed")


# --- edit -------------------------------------------------------------------------------------------------------


async def test_edit_replaces_exactly_one_match(box: Box) -> None:
    (box.workspace / "f").write_text("one\ntwo\nthree\n")
    outcome = ok(await box.run(EditFile("f", "two\n", "2\n")))
    assert (box.workspace / "f").read_text() == "one\n2\nthree\n"
    assert outcome.detail == {"replacements": 1, "line": 2, "bytes": 12}


async def test_edit_refuses_several_matches_unless_all(box: Box) -> None:
    (box.workspace / "f").write_text("x\ny\nx\n")
    refused = await box.run(EditFile("f", "x", "z"))
    assert refused.error_code == "many_matches"
    assert refused.detail == {"matches": 2}
    assert "2 times" in str(refused.error)
    assert "lines 1, 3" in str(refused.error)
    assert (box.workspace / "f").read_text() == "x\ny\nx\n"
    assert ok(await box.run(EditFile("f", "x", "z", replace_all=True))).detail["replacements"] == 2
    assert (box.workspace / "f").read_text() == "z\ny\nz\n"


async def test_edit_names_the_nearest_text(box: Box) -> None:
    (box.workspace / "f").write_text("def a():\n    return 1\n\n\ndef b():\n    return 2\n")
    spaces = await box.run(EditFile("f", "def b():\n  return 2\n", "x"))
    assert spaces.error_code == "no_match"
    assert spaces.detail["nearest_line"] == 5
    assert "only in white space" in str(spaces.error)
    assert "6:     return 2" in str(spaces.error)
    typo = await box.run(EditFile("f", "def bb():", "x"))
    assert typo.detail["nearest_line"] == 5
    nothing = await box.run(EditFile("f", "completely unrelated", "x"))
    assert nothing.error_code == "no_match"
    assert "nearest_line" not in nothing.detail


async def test_edit_keeps_windows_line_ends(box: Box) -> None:
    (box.workspace / "f").write_bytes(b"a\r\nb\r\nc\r\n")
    ok(await box.run(EditFile("f", "a\nb\n", "1\n2\n")))
    assert (box.workspace / "f").read_bytes() == b"1\r\n2\r\nc\r\n"


async def test_edit_refuses_what_makes_no_sense(box: Box) -> None:
    (box.workspace / "f").write_text("abc")
    assert (await box.run(EditFile("f", "", "x"))).error_code == "invalid"
    assert (await box.run(EditFile("f", "a", "a"))).error_code == "invalid"
    assert (await box.run(EditFile("missing", "a", "b"))).error_code == "not_found"
    with (box.workspace / "huge").open("wb") as file:
        file.truncate(17 * MIB)
    assert (await box.run(EditFile("huge", "a", "b"))).error_code == "too_large"


async def test_an_edit_is_made_once_per_id(box: Box) -> None:
    (box.workspace / "f").write_text("x")
    edit = EditFile("f", "x", "xx")
    outcomes = [await box.sandbox.perform(f"edit-{os.getpid()}-{id(box)}", edit) for _ in range(3)]
    assert [outcome.attached for outcome in outcomes] == [False, True, True]
    assert (box.workspace / "f").read_text() == "xx"


# --- list, glob, grep ---------------------------------------------------------------------------------------------


async def test_list_tells_kinds_sizes_and_targets(box: Box) -> None:
    (box.workspace / "b.txt").write_text("12345")
    (box.workspace / "a").mkdir()
    (box.workspace / "c").symlink_to("b.txt")
    outcome = ok(await box.run(ListDir()))
    assert [json.loads(line) for line in outcome.stdout.splitlines()] == [
        {"name": "a", "kind": "dir", "size": 0},
        {"name": "b.txt", "kind": "file", "size": 5},
        {"name": "c", "kind": "link", "size": 0, "target": "b.txt"},
    ]
    limited = ok(await box.run(ListDir(limit=2)))
    assert limited.detail == {"entries": 3, "shown": 2}


@pytest.mark.needs(Capability.SEARCH)
@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*.py", ".", ["top.py"]),
        ("**/*.py", ".", ["top.py", "src/a.py", "src/deep/b.py"]),
        ("src/**/*.py", ".", ["src/a.py", "src/deep/b.py"]),
        ("*.{py,md}", ".", ["README.md", "top.py"]),
        ("[tR]*", ".", ["README.md", "top.py"]),
        ("??.py", "src", []),
        ("?.py", "src", ["src/a.py"]),
        ("**", "src/deep", ["src/deep/b.py"]),
        (".hidden/*", ".", [".hidden/c.py"]),
        ("nothing", ".", []),
    ],
)
async def test_glob(box: Box, pattern: str, path: str, expected: list[str]) -> None:
    for name in ("top.py", "README.md", "src/a.py", "src/deep/b.py", ".hidden/c.py", ".git/d.py", "node_modules/e.py"):
        (box.workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (box.workspace / name).write_text("x")
    outcome = ok(await box.run(Glob(pattern, path)))
    found = outcome.stdout.decode().splitlines()
    if pattern == "**/*.py":
        found.remove(".hidden/c.py")
    assert sorted(found) == sorted(expected)


@pytest.mark.needs(Capability.SEARCH)
async def test_glob_refuses_to_climb(box: Box) -> None:
    assert (await box.run(Glob("../*"))).error_code == "outside_workspace"
    assert (await box.run(Glob("/etc/*"))).error_code == "outside_workspace"
    assert (await box.run(Glob("*", "missing"))).error_code == "not_found"


@pytest.mark.needs(Capability.SEARCH)
async def test_grep_finds_lines_in_path_order(box: Box) -> None:
    for name, text in (("b.txt", "one\nneedle b\n"), ("a/x.py", "needle a\n"), ("bin", "needle\0\n")):
        (box.workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (box.workspace / name).write_text(text)
    outcome = ok(await box.run(Grep("need.e")))
    lines = [line for line in outcome.stdout.decode().splitlines() if not line.startswith("bin")]
    assert lines == ["a/x.py:1:needle a", "b.txt:2:needle b"]
    assert ok(await box.run(Grep("needle", glob="*.py"))).stdout == b"a/x.py:1:needle a"
    assert ok(await box.run(Grep("needle", "a"))).stdout == b"a/x.py:1:needle a"
    assert ok(await box.run(Grep("needle", "a/x.py"))).stdout == b"a/x.py:1:needle a"
    assert ok(await box.run(Grep("absent"))).stdout == b""
    assert ok(await box.run(Grep("-e"))).stdout == b""


@pytest.mark.needs(Capability.SEARCH)
async def test_grep_is_bounded_and_explains_a_bad_pattern(box: Box) -> None:
    (box.workspace / "f").write_text("x\n" * 3000 + "y" * 5000 + "z\n")
    outcome = ok(await box.run(Grep("x", limit=100)))
    assert (outcome.detail["matches"], outcome.detail["cut"]) == (100, 1)
    assert len(ok(await box.run(Grep("yz"))).stdout) < 1000
    bad = await box.run(Grep("(unclosed"))
    assert bad.error_code == "invalid"
    assert "unclosed" in str(bad.error)
    assert (await box.run(Grep("x", "missing"))).error_code == "not_found"


@pytest.mark.needs(Capability.SEARCH)
async def test_grep_honors_gitignore_and_looks_into_hidden_files(box: Box) -> None:
    for command in ("git init -q .", "echo ignored > .gitignore", "echo needle | tee ignored .config .git/x"):
        assert (await box.sh(command)).exit_code == 0
    assert ok(await box.run(Grep("needle"))).stdout == b".config:1:needle"
