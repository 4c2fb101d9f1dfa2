"""Contracts of `EnvironmentWorkflow`: one run prepares one generation of a Session's environment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from milepost.contracts.activities import ActivityContract, RetryRule, ledger_step
from milepost.domain.environments import EnvironmentState


@dataclass(frozen=True, slots=True)
class EnvironmentInput:
    """Input of `EnvironmentWorkflow`. What is prepared, and who agreed to it, stands in the ledger."""

    session_id: str
    generation: int
    instance_id: str


@dataclass(frozen=True, slots=True)
class EnvironmentEnded:
    """Result of `EnvironmentWorkflow`, for the Temporal UI; readers use the ledger."""

    session_id: str
    generation: int
    state: EnvironmentState
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class EnvironmentStepParams:
    """`claim` is the run that prepares the generation."""

    session_id: str
    generation: int
    claim: str


@dataclass(frozen=True, slots=True)
class EnvironmentClaimed:
    """`sandbox_queue` is the queue of the host that gets the container."""

    sandbox_queue: str


@dataclass(frozen=True, slots=True)
class EnvironmentPrepared:
    state: EnvironmentState


@dataclass(frozen=True, slots=True)
class EnvironmentFailedParams:
    """What kept the generation from being prepared, where the step itself could not record it."""

    session_id: str
    generation: int
    claim: str
    error_code: str
    error: str


CLAIM_ENVIRONMENT = ledger_step("claim_environment", EnvironmentStepParams, EnvironmentClaimed)

PREPARE_ENVIRONMENT = ActivityContract(
    "prepare_environment",
    EnvironmentStepParams,
    EnvironmentPrepared,
    start_to_close=timedelta(hours=4),
    heartbeat=timedelta(seconds=6),
    retry=RetryRule(maximum_attempts=20, maximum=timedelta(seconds=10)),
)

FAIL_ENVIRONMENT = ledger_step("fail_environment", EnvironmentFailedParams, EnvironmentPrepared)

ENVIRONMENT_CONTRACTS = (CLAIM_ENVIRONMENT, PREPARE_ENVIRONMENT, FAIL_ENVIRONMENT)
