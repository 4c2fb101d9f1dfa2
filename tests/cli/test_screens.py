"""What commands print, from an instance whose answers are given."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from cli.client import ApiClient
from cli.commands.run import summarize
from cli.connection import Reached
from cli.invocation import Invocation
from cli.main import commands
from milepost.domain.errors import InvalidInput

Answer = Callable[[httpx.Request], Any]
Ask = Callable[..., Result]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ask:
    """Run a command in this process against the JSON documents that a function answers with."""
    monkeypatch.setenv("MILEPOST_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")

    def run(answer: Answer, *arguments: str) -> Result:
        @asynccontextmanager
        async def reach(*_: object, **__: object) -> AsyncIterator[Reached]:
            transport = httpx.MockTransport(lambda request: httpx.Response(200, json=answer(request)))
            client = ApiClient(transport, "token")
            try:
                yield Reached(client, None, embedded=False)
            finally:
                await client.close()

        monkeypatch.setattr("cli.connection.reach", reach)
        return CliRunner().invoke(commands, arguments)

    return run


def effect(number: int) -> dict[str, Any]:
    return {
        "effect_id": f"{number:064x}",
        "operation": "model:scripted/demo",
        "position": f"model/{number}",
        "state": "succeeded",
        "attempt": 1,
        "turn_id": "trn_0123456789abcdef0123456789abcdef",
    }


def effects_of(count: int) -> Answer:
    """A Session's effects, page by page."""

    def answer(request: httpx.Request) -> dict[str, Any]:
        start = int(request.url.params.get("cursor", "0"), 16)
        end = min(start + int(request.url.params["limit"]), count)
        assert end - start <= 100
        cursor = f"{end:064x}" if end < count else None
        return {"session_id": "ses_1", "effects": [effect(n) for n in range(start, end)], "next_cursor": cursor}

    return answer


@pytest.mark.parametrize(
    ("count", "options", "shown", "more"),
    [
        (250, (), 100, True),
        (100, (), 100, False),
        (250, ("--limit", "240"), 240, True),
        (3, ("--limit", "5"), 3, False),
    ],
)
def test_effects_are_listed_up_to_the_limit_over_pages(
    ask: Ask, count: int, options: tuple[str, ...], shown: int, more: bool
) -> None:
    done = ask(effects_of(count), "effects", "list", "ses_1", "--json", *options)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert ([item["effect_id"] for item in document["effects"]], document["truncated"]) == (
        [f"{n:064x}" for n in range(shown)],
        more,
    )
    plain = ask(effects_of(count), "effects", "list", "ses_1", *options)
    assert plain.exit_code == 0, plain.output
    assert ("There are more" in plain.stderr) is more


def turn_with(state: str, tools: list[dict[str, Any]], **changed: Any) -> dict[str, Any]:
    usage = {"input_tokens": 0, "cached_input_tokens": 0, "output_tokens": 0, "reasoning_tokens": 0, "total_tokens": 0}
    cost = {"amount": "0", "currency": "USD", "complete": True}
    turn = {"turn_id": "trn_1", "session_id": "ses_1", "number": 1, "state": state, "status": "working"}
    turn |= {"created_at": "now", "request": "Go", "output": "", "error": None, "temporal_url": "http://temporal/x"}
    turn |= {"superseded": False, "copied_from": None}
    return (
        turn
        | {
            "agents": [],
            "plans": [],
            "attachments": [],
            "tools": tools,
            "usage": usage | {"complete": True, "cost": cost},
        }
        | changed
    )


@pytest.mark.parametrize(
    ("turn", "state", "is_error", "line"),
    [
        ("running", "dispatched", False, "▸ bash make (running)"),
        ("interrupted", "dispatched", False, "! bash make (outcome unknown)"),
        ("running", "awaiting_approval", False, "? bash make (waits for approval)"),
        ("stopped", "awaiting_approval", False, "· bash make (not run)"),
        ("completed", "uncertain", True, "! bash make (outcome unknown)"),
        ("completed", "denied", True, "⊘ bash make (denied)"),
        ("stopped", "cancelled", True, "■ bash make (cancelled)"),
        ("completed", "succeeded", False, "✓ bash make"),
        ("completed", "succeeded", True, "✗ bash make"),
        ("completed", "failed", True, "✗ bash make"),
    ],
)
def test_only_a_call_that_succeeded_has_a_check_mark(
    ask: Ask, turn: str, state: str, is_error: bool, line: str
) -> None:
    shown = turn_with(turn, [{"tool": "bash", "arguments": "make", "state": state, "is_error": is_error}])
    page = {"session_id": "ses_1", "turns": [shown], "next_cursor": None}
    one = ask(lambda request: shown, "turn", "show", "trn_1")
    assert f"  {line}" in one.stdout.splitlines(), one.output
    assert f"  {line}" in ask(lambda request: page, "history", "ses_1").stdout.splitlines()


