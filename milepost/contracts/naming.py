"""Names that cross the Temporal boundary: workflow types and ids, task queues. Public contract."""

from __future__ import annotations

SESSION_TURN_WORKFLOW = "SessionTurnWorkflow"
ENVIRONMENT_WORKFLOW = "EnvironmentWorkflow"
CONSOLIDATION_WORKFLOW = "ConsolidationWorkflow"
AGENT_WORKFLOW = "AgentWorkflow"
COORDINATOR_WORKFLOW = "CoordinatorWorkflow"
APPROVAL_ANSWERED = "approval_answered"
"""Signal to a turn's workflow, which hands it on to its children: an approval (its id) was answered. What the answer is
stands in the ledger."""

TURNS_QUEUE = "turns"
MODELS_QUEUE = "models"
_SANDBOX = "sandbox."


def sandbox_queue(host: str) -> str:
    """Queue of the host that owns the containers."""
    return f"{_SANDBOX}{host}"


def bound_to_host(queue: str) -> bool:
    """Whether only one host can serve a queue (as `queue_name` gives it)."""
    return queue.rpartition("/")[2].startswith(_SANDBOX)


def queue_name(instance_id: str, queue: str) -> str:
    """Namespaces are shared between instances, so queues carry the instance id as workflow ids do."""
    return f"{instance_id}/{queue}"


def turn_workflow_id(instance_id: str, turn_id: str) -> str:
    return f"{instance_id}/turn/{turn_id}"


def environment_workflow_id(instance_id: str, environment_id: str) -> str:
    """`environment_id` is SESSION/GENERATION."""
    return f"{instance_id}/env/{environment_id}"


def consolidation_id(instance_id: str) -> str:
    """Of the schedule, and the beginning of the ids of the workflows that it starts."""
    return f"{instance_id}/consolidation"


def part_workflow_id(instance_id: str, turn_id: str, part: str, subtask: int = 0) -> str:
    """Child workflow of a part of a turn, for one subtask where it has several."""
    number = f"/{subtask}" if subtask else ""
    return f"{turn_workflow_id(instance_id, turn_id)}/{part}{number}"
