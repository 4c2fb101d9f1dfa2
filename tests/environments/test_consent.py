"""Consent as rows: who may decide, what a decision covers, and what every later step keeps to."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from milepost.bootstrap.system import SystemClock, UuidIds
from milepost.domain.agents import AgentConfig
from milepost.domain.environments import OPERATOR, Environment, EnvironmentState, SetupSource
from milepost.domain.errors import EnvironmentConflict, EnvironmentNotReady, ImageNotAllowed, InvalidInput
from milepost.domain.sessions import Session
from milepost.engine.images import check_image
from milepost.ledger.codec import decode_event
from milepost.ports.ledger import Ledger
from milepost.sandboxes.detection import FolderDetector
from milepost.services.environment_gate import EnvironmentGate
from milepost.services.environments import (
    SUPERSEDED,
    ChangeEnvironment,
    EnvironmentRules,
    EnvironmentService,
    ReviewEnvironment,
)
from milepost.services.sessions import OpenSession, SessionService

DEVCONTAINER = '{"postCreateCommand": "make deps", "forwardPorts": [3000], "containerEnv": {"A": "1"}}'


class Bench:
    """Sessions and environments over one ledger."""

    def __init__(self, ledger: Ledger, *, operator_runs: bool = False) -> None:
        def check(image: str) -> None:
            check_image(image, (), any_image=False)

        self.ledger = ledger
        clock = SystemClock()
        agents = {"default": AgentConfig("default", "scripted", "demo")}
        self.sessions = SessionService(ledger, clock, UuidIds(), agents, "default", None, check)
        self.environments = EnvironmentService(
            ledger, clock, FolderDetector(), EnvironmentRules(check, devcontainer_runs=operator_runs)
        )
        self.gate = EnvironmentGate(ledger, self.environments)

    async def open(self, folder: Path, **choices: object) -> Session:
        return await self.sessions.open(OpenSession(str(folder), **choices))  # type: ignore[arg-type]

    async def events(self, session_id: str) -> list[str]:
        stored = await self.ledger.read(lambda tx: tx.events.read(session_id))
        return [item.type.removeprefix("environment.") for item in stored if item.type.startswith("environment.")]

    async def finish(self, found: Environment, state: EnvironmentState = EnvironmentState.READY) -> None:
        from milepost.domain.environments import EnvironmentResult
        from milepost.services.environment_preparation import Preparation

        preparation = Preparation(self.ledger, SystemClock())
        await preparation.claim(found.session_id, found.generation, "run")
        await preparation.end(found.session_id, found.generation, "run", state, EnvironmentResult())


def folder(tmp_path: Path, **files: str) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    for name, text in files.items():
        (work / name.replace("_dot_", ".").replace("_dash_", "-")).write_text(text)
    return work


async def test_a_plain_folder_becomes_ready_by_itself(ledger: Ledger, tmp_path: Path) -> None:
    bench = Bench(ledger)
    session = await bench.open(folder(tmp_path))
    assert (await bench.environments.get(session.session_id)).state is EnvironmentState.UNPREPARED
    found = await bench.gate.require(session)
    assert found.state is EnvironmentState.UNPREPARED
    await bench.gate.opened(found)
    await bench.gate.opened(found)
    assert (await bench.environments.get(session.session_id)).state is EnvironmentState.READY
    assert await bench.events(session.session_id) == ["ready"]
    assert (await bench.gate.require(session)).state is EnvironmentState.READY


async def test_a_lockfile_always_asks_and_refuses_until_somebody_decides(ledger: Ledger, tmp_path: Path) -> None:
    bench = Bench(ledger, operator_runs=True)
    session = await bench.open(folder(tmp_path, package_dash_lock_dot_json="{}"))
    with pytest.raises(EnvironmentNotReady, match="awaiting approval") as refused:
        await bench.gate.require(session)
    assert f"milepost env review {session.session_id}" in str(refused.value)
    found = await bench.environments.get(session.session_id)
    assert found.state is EnvironmentState.AWAITING_APPROVAL
    assert found.plan.command == "npm ci"
    done = await bench.environments.review(session.session_id, ReviewEnvironment(True, "ann", 1, reason="ok"))
    assert (done.state, done.command) == (EnvironmentState.PREPARING, "npm ci")
    with pytest.raises(EnvironmentNotReady, match="preparing"):
        await bench.gate.require(session)
    assert await bench.events(session.session_id) == ["proposed", "reviewed", "preparing"]
    pending = await ledger.read(lambda tx: tx.outbox.pending(f"{session.session_id}/1"))
    assert pending is not None


async def test_the_operators_default_is_for_the_exact_devcontainer_command_alone(
    ledger: Ledger, tmp_path: Path
) -> None:
    bench = Bench(ledger, operator_runs=True)
    session = await bench.open(folder(tmp_path, _dot_devcontainer_dot_json=DEVCONTAINER))
    found = await bench.environments.prepare(session.session_id, "ann")
    assert found.state is EnvironmentState.PREPARING
    assert found.consent is not None
    assert (found.consent.actor, found.command, found.ports) == (OPERATOR, "make deps", (3000,))
    await bench.finish(found)
    edited = await bench.environments.change(session.session_id, ChangeEnvironment("ann", command="make all"))
    assert (edited.state, edited.plan.source) == (EnvironmentState.AWAITING_APPROVAL, SetupSource.EDITED)
    refused = await bench.environments.review(session.session_id, ReviewEnvironment(False, "ann"))
    await bench.finish(refused)
    # The file still says so, but a person has decided about this Session since.
    again = await bench.environments.change(session.session_id, ChangeEnvironment("ann", detect=True))
    assert (again.generation, again.state) == (3, EnvironmentState.AWAITING_APPROVAL)


async def test_a_refused_setup_is_not_used_and_stays_refused(ledger: Ledger, tmp_path: Path) -> None:
    bench = Bench(ledger)
    session = await bench.open(folder(tmp_path, _dot_devcontainer_dot_json=DEVCONTAINER))
    await bench.environments.prepare(session.session_id, "ann")
    found = await bench.environments.review(session.session_id, ReviewEnvironment(False, "ann"))
    assert (found.command, found.ports, found.plan.variables, found.plan.image) == (None, (), {}, None)
    await bench.finish(found)
    again = await bench.environments.rebuild(session.session_id, "ann")
    assert (again.generation, again.command, again.state) == (2, None, EnvironmentState.PREPARING)


async def test_a_decision_is_about_what_was_seen(ledger: Ledger, tmp_path: Path) -> None:
    bench = Bench(ledger)
    session = await bench.open(folder(tmp_path, requirements_dot_txt="x"))
    session_id = session.session_id
    with pytest.raises(EnvironmentConflict, match="no decision is waited for"):
        await bench.environments.review(session_id, ReviewEnvironment(True, "ann"))
    await bench.environments.prepare(session_id, "ann")
    with pytest.raises(EnvironmentConflict, match="Generation 2 is not"):
        await bench.environments.review(session_id, ReviewEnvironment(True, "ann", 2))
    with pytest.raises(ImageNotAllowed):
        await bench.environments.review(session_id, ReviewEnvironment(True, "ann", image="docker.io/evil/x"))
    with pytest.raises(InvalidInput):
        await bench.environments.review(session_id, ReviewEnvironment(True, "ann", command="x" * 20_000))
    with pytest.raises(EnvironmentConflict, match="nothing was built"):
        await bench.environments.rebuild(session_id, "ann")
    # The folder changes after the question: what was asked about is what runs.
    await asyncio.to_thread(Path(session.workspace.path, "requirements.txt").unlink)
    found = await bench.environments.review(session_id, ReviewEnvironment(True, "ann", 1, image=""))
    assert "pip install -r requirements.txt" in str(found.command)
    assert found.plan.image is None
    with pytest.raises(EnvironmentConflict):
        await bench.environments.review(session_id, ReviewEnvironment(True, "ann"))


async def test_a_later_generation_ends_the_one_before(ledger: Ledger, tmp_path: Path) -> None:
    bench = Bench(ledger)
    session = await bench.open(folder(tmp_path, requirements_dot_txt="x"))
    await bench.environments.prepare(session.session_id, "ann")
    await bench.environments.change(session.session_id, ChangeEnvironment("ann", command="", image="alpine:3.20"))
    newest, first = await bench.environments.generations(session.session_id)
    assert (newest.generation, newest.state, newest.plan.image) == (2, EnvironmentState.PREPARING, "alpine:3.20")
    assert first.state is EnvironmentState.FAILED
    assert first.result is not None
    assert first.result.error_code == SUPERSEDED
    stopped = await bench.environments.stop(session.session_id, "ann")
    assert stopped.state is EnvironmentState.FAILED
    with pytest.raises(EnvironmentNotReady, match=r"could not be prepared \(Stopped by ann\)") as refused:
        await bench.gate.require(session)
    assert "env rebuild" in str(refused.value)


async def test_an_image_that_is_not_allowed_asks_and_is_never_replaced_silently(ledger: Ledger, tmp_path: Path) -> None:
    bench = Bench(ledger, operator_runs=True)
    image = '{"image": "mcr.microsoft.com/devcontainers/python:3"}'
    session = await bench.open(folder(tmp_path, _dot_devcontainer_dot_json=image))
    found = await bench.environments.prepare(session.session_id, "ann")
    assert found.state is EnvironmentState.AWAITING_APPROVAL
    with pytest.raises(ImageNotAllowed):
        await bench.environments.review(session.session_id, ReviewEnvironment(True, "ann"))
    with pytest.raises(ImageNotAllowed):
        await bench.open(Path(session.workspace.path), image="docker.io/evil/x")


async def test_what_was_chosen_at_opening_is_not_asked_about(ledger: Ledger, tmp_path: Path) -> None:
    bench = Bench(ledger)
    session = await bench.open(folder(tmp_path), image="node:20-slim", ports=(3000, 3000))
    found = await bench.gate.require(session)
    assert (found.plan.image, found.ports) == ("node:20-slim", (3000,))
    await bench.gate.opened(found)
    ready = await bench.environments.get(session.session_id)
    assert (ready.generation, ready.state, ready.ports) == (1, EnvironmentState.READY, (3000,))
    with pytest.raises(InvalidInput):
        await bench.open(tmp_path / "work", ports=(0,))


async def test_events_of_every_step_can_be_read_again(ledger: Ledger, tmp_path: Path) -> None:
    bench = Bench(ledger)
    session = await bench.open(folder(tmp_path, _dot_devcontainer_dot_json=DEVCONTAINER))
    await bench.environments.prepare(session.session_id, "ann")
    found = await bench.environments.review(session.session_id, ReviewEnvironment(True, "ann"))
    await bench.finish(found, EnvironmentState.FAILED)
    stored = await ledger.read(lambda tx: tx.events.read(session.session_id))
    kinds = [type(decode_event(item.type, item.version, item.payload)).__name__ for item in stored]
    assert kinds[1:] == ["EnvironmentProposed", "EnvironmentReviewed", "EnvironmentPreparing", "EnvironmentFailed"]
