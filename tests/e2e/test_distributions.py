"""The scripted agent at work on released projects: it edits them and runs their own tests in the container."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.distributions import Distribution, commit, git
from tests.e2e.home import Home, Json, call, cards

pytestmark = [pytest.mark.podman, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("podman_root")]

IDNA = Distribution("idna", "3.10", "12f65c9b470abda6dc35cf8e63cc574b1c52b11df2c86030af0ac09b01b13ea9")
COLORAMA = Distribution("colorama", "0.4.6", "08695f5cb7ed6e0531a20572697297273c47b8cae5a63ffc6d6ed5c201be6e44")
PATHSPEC = Distribution("pathspec", "1.1.1", "17db5ecd524104a120e173814c90367a96a98d07c45b2e10c2f3919fff91bf5a")

Unpack = Callable[[Distribution], Path]


@pytest.fixture
def unpack(home: Home) -> Unpack:
    return lambda distribution: distribution.unpack(home.work)


def require_complete(home: Home, turn: Json, request: str) -> Json:
    """The turn's History entry, which has everything that the command reported and that a person wants to know."""
    history = home.run("history", turn["session_id"], "--json").document
    (entry,) = history["turns"]
    for name in ("turn_id", "state", "output", "usage", "tools", "workflow_id"):
        assert entry[name] == turn[name], name
    # What the command prints may be older than what its end still writes into the agents' memory.
    for told, kept in zip(turn["agents"], entry["agents"], strict=True):
        assert {name for name in kept if told[name] != kept[name]} <= {"memory"}
        assert kept["memory"]["written"]
    assert entry["request"] == request and entry["state"] == "completed" and not entry["superseded"]
    assert entry["usage"]["complete"] and entry["usage"]["output_tokens"] > 0
    assert entry["error"] is None and entry["ended_at"] is not None
    assert all(card["effect_id"] and card["arguments"] and card["preview"] for card in entry["tools"])
    assert not any(agent["partial"] for agent in entry["agents"])
    return dict(entry)


def previews(entry: Json, tool: str) -> list[Any]:
    return [card["preview"] for card in entry["tools"] if card["tool"] == tool]


def test_a_planted_bug_is_found_by_the_tests_and_corrected(home: Home, unpack: Unpack) -> None:
    project = unpack(IDNA)
    source = project / "idna" / "core.py"
    released = source.read_text("utf-8")
    right, wrong = "    if len(label) > 63:\n", "    if len(label) > 64:\n"
    assert released.count(right) == 1
    source.write_text(released.replace(right, wrong), "utf-8")
    commit(project, "Plant a bug")
    tests = "python3 -m unittest 2>&1 | tail -n 4; exit ${PIPESTATUS[0]}"
    script = home.script(
        {"text": "I run the tests first.", "calls": [call("bash", command=tests)]},
        {"calls": [call("grep", pattern="def valid_label_length", path="idna"), call("list_dir", path="idna")]},
        {"calls": [call("read_file", path="idna/core.py", offset=55, limit=10)]},
        {"text": "Labels have 63 bytes.", "calls": [call("edit_file", path="idna/core.py", old=wrong, new=right)]},
        {"calls": [call("bash", command=tests)]},
        {"text": "The limit of a label was 64 instead of 63; with 63 all tests pass."},
    )
    request = "Some tests fail. Find out why and correct it."
    entry = require_complete(home, home.turn(request, project, "--script", script), request)
    assert cards(entry) == [
        ("bash", "failed"),
        ("grep", "succeeded"),
        ("list_dir", "succeeded"),
        ("read_file", "succeeded"),
        ("edit_file", "succeeded"),
        ("bash", "succeeded"),
    ]
    before, after = previews(entry, "bash")
    assert "FAILED (failures=" in before and "[exit code 1]" in before
    assert "Ran 6256 tests" in after and "\nOK" in after and "exit code" not in after
    assert "idna/core.py:" in previews(entry, "grep")[0]
    assert wrong in previews(entry, "read_file")[0]
    assert source.read_text("utf-8") == released
    assert git(project, "status", "--porcelain") == " M idna/core.py\n"
    assert git(project, "diff", "--numstat") == "1\t1\tidna/core.py\n"
    assert entry["output"].startswith("The limit of a label was 64")
    assert entry["agents"][0]["rounds"] == 6


