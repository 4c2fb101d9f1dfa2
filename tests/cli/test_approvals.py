"""Approvals, policies and reconciliation on the command line, and the end of a command that needs a person."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from cli.client import ApiClient
from cli.commands.run import exit_of_turn
from cli.connection import Reached
from cli.failures import Exit
from cli.follow import Position
from cli.live import LiveView
from cli.main import commands
from cli.questions import Questions
from cli.turning import Order, one_turn
from milepost.domain.effects import EffectClass, EffectState
from milepost.domain.tools import Approval as ApprovalPolicy
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.services.gate import Gate, pass_gate
from milepost.storage import Hub, open_ledger
from tests.api.stack import Work
from tests.cli.conftest import NO_TOOLS
from tests.support.postgres_server import run_apart

NOW = 1_900_000_000_000_000

Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process on a data root of its own; its document, or with `code` its error."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "milepost.yaml").write_text(NO_TOOLS)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MILEPOST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "160")

    def call(*arguments: str, code: int = 0) -> Any:
        result = CliRunner().invoke(commands, [*arguments, "--json"])
        assert result.exit_code == code, result.output
        if code == 0:
            return json.loads(result.stdout)
        return json.loads(result.stderr.strip().splitlines()[-1])["error"]

    return call


def written(home: Path, session: str, turn_id: str) -> tuple[str, str]:
    """What a worker would have written: an approval that waits, and a call whose outcome is unknown; their ids."""
    (path,) = home.glob("*.db")

    async def write() -> tuple[str, str]:
        ledger: Ledger = await open_ledger(f"sqlite:///{path}", Hub())
        work = Work(ledger, session, turn_id)
        await work.claim()
        asked = work.spec("tool.1.0", "tool:bash", EffectClass.ATTACHABLE)
        lost = work.spec("tool.1.1", "tool:bash", EffectClass.ATTACHABLE)
        gate = Gate(ApprovalPolicy.ASK, "bash", 1, 0, '{"command":"make"}', 3600)

        def body(tx: LedgerTx) -> str:
            tx.effects.dispatch(lost, NOW, "worker")
            tx.effects.settle(lost.effect_id, 1, EffectState.UNCERTAIN, NOW, None)
            held = pass_gate(tx, asked, gate, None, NOW)
            assert held is not None and held.approval is not None
            return held.approval.approval_id

        approval_id = await ledger.write(body)
        await ledger.close()
        return approval_id, lost.effect_id

    return run_apart(write())


def test_answers_rules_and_reconciliation_without_an_instance(run: Run, tmp_path: Path) -> None:
    session = run("session", "new")["session_id"]
    turn_id = run("turn", "send", session, "do it", "--detach")["turn_id"]
    approval_id, effect_id = written(tmp_path / "home", session, turn_id)
    assert run("turn", "show", turn_id)["status"] in ("waiting_for_person", "recovering")

    (listed,) = run("approvals", "list", "--session", session)["approvals"]
    assert (listed["approval_id"], listed["state"], listed["tool"]) == (approval_id, "pending", "bash")
    shown = CliRunner().invoke(commands, ["approvals", "list", "--state", "pending"])
    assert approval_id in shown.stdout and "make" in shown.stdout
    answer = ("approvals", "reject", approval_id, "--reason", "no", "--actor", "anna", "--remember", "agent_tool")
    rejected = run(*answer)
    assert (rejected["state"], rejected["actor"], rejected["reason"]) == ("rejected", "api:anna", "no")
    assert run("approvals", "approve", approval_id, code=1)["code"] == "approval_resolved"
    assert run("approvals", "approve", "apr_0", code=1)["code"] == "approval_not_found"

    made = run("policies", "add", "allow", "--tool", "bash", "--once")
    rules = run("policies", "list")["rules"]
    assert [rule["rule_id"] for rule in rules] == [made["rule_id"], rejected["rule_id"]]
    assert (rules[1]["verdict"], rules[1]["agent"], rules[1]["tool"]) == ("deny", "coder", "bash")
    assert run("policies", "revoke", rejected["rule_id"], "--actor", "ben")["revoked_by"] == "api:ben"
    assert [rule["rule_id"] for rule in run("policies", "list")["rules"]] == [made["rule_id"]]
    assert len(run("policies", "list", "--all")["rules"]) == 2
    assert run("policies", "add", "allow", code=2)["field"] == "tool"
    table = CliRunner().invoke(commands, ["policies", "list", "--all"]).stdout
    assert "revoked" in table and "allow once" in table

    uncertain = CliRunner().invoke(commands, ["effects", "list", session, "--state", "uncertain"])
    assert effect_id in uncertain.stdout, uncertain.output
    facts = ("--resolution", "applied", "--result", "done", "--evidence", "seen")
    assert run("effects", "reconcile", effect_id, *facts)["state"] == "succeeded"
    assert run("effects", "reconcile", effect_id, *facts, code=1)["code"] == "effect_not_uncertain"
    (path,) = (tmp_path / "home").glob("*.db")
    with sqlite3.connect(path) as conn:
        kinds = {kind for (kind,) in conn.execute("SELECT kind FROM outbox")}
    assert "answer_approval" in kinds, "the turn's workflow hears of it when an instance runs"


def frame(type_: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"type": type_, "cursor": "1.0", "data": {"turn_id": "t", **data}}


def event(kind: str, **payload: Any) -> dict[str, Any]:
    return frame("event", {"type": kind, "payload": payload})


def status(name: str) -> dict[str, Any]:
    return frame("status", {"active_turn": {"turn_id": "t", "status": name}})


ASKED = event("approval.requested", approval_id="apr_1", tool="bash", arguments="{}")
WAITS = status("waiting_for_person")


@pytest.mark.parametrize(
    ("frames", "waits"),
    [
        ([ASKED], False),
        ([WAITS], False),
        ([ASKED, WAITS], True),
        ([event("tool.started", effect_id="e"), ASKED, WAITS], False),
        ([event("tool.started", effect_id="e"), ASKED, WAITS, event("tool.finished", effect_id="e")], True),
        ([ASKED, WAITS, event("approval.resolved", approval_id="apr_1"), WAITS], False),
        ([ASKED, status("stopping")], False),
    ],
)
def test_when_a_turn_does_nothing_but_wait(frames: list[dict[str, Any]], waits: bool) -> None:
    questions = Questions()
    for each in frames:
        questions.frame(each)
    assert questions.only_waits is waits


class Instance:
    """An instance whose turn asks, and ends only when it is stopped."""

    def __init__(self) -> None:
        self.posted: list[str] = []

    async def post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        self.posted.append(path)
        return {"session_id": "s", "turn_id": "t"}

    async def get(self, path: str, **_: Any) -> dict[str, Any]:
        return {"turn_id": "t", "state": "stopped" if self.stopped else "running"}

    async def frames(self, session_id: str, after: str, until_turn: str) -> Any:
        for each in [ASKED, WAITS, event("turn.stopped")] if self.stopped else [ASKED, WAITS]:
            yield each

    @property
    def stopped(self) -> bool:
        return any(path.endswith("/stop") for path in self.posted)


@pytest.mark.parametrize("embedded", [True, False])
async def test_a_command_without_a_terminal_leaves_a_turn_that_only_waits(
    embedded: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    instance = Instance()
    reached = Reached(cast(ApiClient, instance), None, embedded)
    order = Order("do it", session_id="s")
    turn = await one_turn(reached, order, view=LiveView(), position=Position(), patient=False)
    assert [asked["approval_id"] for asked in turn["approvals"]] == ["apr_1"]
    assert (turn["state"], instance.stopped) == (("stopped", True) if embedded else ("running", False))
    assert exit_of_turn(turn) is Exit.NEEDS_PERSON
    out = capsys.readouterr().out
    assert "milepost approvals approve apr_1" in out and "milepost approvals reject apr_1" in out
