"""All runs that the selected tests ask for, at once: they mostly wait for a death to be noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

AT_ONCE = 3
ALL_SECONDS = 400.0

Play = Callable[[Path], Coroutine[Any, Any, Any]]


class Plays:
    """What each run led to: a value, or what it raised."""

    def __init__(self, outcomes: dict[str, Any]) -> None:
        self._outcomes = outcomes

    def of(self, play: Play) -> Any:
        """The outcome of a run. Raises what the run raised."""
        outcome = self._outcomes[play.__name__]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plays(request: pytest.FixtureRequest, podman_root: Path) -> AsyncIterator[Plays]:
    """Runs what the marks `play` of this module's selected tests name."""
    wanted: dict[str, Play] = {}
    for item in request.session.items:
        if item.nodeid.startswith(request.node.nodeid):
            wanted |= {play.__name__: play for mark in item.iter_markers("play") for play in mark.kwargs["runs"]}
    places = asyncio.Semaphore(AT_ONCE)

    async def act(play: Play) -> Any:
        async with places:
            return await play(podman_root)

    async with asyncio.timeout(ALL_SECONDS):
        outcomes = await asyncio.gather(*map(act, wanted.values()), return_exceptions=True)
    yield Plays(dict(zip(wanted, outcomes, strict=True)))