def test_history_shows_where_it_was_rewound(ask: Ask) -> None:
    rewinds = [
        {"to_number": 0, "last_number": 3, "superseded": 1, "reason": None},
        {"to_number": 1, "last_number": 2, "superseded": 1, "reason": "wrong [way]"},
    ]
    turns = [turn_with("completed", [], number=number, superseded=number == 3) for number in (4, 3, 1)]
    page = {"session_id": "ses_1", "turns": turns, "rewinds": rewinds, "next_cursor": None}
    lines = [
        line
        for line in ask(lambda request: page, "history", "ses_1").stdout.splitlines()
        if line[:4] in ("Turn", "── R")
    ]
    assert lines[2].startswith("Turn 3 completed · superseded · now")
    assert [line.split(" · ")[0] for line in lines] == [
        "Turn 4 completed",
        "── Rewound to before the first turn; 1 turn up to 3 no longer counts ──",
        "Turn 3 completed",
        "── Rewound to turn 1; 1 turn up to 2 no longer counts: wrong [way] ──",
        "Turn 1 completed",
    ]
    cut = ask(lambda request: page, "history", "ses_1", "--limit", "1", "--json").stdout
    assert [item["last_number"] for item in json.loads(cut)["rewinds"]] == [3]


def test_a_copied_turn_links_to_no_workflow(ask: Ask) -> None:
    shown = turn_with("completed", [], copied_from="trn_0")
    text = ask(lambda request: shown, "turn", "show", "trn_1").stdout
    assert "copied from trn_0" in text and "http://temporal" not in text
    assert "http://temporal" in ask(lambda request: shown | {"copied_from": None}, "turn", "show", "trn_1").stdout


