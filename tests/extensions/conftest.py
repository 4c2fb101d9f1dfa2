"""A loopback peer, and the tools that call it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest

from milepost.domain.effects import EffectClass
from milepost.domain.extensions import HttpPeer, HttpTool
from milepost.domain.tools import Approval, Parallel, ToolDefinition, ToolPolicy
from milepost.extensions.http import PeerClient
from milepost.ports.tools import Call
from tests.support.peer import Peer

SECRET = "canary-5f1d-2b7e-secret"
ANYTHING: dict[str, Any] = {"type": "object"}


class Secrets:
    """`env:TOKEN` is known."""

    def resolve(self, reference: str) -> str:
        assert reference == "env:TOKEN"
        return SECRET


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer() as peer:
        yield peer


@pytest.fixture
async def client() -> AsyncIterator[PeerClient]:
    client = PeerClient(Secrets())
    yield client
    await client.close()


def http_tool(
    name: str,
    url: str,
    effect: EffectClass = EffectClass.AT_MOST_ONCE,
    *,
    method: str = "POST",
    approval: Approval = Approval.ALLOW,
    parameters: Mapping[str, Any] = ANYTHING,
    **more: Any,
) -> HttpTool:
    definition = ToolDefinition(name, f"Calls {name}.", dict(parameters))
    peer = HttpPeer(url, method, {"X-Team": "blue"}, {"Authorization": "env:TOKEN"})
    return HttpTool(definition, peer, ToolPolicy(effect, Parallel.ORDERED, approval), **more)


def made(tool: str, **arguments: Any) -> Call:
    return Call(tool, arguments, "key-1", "ses_1", "trn_1", "default", "call-1")
