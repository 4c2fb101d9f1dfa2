"""What a back end does not claim it refuses by name, and does nothing in its place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from milepost.domain.errors import MilepostError, SandboxUnsupported
from milepost.ports.sandbox import EditFile, Exec, Glob, Grep, Outcome, SandboxLimits, Volume
from tests.sandbox.boxes import new_id
from tests.sandbox.conformance.backends import ALL, CLAIMS, Backend, Capability

Probe = Callable[[Backend, Path], Awaitable[list[Outcome]]]
"""Asks for what a capability is. It raises, or gives outcomes that are all refusals."""


async def _folder(backend: Backend, _: Path) -> list[Outcome]:
    return [await (await backend.box()).run(EditFile("f", "a", "b"))]


async def _search(backend: Backend, _: Path) -> list[Outcome]:
    box = await backend.box()
    return [await box.run(Grep("x")), await box.run(Glob("*"))]


def _choice(**choices: object) -> Probe:
    async def probe(backend: Backend, folder: Path) -> list[Outcome]:
        await backend.open(folder, new_id(), **choices)
        return []

    return probe


PROBES: dict[Capability, Probe] = {
    Capability.FOLDER: _folder,
    Capability.SEARCH: _search,
    Capability.PORTS: _choice(ports=(8123,)),
    Capability.NETWORK: _choice(network="bridge"),
    Capability.IMAGES: _choice(image="localhost/another"),
    Capability.DISK: _choice(limits=SandboxLimits(workspace_bytes=1024**2)),
    Capability.VOLUMES: _choice(volumes=frozenset({Volume.HOME})),
}

ELSEWHERE = {
    Capability.SHELL: "a command that is not run cannot be told from one that is; only `memory` does not claim it",
    Capability.INPUT: "see shell",
    Capability.PROCESSES: "see shell; their bookkeeping is part of the core",
    Capability.TERMINALS: "see shell",
    Capability.HOST_FOLDER: "where the files lie is no operation",
    Capability.USER: "whom commands run as is no operation; `local` runs them as root of its namespaces",
    Capability.GUARDED: "what a command ends is lost, and told so; E2B lets its user become root",
    Capability.RESTART: "what ends from outside asks nobody",
}
"""Capabilities that nobody can ask for, and so nobody can refuse."""


def test_every_capability_is_claimed_and_asked_for_or_told_why_not() -> None:
    assert frozenset().union(*CLAIMS.values()) == ALL
    assert PROBES.keys() | ELSEWHERE.keys() == ALL
    assert not PROBES.keys() & ELSEWHERE.keys()


CHOICES = {Capability.PORTS, Capability.NETWORK, Capability.IMAGES, Capability.VOLUMES, Capability.DISK}
"""The double of the layers above takes any of these and acts on none: they are tested with all of them."""

UNCLAIMED = [
    pytest.param(name, capability, marks=[pytest.mark.podman] if name == "podman" else [], id=f"{name}-{capability}")
    for name, claims in CLAIMS.items()
    for capability in PROBES
    if capability not in claims and not (name == "memory" and capability in CHOICES)
]


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(("backend", "capability"), UNCLAIMED, indirect=["backend"])
async def test_it_is_refused_by_name(backend: Backend, capability: Capability, tmp_path: Path) -> None:
    before = await backend.provider.sessions()
    try:
        outcomes = await PROBES[capability](backend, tmp_path)
    except MilepostError as error:
        assert error.code == SandboxUnsupported.code, error
        assert len(error.message) > 20
        assert await backend.provider.sessions() == before, "nothing was made in its place"
    else:
        assert outcomes, "it was taken without a word"
        for outcome in outcomes:
            assert outcome.error_code == SandboxUnsupported.code, outcome
            assert outcome.error


@pytest.mark.asyncio(loop_scope="session")
async def test_a_back_end_with_commands_runs_them(backend: Backend) -> None:
    """The counterpart: who claims a shell runs a program, who does not never says that it did."""
    box = await backend.box()
    outcome = await box.run(Exec("printf %s $((6 * 7))"))
    assert (outcome.stdout == b"42") == (Capability.SHELL in CLAIMS[backend.name])