def test_ids_are_never_cut_or_broken(ask: Ask) -> None:
    session = "ses_0123456789abcdef0123456789abcdef"
    listed = {
        "session_id": session,
        "status": "active",
        "agents": ["default"],
        "title": "A title that is rather long\nand has two lines",
        "workspace": {"path": "/a/folder/that/lies/rather/deep/below/the/root/folder/so/that/lines/get/long"},
    }
    page = {"sessions": [listed, listed | {"title": "日本"}], "next_cursor": None}
    lines = ask(lambda request: page, "session", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["SESSION", session, session], "one line for each row"
    for line in lines[1:]:
        assert line.endswith("/lines/get/long")
    lines = ask(effects_of(2), "effects", "list", "ses_1").stdout.splitlines()
    assert [line.split() for line in lines[1:]] == [
        [f"{n:064x}", "model:scripted/demo", f"model/{n}", "succeeded", "1", "trn_0123456789abcdef0123456789abcdef"]
        for n in range(2)
    ]
    assert len({line.index("succeeded") for line in lines[1:]}) == 1, "columns are aligned"


@pytest.mark.parametrize(
    ("total", "complete", "amount", "summary", "history"),
    [
        (0, False, "0", "1 tool call · tokens unknown · cost unknown\n", "tokens unknown · cost unknown · http"),
        (
            1,
            True,
            "0",
            "2 model calls · 1 tool call · 1 token\n",
            "1 input, 0 cached, 0 output, 0 reasoning tokens · 0",
        ),
        (
            5,
            False,
            "1.5",
            "· at least 5 tokens · at least 1.5000 USD\n",
            "(known subtotal) · at least 1.5000 USD · http",
        ),
        (9, True, "0.000000123", "· 9 tokens · 0.00000012 USD\n", "0 reasoning tokens · 0.00000012 USD · http"),
    ],
)
def test_numbers_have_their_nouns_and_what_is_unknown_is_said_so(
    capsys: pytest.CaptureFixture[str], ask: Ask, total: int, complete: bool, amount: str, summary: str, history: str
) -> None:
    call = {"tool": "bash", "arguments": "make", "state": "succeeded", "is_error": False}
    turn = turn_with("completed", [call], agents=[{"rounds": 1, "calls": 2, "memory": None}])
    turn["usage"] |= {"input_tokens": total, "total_tokens": total, "complete": complete}
    turn["usage"]["cost"] |= {"amount": amount, "complete": complete}
    summarize(Invocation(as_json=False, config_file=None), turn)
    assert summary in capsys.readouterr().out
    assert history in ask(lambda request: turn, "turn", "show", "trn_1").stdout


def test_help_names_values_as_the_documentation_does(ask: Ask) -> None:
    for words, shown in (
        (("run",), ["--workspace DIR", "--agent ID", "--script FILE"]),
        (("session", "list"), ["--limit N"]),
        (("effects", "list"), ["--turn TURN", "--state STATE", "--limit N"]),
    ):
        text = ask(lambda request: {}, *words, "--help").stdout
        assert [value for value in shown if value not in text] == []


def test_an_error_and_its_fix_are_two_sentences() -> None:
    said = InvalidInput("Provider 'far' answered 401: Bad key [hidden]", fix="Check the key.")
    assert str(said) == "Provider 'far' answered 401: Bad key [hidden]. Check the key."
    assert str(InvalidInput("No.", fix="Yes.")) == "No. Yes."
    assert str(InvalidInput("as it was said")) == "as it was said"


def test_a_rewind_tells_what_it_does_and_what_it_cannot_undo(ask: Ask) -> None:
    sent: list[Any] = []

    def answer(request: httpx.Request) -> Any:
        sent.append(json.loads(request.content))
        return {
            "dry_run": sent[-1]["dry_run"],
            "rewind_id": None,
            "session_id": "ses_1",
            "to_number": 1,
            "superseded": 1,
            "turns": [{"turn_id": "trn_2", "number": 2, "state": "completed", "request": "mail [it]"}],
            "workspace_calls": [{"operation": "tool:bash", "state": "succeeded", "count": 2}],
            "outside": [{"operation": "tool:send_mail", "state": "uncertain", "count": 1}],
            "files": None,
        }

    shown = ask(answer, "session", "rewind", "ses_1", "--to", "1", "--dry-run").output
    assert sent[-1] == {"to_number": 1, "files": False, "overwrite": False, "dry_run": True}
    assert "1 turn would be superseded" in shown and "mail [it]" in shown
    assert "2 x tool:bash (succeeded)" in shown and "1 x tool:send_mail (uncertain)" in shown
    assert "--files restores them too" in shown
    done = ask(answer, "session", "rewind", "ses_1", "--to", "trn_1")
    assert done.exit_code == 0
    assert "milepost session fork ses_1 --at 1 --files --workspace DIR" in done.output
    assert sent[-1] == {"to_turn": "trn_1", "files": False, "overwrite": False, "dry_run": False}


def test_a_retry_that_is_only_tried(ask: Ask) -> None:
    plan = {"dry_run": True, "session_id": "ses_1", "retry_of": "trn_1", "request": "do it", "request_truncated": False}
    shown = ask(lambda request: plan, "turn", "retry", "trn_1", "--dry-run").output
    assert "ses_1" in shown and "do it" in shown


def test_a_fork_tells_its_session(ask: Ask) -> None:
    report = {
        "dry_run": False,
        "turns": 2,
        "to_number": 2,
        "omitted": 0,
        "tree": None,
        "state": "done",
        "error": None,
        "session": {"session_id": "ses_2", "workspace": {"path": "/work"}},
    }
    shown = ask(lambda request: report, "session", "fork", "ses_1", "--at", "2")
    assert shown.exit_code == 0 and "ses_2" in shown.output
    failed = report | {"state": "failed", "error": "The folder is not empty any more."}
    shown = ask(lambda request: failed, "session", "fork", "ses_1", "--files", "-w", "x")
    assert shown.exit_code == 1 and "not empty any more" in shown.output


def test_a_diff_shows_files_hunks_and_what_others_did(ask: Ask) -> None:
    hunk = {
        "old_start": 1,
        "old_lines": 1,
        "new_start": 1,
        "new_lines": 1,
        "heading": "[x]",
        "lines": [
            {"kind": "-", "text": "old \x1b[31m", "ended": True},
            {"kind": "+", "text": "[new]", "ended": True},
        ],
    }
    file = {
        "path": "a\nb",
        "status": "modified",
        "old_mode": "100644",
        "new_mode": "100755",
        "binary": False,
        "additions": 1,
        "deletions": 1,
        "shared": True,
        "truncated": False,
        "hunks": [hunk],
    }
    found = {
        "files": [file],
        "outside_before": ["mine"],
        "outside_during": [],
        "unclear": [],
        "problems": [],
        "omitted": [],
    }
    shown = ask(lambda request: found, "turn", "diff", "trn_1").output
    assert "+1 -1" in shown and "100644 -> 100755" in shown and "somebody else changed it too" in shown
    assert "@@ -1,1 +1,1 @@ [x]" in shown and "+[new]" in shown and "\x1b[31m" not in shown
    assert "before the turn's first call: mine" in shown
