"""Attaching files as a person does."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import cast

import pytest

from cli.attaching import check_files, send_files
from cli.client import ApiClient
from cli.failures import RemoteFailure
from cli.invocation import Invocation
from milepost.domain.errors import ErrorKind, PayloadTooLarge
from tests.attachments import files
from tests.cli.conftest import NO_TOOLS, Milepost, milepost

__all__ = ["milepost"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_from_the_command_line(milepost: Milepost, tmp_path: Path) -> None:
    configure(milepost)
    paper, picture = tmp_path / "paper.pdf", tmp_path / os.fsdecode(b"odd \xff\n name.png")
    paper.write_bytes(files.pdf(["On wombats"]))
    picture.write_bytes(files.picture())
    missing = milepost.run("run", "look", "--attach", str(tmp_path / "none.pdf"), "--json")
    assert (missing.code, missing.error()["field"]) == (2, "attach")
    done = milepost.run("run", "look", "--attach", str(paper), "--attach", str(picture), "--json")
    assert done.code == 0, done.err
    turn = done.json()
    assert [item["name"] for item in turn["attachments"]] == ["paper.pdf", "odd ?\n name.png"]
    assert [item["state"] for item in turn["attachments"]] == ["ready", "ready"]
    session = turn["session_id"]
    shown = milepost.run("history", session)
    assert "Attached: paper.pdf" in shown.out and "odd ? name.png" in shown.out
    (hit,) = milepost.run("search", "wombats", "--kind", "attachment", "--json").json()["hits"]
    assert hit["turn_id"] == turn["turn_id"]

    more = milepost.run("attach", session, str(paper))
    assert more.code == 0 and "selected" in more.out
    once = milepost.run("attach", session, str(picture), "--once", "--json").json()["attachments"][0]
    listed = milepost.run("attachments", "list", session, "--json").json()["attachments"]
    assert [(item["scope"], item["selected"]) for item in listed] == [
        ("once", True),
        ("session", True),
        ("once", False),
        ("once", False),
    ]
    assert len(milepost.run("attachments", "list", session, "--selected", "--json").json()["attachments"]) == 2
    text = milepost.run("attachments", "show", listed[1]["attachment_id"], "--text")
    assert text.out.startswith("[Page 1]\nOn wombats")
    out = tmp_path / "got.png"
    assert milepost.run("attachments", "show", once["attachment_id"], "--output", str(out)).code == 0
    assert out.read_bytes() == picture.read_bytes()
    again = milepost.run("attachments", "show", listed[1]["attachment_id"], "--output", str(out), "--json")
    assert (again.code, again.error()["code"]) == (1, "target_not_empty")
    assert out.read_bytes() == picture.read_bytes()
    removed = milepost.run("attachments", "remove", once["attachment_id"], listed[2]["attachment_id"])
    assert removed.code == 0 and f"turn {turn['turn_id']} has it still" in removed.out
    assert len(milepost.run("attachments", "list", session, "--json").json()["attachments"]) == 3
    gone = milepost.run("attachments", "show", once["attachment_id"], "--json")
    assert (gone.code, gone.error()["code"]) == (1, "attachment_not_found")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_in_a_conversation(milepost: Milepost, tmp_path: Path) -> None:
    configure(milepost)
    note = tmp_path / "note with space.txt"
    note.write_text("a note")
    lines = f"/attach {tmp_path}/none\n/attach {note}\nlook\nand again\n/exit\n"
    done = milepost.run("chat", "--json", stdin=lines)
    assert done.code == 0, done.err
    first, second = [json.loads(line) for line in done.out.splitlines()]
    assert [item["name"] for item in first["attachments"]] == ["note with space.txt"]
    assert second["attachments"] == [] and first["session_id"] == second["session_id"]
    assert "is no file" in done.err


def configure(milepost: Milepost) -> None:
    (milepost.folder / "milepost.yaml").write_text(NO_TOOLS + "attachments: {ocr: false}\n")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_several_files_of_which_one_is_refused(milepost: Milepost, tmp_path: Path) -> None:
    configure(milepost)
    session = milepost.run("session", "new", "--json").json()["session_id"]
    good, empty = tmp_path / "good.txt", tmp_path / "empty.txt"
    good.write_text("good")
    empty.write_text("")
    for bad in (empty, tmp_path / "none.txt", tmp_path):
        done = milepost.run("attach", session, str(good), str(bad), "--json")
        assert (done.code, done.error()["code"], done.error()["field"]) == (2, "invalid_input", "attach")
    assert milepost.run("attachments", "list", session, "--json").json()["attachments"] == []


async def test_a_later_refusal_names_what_is_attached_already(tmp_path: Path) -> None:
    class Instance:
        """Takes one file."""

        taken = 0

        async def send_file(self, path: str, file: object, **params: object) -> dict[str, object]:
            if self.taken:
                raise RemoteFailure("The Session is closed.", code="session_closed", kind=ErrorKind.CONFLICT)
            self.taken += 1
            return {"attachment_id": "att_1", "name": params["name"]}

    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path in paths:
        path.write_text("text")
    left = list(paths)
    with pytest.raises(RemoteFailure, match=r"is closed\. Attached already: a\.txt \(att_1\)\.$"):
        await send_files(cast("ApiClient", Instance()), "ses_1", left, once=False)
    assert left == paths[1:]


def test_a_file_over_the_limit_is_refused_before_any_is_sent(tmp_path: Path) -> None:
    config = tmp_path / "milepost.yaml"
    config.write_text("attachments: {document_bytes: 1024}\n")
    good, large = tmp_path / "good.txt", tmp_path / "large.txt"
    good.write_text("good")
    large.write_text("x" * 1025)
    call = Invocation(as_json=True, config_file=config)
    check_files(call, [good])
    with pytest.raises(PayloadTooLarge, match=r"large\.txt' is too large\. .* 1,024 bytes"):
        check_files(call, [good, large])
