"""Whether an environment's plan may be carried out. Pure."""

from __future__ import annotations

from enum import StrEnum

from milepost.domain.environments import EnvironmentPlan, SetupSource


class Verdict(StrEnum):
    """`PLAIN`: there is nothing to agree to. `OPERATOR`: the configuration agrees. `ASK`: a person must decide."""

    PLAIN = "plain"
    OPERATOR = "operator"
    ASK = "ask"


def verdict(plan: EnvironmentPlan, *, reviewed: bool, operator_runs_devcontainer: bool) -> Verdict:
    """Who decides about a plan that nobody has decided about yet.

    `reviewed`: a person has decided about an earlier generation of this Session, so the operator's default, which is
    for Sessions that nobody looked at, does not count any more. That default covers exactly what a devcontainer.json
    says; a command that was edited, or that we derived from a lockfile, is always asked about.
    """
    if plan.command is None and set(plan.ports) <= set(plan.chosen_ports):
        return Verdict.PLAIN
    if plan.source is SetupSource.DEVCONTAINER and operator_runs_devcontainer and not reviewed:
        return Verdict.OPERATOR
    return Verdict.ASK
