"""Git's answers, whatever the paths in them are."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.engine import git

NOT_NAMES = (b".", b"..", b".git")
NAME = st.binary(min_size=1, max_size=12).filter(lambda name: not {b"/"[0], 0} & set(name) and name not in NOT_NAMES)
NAMES = st.lists(NAME, min_size=1, max_size=5, unique=True)
PIECES = [b"a", b"b", b"", b"diff --git a/x b/x", b"@@ -1 +1 @@", b"-- x", b"\xff"]
LINES = st.lists(st.sampled_from(PIECES), max_size=30)
APPLY = git.command("apply", "--cached", "--recount", "--whitespace=nowarn", "-")


@settings(max_examples=25, deadline=None)
@given(names=NAMES, data=st.data())
def test_any_names_and_any_lines(
    tmp_path_factory: pytest.TempPathFactory, names: list[bytes], data: st.DataObject
) -> None:
    """Of real git, as the service runs it: every changed file is listed once, with hunks that apply."""
    folder = os.fsencode(tmp_path_factory.mktemp("r"))
    run(folder, "git init -q -b main; git config user.name a; git config user.email a@b")
    for name in names:
        Path(os.fsdecode(folder + b"/" + name)).write_bytes(b"\n".join(data.draw(LINES)))
    run(folder, "git add -A; git commit -qm one")
    for name in names:
        Path(os.fsdecode(folder + b"/" + name)).write_bytes(b"\n".join(data.draw(LINES)))
    status = git.parse_status(run(folder, git.status_command()), 100)
    raw, patch = git.diff_commands((), ())
    found = git.parse_diff(run(folder, raw), run(folder, patch))
    changed = {each.path for each in status.files if each.worktree in "MD"}
    assert [each.path for each in found] == sorted(changed, key=lambda name: name.encode("utf-8", "surrogateescape"))
    ids = [hunk.hunk_id for each in found for hunk in each.hunks]
    assert len(ids) == len(set(ids))
    if ids:
        chosen = frozenset(data.draw(st.lists(st.sampled_from(ids), unique=True, min_size=1)))
        run(folder, APPLY, git.patch_of(found, chosen))
        left = git.parse_diff(run(folder, raw), run(folder, patch))
        assert len([hunk for each in left for hunk in each.hunks]) == len(ids) - len(chosen)


def run(folder: bytes, command: str, stdin: bytes = b"") -> bytes:
    done = subprocess.run(["sh", "-c", command], cwd=folder, input=stdin, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_diff_of_files_that_changed_meanwhile_is_no_diff() -> None:
    raw = b":100644 100644 " + b"0" * 40 + b" " + b"1" * 40 + b" M\0f\0"
    with pytest.raises(ValueError, match="changed"):
        git.parse_diff(raw, b"")
    with pytest.raises(ValueError, match="unknown status"):
        git.parse_status(b"\0x what is this\0", 10)