def test_a_function_is_added_with_a_test_of_its_own(home: Home, unpack: Unpack) -> None:
    project = unpack(COLORAMA)
    released = (project / "colorama" / "ansi.py").read_text("utf-8")
    before = "def clear_screen(mode=2):\n"
    added = "def set_icon_name(name):\n    return OSC + '1;' + name + BEL\n\n"
    test = (
        "from unittest import TestCase\n\nfrom ..ansi import set_icon_name\n\n\nclass IconNameTest(TestCase):\n\n"
        "    def testIconName(self):\n        self.assertEqual(set_icon_name('täst'), '\\033]1;täst\\007')\n"
    )
    tests = "python3 -m unittest discover -v -p '*_test.py' 2>&1 | grep -E 'testIconName|^Ran|^OK|^FAILED'"
    script = home.script(
        {
            "text": "I look at the module and at a test.",
            "calls": [
                call("read_file", path="colorama/ansi.py"),
                call("read_file", path="colorama/tests/ansi_test.py", limit=20),
                call("glob", pattern="colorama/tests/*_test.py"),
            ],
        },
        {
            "calls": [
                call("edit_file", path="colorama/ansi.py", old=before, new=added + before),
                call("write_file", path="colorama/tests/icon_test.py", content=test),
                call("bash", command=tests),
            ]
        },
        {"text": "Added set_icon_name() and a test."},
    )
    request = "Add a function that sets the icon's name."
    entry = require_complete(home, home.turn(request, project, "--script", script), request)
    assert {state for _, state in cards(entry)} == {"succeeded"}
    assert [tool for tool, _ in cards(entry)][3:] == ["edit_file", "write_file", "bash"]
    (ran,) = previews(entry, "bash")
    assert "testIconName" in ran and "... ok" in ran and "Ran 53 tests" in ran and "\nOK" in ran
    assert len(previews(entry, "glob")[0].splitlines()) == 5
    assert (project / "colorama" / "ansi.py").read_text("utf-8") == released.replace(before, added + before)
    assert (project / "colorama" / "tests" / "icon_test.py").read_text("utf-8") == test
    assert git(project, "status", "--porcelain") == " M colorama/ansi.py\n?? colorama/tests/icon_test.py\n"
    assert git(project, "diff", "--numstat") == "3\t0\tcolorama/ansi.py\n"


def test_a_change_over_several_files_by_edits_and_by_shell(home: Home, unpack: Unpack) -> None:
    project = unpack(PATHSPEC)
    released = (project / "pathspec" / "util.py").read_text("utf-8")
    old = "def normalize_file(\n"
    new = (
        "def is_hidden(path: str) -> bool:\n"
        '\t"""\n\tChecks whether any part of the path begins with a dot.\n\t"""\n'
        "\treturn any(part.startswith('.') for part in path.split('/') if part not in {'.', '..'})\n\n\n"
    )
    assert released.count(old) == 1
    tests = "python3 -m pytest -q --no-header -p no:cacheprovider tests"
    check = "python3 -c \"from pathspec.util import is_hidden as h; print(h('a/.b/c'), h('../a'))\""
    script = home.script(
        {"calls": [call("grep", pattern="^def ", path="pathspec/util.py"), call("read_file", path="CHANGES_1.in.rst")]},
        {"calls": [call("edit_file", path="pathspec/util.py", old=old, new=new + old)]},
        {"calls": [call("bash", command="sed -i 's/^1\\.1\\.1/1.1.2/' CHANGES_1.in.rst && git diff --stat")]},
        {"calls": [call("bash", command=check), call("bash", command=tests)]},
        {"text": "Added is_hidden()."},
    )
    request = "Add a function that tells hidden paths."
    turn = home.turn(request, project, "--script", script)
    entry = require_complete(home, turn, request)
    assert {state for _, state in cards(entry)} == {"succeeded"}
    diff, checked, ran = previews(entry, "bash")
    assert "pathspec/util.py" in diff and "CHANGES_1.in.rst" in diff, "Git works inside of the sandbox"
    assert checked.strip() == "True False"
    assert "151 passed" in ran
    assert (project / "pathspec" / "util.py").read_text("utf-8") == released.replace(old, new + old)
    assert git(project, "status", "--porcelain") == " M CHANGES_1.in.rst\n M pathspec/util.py\n"
    assert git(project, "fsck") == ""


def test_an_archive_with_another_digest_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEPOST_TEST_CACHE", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    COLORAMA.archive()
    wrong = Distribution(COLORAMA.name, COLORAMA.version, "0" * 64)
    with pytest.raises(pytest.skip.Exception, match="registry"):
        wrong.archive()
