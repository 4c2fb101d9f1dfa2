"""Worker versioning on a cluster: each release is a version of the instance's deployment, and turns stay with theirs.

Temporal gives new workflows to the deployment's current version only. A worker makes its release current when there is
none, or an older one; going back to an older release is a person's decision.
"""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta

from temporalio.api.workflowservice.v1 import (
    DescribeWorkerDeploymentRequest,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from milepost.observability.logging import get_logger

RPC_TIMEOUT = timedelta(seconds=10)
FIRST_PAUSE_SECONDS = 0.2
LAST_PAUSE_SECONDS = 30.0
_REFUSALS = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.UNAUTHENTICATED)

_log = get_logger(__name__)


def deployment_name(instance_id: str) -> str:
    """The instance's worker deployment: namespaces are shared between instances."""
    return f"milepost-{instance_id}"


def is_newer(release: str, than: str) -> bool:
    """Whether a release has the higher number; False where one of them has none."""
    numbers = [_number(release), _number(than)]
    return all(numbers) and numbers[0] > numbers[1]


def _number(release: str) -> tuple[int, ...]:
    found = re.match(r"[0-9]{1,9}(?:\.[0-9]{1,9})*", release)
    parts = [int(part) for part in found[0].split(".")] if found else []
    while parts and parts[-1] == 0:
        parts.pop()
    return (1, *parts) if found else ()


async def make_current(client: Client, deployment: str, release: str) -> None:
    """Try until the release is current, or another one is rightly so. The version exists once a worker has polled.

    A cluster that refuses for good is told of in the log, with the command that does it.
    """
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            await _make_current(client, deployment, release)
            return
        except RPCError as error:
            if error.status in _REFUSALS:
                command = f"temporal worker deployment set-current-version --deployment-name {deployment}"
                _log.error("versioning.refused", detail=error.message, fix=f"{command} --build-id {release}")
                return
            if pause >= LAST_PAUSE_SECONDS:
                _log.warning("versioning.retry", detail=error.message)
        await asyncio.sleep(pause)
        pause = min(pause * 2, LAST_PAUSE_SECONDS)


async def _make_current(client: Client, deployment: str, release: str) -> None:
    service = client.workflow_service
    found = await service.describe_worker_deployment(
        DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=deployment), timeout=RPC_TIMEOUT
    )
    current = found.worker_deployment_info.routing_config.current_deployment_version.build_id
    if current and not is_newer(release, current):
        return
    await service.set_worker_deployment_current_version(
        SetWorkerDeploymentCurrentVersionRequest(
            namespace=client.namespace,
            deployment_name=deployment,
            build_id=release,
            # Another worker that decides in the same moment must not be overruled unseen.
            conflict_token=found.conflict_token,
            ignore_missing_task_queues=True,
            identity=client.identity,
        ),
        timeout=RPC_TIMEOUT,
    )
    _log.info("versioning.current", deployment=deployment, release=release, before=current or None)
