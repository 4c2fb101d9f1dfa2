"""The workflow of a pass on a server whose clock jumps, and the rows of agents' lives and consolidations."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from milepost.contracts.activities import (
    CONSOLIDATE,
    FIND_IDLE,
    ConsolidateParams,
    ConsolidateResult,
    ConsolidationResult,
    FindIdleParams,
    FindIdleResult,
    IdleAgent,
)
from milepost.domain.consolidation import Consolidation, ConsolidationState, Promotion
from milepost.domain.errors import ConsolidationNotFound
from milepost.domain.lives import AgentStop
from milepost.domain.sessions import Session, SessionMode, SessionStatus, Workspace
from milepost.domain.usage import Usage
from milepost.ports.ledger import Ledger, LedgerTx
from tests.histories.conftest import time_skipping, time_skipping_server
from workers.runtime import runner
from workflows.consolidation import ConsolidationWorkflow

__all__ = ["time_skipping", "time_skipping_server"]

QUEUE = "q"


async def test_one_after_another_and_a_failure_keeps_nobody_waiting(
    time_skipping: Client, time_skipping_server: WorkflowEnvironment
) -> None:
    calls: list[tuple[str, str, int]] = []
    working = 0

    @activity.defn(name=FIND_IDLE.name)
    async def find(params: FindIdleParams) -> FindIdleResult:
        return FindIdleResult(tuple(IdleAgent(f"ses_{n}", "coder") for n in range(3)), QUEUE)

    @activity.defn(name=CONSOLIDATE.name)
    async def consolidate(params: ConsolidateParams) -> ConsolidateResult:
        nonlocal working
        working += 1
        assert working == 1, "one at a time"
        try:
            calls.append((params.session_id, params.key, activity.info().attempt))
            if params.session_id == "ses_1":
                raise ApplicationError("down", type="model_unavailable", next_retry_delay=timedelta(hours=1))
            return ConsolidateResult(f"cns_{params.session_id}", "applied", 2)
        finally:
            working -= 1

    before = await time_skipping_server.get_current_time()
    async with Worker(
        time_skipping,
        task_queue=QUEUE,
        workflows=[ConsolidationWorkflow],
        activities=[find, consolidate],
        workflow_runner=runner(),
    ):
        done = await time_skipping.execute_workflow(
            ConsolidationWorkflow.run, id="pass", task_queue=QUEUE, result_type=ConsolidationResult
        )
    assert done == ConsolidationResult(2, 4, 1)
    assert [session for session, _, _ in calls] == ["ses_0", "ses_1", "ses_1", "ses_1", "ses_2"]
    assert [attempt for _, _, attempt in calls] == [1, 1, 2, 3, 1]
    assert len({key for _, key, _ in calls}) == 1, "the key of the pass"
    assert await time_skipping_server.get_current_time() - before > timedelta(hours=2)


def _session(tx: LedgerTx) -> None:
    workspace = tx.sessions.workspace("/x", Workspace("wsp", "/x", 1))
    tx.sessions.add(Session("ses", workspace, "t", SessionMode.SINGLE, SessionStatus.ACTIVE, ("a",), None, 1, None))


def _new(name: str, at: int, agent: str = "a") -> Consolidation:
    return Consolidation(name, "ses", agent, ConsolidationState.RUNNING, "trn", 1, at, at, at, 3)


async def test_rows_of_consolidations(ledger: Ledger) -> None:
    await ledger.write(_session)
    for name, at, agent in (("c1", 1, "a"), ("c3", 2, "a"), ("c2", 2, "a"), ("c4", 3, "\0é")):
        made = await ledger.write(lambda tx: tx.consolidations.add(_new(name, at, agent)))  # noqa: B023
        assert made == _new(name, at, agent)
    changed = replace(
        _new("c1", 1),
        state=ConsolidationState.APPLIED,
        updated_at=9,
        promotions=(Promotion("human", "x\0\ud800", ("r",), 1, version=2),),
        usage=Usage(1, 2, 3, 4, complete=False),
    )
    await ledger.write(lambda tx: tx.consolidations.save(changed))
    assert await ledger.write(lambda tx: tx.consolidations.add(_new("c1", 77))) == changed, "an id is added once"

    def ids(found: list[Consolidation]) -> list[str]:
        return [item.consolidation_id for item in found]

    def page(before: str | None, limit: int, state: ConsolidationState | None = None) -> object:
        return lambda tx: ids(tx.consolidations.page(session_id="ses", state=state, before=before, limit=limit))

    assert await ledger.read(page(None, 2)) == ["c4", "c3"]  # type: ignore[arg-type]
    assert await ledger.read(page("c3", 9)) == ["c2", "c1"]  # type: ignore[arg-type]
    assert await ledger.read(page(None, 9, ConsolidationState.APPLIED)) == ["c1"]  # type: ignore[arg-type]
    assert ids(await ledger.read(lambda tx: tx.consolidations.newest("ses", "a", 2))) == ["c3", "c2"]
    assert ids(await ledger.read(lambda tx: tx.consolidations.newest("ses", "\0é", 2))) == ["c4"]
    with pytest.raises(ConsolidationNotFound):
        await ledger.read(lambda tx: tx.consolidations.get("c9"))


async def test_rows_of_stopped_agents(ledger: Ledger) -> None:
    stop = AgentStop("a\0é", 5, "me", "be\0cause")
    assert await ledger.write(lambda tx: tx.lives.stop(stop))
    assert not await ledger.write(lambda tx: tx.lives.stop(replace(stop, actor="other")))
    assert await ledger.read(lambda tx: tx.lives.stopped("a\0é")) == stop
    assert await ledger.read(lambda tx: tx.lives.all_stopped()) == {"a\0é": stop}
    assert await ledger.read(lambda tx: tx.lives.stopped("a")) is None
    assert await ledger.write(lambda tx: tx.lives.start("a\0é"))
    assert not await ledger.write(lambda tx: tx.lives.start("a\0é"))
