"""What a cluster says of a workflow, and what it does not say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from milepost.domain.errors import TemporalUnavailable
from milepost.ports.workflows import WorkflowState
from milepost.temporal.client import TemporalAddress, connect
from milepost.temporal.starter import TemporalStarter


async def test_an_unknown_workflow_is_not_found(temporal_address: TemporalAddress) -> None:
    starter = TemporalStarter(await connect(temporal_address), "here")
    assert await starter.state("here/turn/none") is WorkflowState.NOT_FOUND
    await starter.cancel("here/turn/none")


async def test_a_missing_namespace_says_nothing_about_a_workflow(temporal_address: TemporalAddress) -> None:
    """It would end every running turn as interrupted if another server answered on the address for a moment."""
    starter = TemporalStarter(await connect(replace(temporal_address, namespace="no-such-namespace")), "here")
    with pytest.raises(TemporalUnavailable):
        await starter.state("here/turn/none")
    with pytest.raises(TemporalUnavailable):
        await starter.cancel("here/turn/none")
