"""Histories of this and earlier releases replay on the present workflow code, under the product's own settings."""

from __future__ import annotations

import base64
import getpass
import json
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, WorkflowReplayResult
from temporalio.workflow import NondeterminismError

from milepost.bootstrap.system import release
from milepost.contracts.activities import (
    BRIEF_PART,
    CALL_MODEL,
    END_PART,
    FINISH_TURN,
    PLAN_SUBTASKS,
    PREPARE_TURN,
    RUN_TOOL,
)
from milepost.domain.errors import MilepostError
from milepost.temporal.client import TemporalAddress
from milepost.temporal.converter import DATA_CONVERTER
from tests.histories.bounds import oversize
from tests.histories.planted import FinishesFirst, PausesBeforeTheModel
from tests.histories.record import RECORDED, history_of, scrubbed, to_text
from tests.histories.scenarios import SCENARIOS
from workers.runtime import WORKFLOWS, runner

FILES = sorted(RECORDED.glob("*/*.json"))
TEAMS = {scenario.name for scenario in SCENARIOS if scenario.agents}
ALONE = [path for path in FILES if path.stem not in TEAMS]
"""Histories of turns whose one agent runs in the turn's own workflow."""


def load(path: Path) -> WorkflowHistory:
    text = path.read_text("utf-8")
    return WorkflowHistory.from_json(json.loads(text)["workflowId"], text)


async def replay(history: WorkflowHistory, workflows: Sequence[type] = WORKFLOWS) -> WorkflowReplayResult:
    replayer = Replayer(
        workflows=list(workflows),
        workflow_runner=runner(),
        data_converter=DATA_CONVERTER,
        workflow_failure_exception_types=[MilepostError],
    )
    return await replayer.replay_workflow(history, raise_on_replay_failure=False)


def test_every_scenario_of_this_release_is_recorded() -> None:
    names = {path.stem for path in FILES if path.parent.name == release()}
    assert names == {scenario.name for scenario in SCENARIOS}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_a_recorded_history_replays(path: Path) -> None:
    result = await replay(load(path))
    assert result.replay_failure is None


@pytest.mark.parametrize(
    ("planted", "failure"), [(PausesBeforeTheModel, NondeterminismError), (FinishesFirst, Exception)]
)
@pytest.mark.parametrize("path", ALONE, ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_a_changed_command_order_is_noticed(path: Path, planted: type, failure: type[Exception]) -> None:
    result = await replay(load(path), [planted])
    assert isinstance(result.replay_failure, failure)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_recorded_history_is_small_and_names_no_machine(path: Path) -> None:
    assert path.stat().st_size < 100_000
    assert oversize(load(path)) == []
    document = json.loads(path.read_text("utf-8"))
    assert scrubbed(document) == document
    text = "\n".join(_texts(document))
    for word in {socket.gethostname(), f"{getpass.getuser()}@", "/tmp/", "/home/", "Traceback", ".py", "127.0.0.1"}:
        assert word not in text
    assert not re.search(r"\d+@\w", text), "an SDK's default identity"


def _texts(value: Any) -> list[str]:
    """Every text of a document, payloads decoded."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    if not isinstance(value, dict):
        return []
    texts = [text for item in value.values() for text in _texts(item)]
    if isinstance(value.get("data"), str):
        texts.append(base64.b64decode(value["data"]).decode("utf-8", "replace"))
    return texts


def test_the_recorded_turns_hold_what_they_are_recorded_for() -> None:
    documents = {path.stem: json.loads(path.read_text("utf-8")) for path in FILES if path.parent.name == release()}
    types = {name: [event["eventType"] for event in document["events"]] for name, document in documents.items()}
    tools = documents["ten_tools_and_a_huge_failure"]["events"]
    scheduled = [event.get("activityTaskScheduledEventAttributes") for event in tools]
    activities = [each["activityType"]["name"] for each in scheduled if each]
    assert (activities.count(CALL_MODEL.name), activities.count(RUN_TOOL.name)) == (2, 10)
    assert "EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED" in types["stopped"]
    assert "EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED" in types["stopped"]
    asked = types["approved_and_rejected"]
    assert asked.count("EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED") == 2
    assert asked.count("EVENT_TYPE_TIMER_STARTED") == asked.count("EVENT_TYPE_TIMER_CANCELED") == 2
    for name, document in documents.items():
        text = "\n".join(_texts(document))
        own = {"worker": BRIEF_PART, "coordinator_itself": PLAN_SUBTASKS}.get(name, PREPARE_TURN)
        assert own.name in text and (END_PART if own is not PREPARE_TURN else FINISH_TURN).name in text, name
    assert types["coordinator"].count("EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED") == 1
    assert types["coordinator_itself"].count("EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED") == 3
    assert types["agents_in_order"].count("EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED") == 3
    assert "EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED" in types["team_stopped"]
    attempts = [
        event["activityTaskStartedEventAttributes"]["attempt"]
        for event in documents["retried_model_call"]["events"]
        if "activityTaskStartedEventAttributes" in event
    ]
    assert max(attempts) == 3


async def test_a_turn_recorded_now_replays(temporal_address: TemporalAddress, tmp_path: Path) -> None:
    """The command that records works, and its format is what the replay reads."""
    retried = next(scenario for scenario in SCENARIOS if scenario.name == "retried_model_call")
    path = tmp_path / "now.json"
    path.write_text(to_text(await history_of(retried, temporal_address, tmp_path / "turn")), "utf-8")
    result = await replay(load(path))
    assert result.replay_failure is None
