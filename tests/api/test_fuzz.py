"""What the description allows, thrown at the served routes: no fault, and no answer that is not described."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.api.stack import TOKEN, Stack, running_stack
from tests.api.test_approvals import ask

pytestmark = pytest.mark.slow

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
EXAMPLES = 10
STREAMS = "/api/v1/sessions/{session_id}/events"


async def _known(stack: Stack) -> dict[str, str]:
    session = await stack.open_session()
    turn = await stack.begin(session)
    work = stack.work(session, turn["turn_id"])
    await work.start_agent()
    spec, _ = await work.start_call()
    await work.claim()
    approval = await ask(stack, session, turn["turn_id"])
    record = "/api/v1/memory/namespaces/known/records/a%2Fb"
    await stack.client.put(record, json={"content": {"type": "text", "text": "known"}})
    rule = (await stack.post("/api/v1/policy-rules", {"verdict": "deny", "tool": "bash"})).json()
    route = f"/api/v1/sessions/{session}/attachments"
    attachment = (await stack.client.post(route, params={"name": "a.txt"}, content=b"text")).json()
    return {
        "attachment_id": attachment["attachment_id"],
        "session_id": session,
        "turn_id": turn["turn_id"],
        "effect_id": spec.effect_id,
        "approval_id": approval["approval_id"],
        "rule_id": rule["rule_id"],
        "namespace": "known",
        "key": "a/b",
    }


def _fuzz(url: str, known: dict[str, str]) -> int:
    schema = schemathesis.openapi.from_url(f"{url}/api/v1/openapi.json").exclude(path=STREAMS)
    calls = 0
    for found, mode in itertools.product(schema.get_all_operations(), GenerationMode):
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query):
            continue

        @given(case=operation.as_strategy(mode))
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def check(case: Any) -> None:
            nonlocal calls
            calls += 1
            # Every other call is about something that exists.
            for name in list(case.path_parameters or {}):
                if calls % 2 and name in known:
                    case.path_parameters[name] = known[name]
            case.call_and_validate(headers={"Authorization": f"Bearer {TOKEN}"}, checks=CHECKS, timeout=20)

        check()
    return calls


@pytest.mark.timeout(180)
async def test_no_input_finds_a_fault(sqlite_template: Path, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    shutil.copyfile(sqlite_template, path)
    async with running_stack(f"sqlite:///{path}", tmp_path) as stack:
        known = await _known(stack)
        calls = await asyncio.to_thread(_fuzz, stack.url, known)
        operations = sum(len(methods) for methods in stack.app.openapi()["paths"].values()) - 1
        assert calls >= operations * 5
        # The instance still works.
        assert (await stack.client.get("/api/v1/sessions")).status_code == 200
