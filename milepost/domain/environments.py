"""Environments: what a Session's sandbox is made of, and whether a person agreed to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from milepost.domain.content import Content
from milepost.domain.errors import EnvironmentNotReady, InvalidInput

MAX_COMMAND_CHARACTERS = 16_384
MAX_PORTS = 20
MAX_VARIABLES = 100
OPERATOR = "operator"
"""Actor of consent that the configuration gives."""


class EnvironmentState(StrEnum):
    UNPREPARED = "unprepared"
    AWAITING_APPROVAL = "awaiting_approval"
    PREPARING = "preparing"
    READY = "ready"
    FAILED = "failed"

    @property
    def settled(self) -> bool:
        """Whether nothing goes on and nobody is asked."""
        return self in (EnvironmentState.READY, EnvironmentState.FAILED)


class SetupSource(StrEnum):
    """Where a plan's setup command comes from."""

    NONE = "none"
    DEVCONTAINER = "devcontainer"
    LOCKFILE = "lockfile"
    EDITED = "edited"


@dataclass(frozen=True, slots=True)
class EnvironmentPlan:
    """What an environment is to be made of.

    `image` None is the instance's default image. `command` is the exact text a shell is given. `files` are the files
    it was read from, `notes` what of them is not used, and why. `ports` are published on the host's loopback;
    `chosen_ports` are those among them that a person named, so that nobody is asked about them.
    `node` tells of a Node project at the root, whose node_modules is a volume of its own.
    """

    image: str | None = None
    command: str | None = None
    source: SetupSource = SetupSource.NONE
    files: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    chosen_ports: tuple[int, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    node: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Consent:
    """What was decided about the plan's command and ports. `approved` False: they are not used."""

    approved: bool
    actor: str
    at: int
    reason: str | None = None

    @property
    def reviewed(self) -> bool:
        """Whether a person decided, not the configuration."""
        return self.actor != OPERATOR


@dataclass(frozen=True, slots=True)
class RemoteSandbox:
    """A sandbox on another machine, exactly as it is found again: `root` is the Workspace inside it."""

    backend: str
    sandbox_id: str
    domain: str
    root: str


@dataclass(frozen=True, slots=True)
class EnvironmentResult:
    """How preparing ended. Without a setup command there is no exit code and no output. `seconds` is of the command.

    `sandbox` is where the prepared environment is, if it is not on the worker's host.
    """

    exit_code: int | None = None
    output: Content | None = None
    seconds: float | None = None
    error_code: str | None = None
    error: str | None = None
    fix: str | None = None
    sandbox: RemoteSandbox | None = None


@dataclass(frozen=True, slots=True)
class Environment:
    """One generation. `after_number` is the Session's last turn when it was begun; times are µs since the epoch, UTC.

    `claimed_run` is the workflow run that prepares it, `boot` the supervisor that was given the setup command.
    """

    session_id: str
    generation: int
    state: EnvironmentState
    plan: EnvironmentPlan
    created_at: int
    changed_at: int
    after_number: int = 0
    consent: Consent | None = None
    result: EnvironmentResult | None = None
    claimed_run: str | None = None
    boot: str | None = None

    @property
    def environment_id(self) -> str:
        """Name of the generation in ids of workflows and effects."""
        return f"{self.session_id}/{self.generation}"

    @property
    def approved(self) -> bool:
        return self.consent is not None and self.consent.approved

    @property
    def command(self) -> str | None:
        """The setup command that may run."""
        return self.plan.command if self.approved else None

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports that may be published."""
        agreed = self.consent is None or self.consent.approved
        return self.plan.ports if agreed else self.plan.chosen_ports


def checked_ports(ports: tuple[int, ...]) -> tuple[int, ...]:
    """Raises InvalidInput."""
    distinct = tuple(dict.fromkeys(ports))
    if len(distinct) > MAX_PORTS or any(not 0 < port < 65536 for port in distinct):
        raise InvalidInput(f"Ports are numbers from 1 to 65535, at most {MAX_PORTS} of them.", field="ports")
    return distinct


def not_ready(found: Environment) -> EnvironmentNotReady:
    """The refusal of what needs a Ready environment; it names the state and what to do."""
    session = found.session_id
    show = f"milepost env show {session}"
    why, fix = {
        EnvironmentState.UNPREPARED: ("has not been prepared", f"Run: milepost env prepare {session}"),
        EnvironmentState.AWAITING_APPROVAL: (
            "waits for a person to decide about its setup",
            f"Look at it ({show}), then: milepost env review {session} --approve   (or --skip)",
        ),
        EnvironmentState.PREPARING: ("is being prepared", f"Wait for it: {show}"),
        EnvironmentState.FAILED: (
            f"could not be prepared{_reason(found)}",
            f"See why (milepost env log {session}), then: milepost env rebuild {session}   (or env change)",
        ),
        EnvironmentState.READY: ("is ready", ""),
    }[found.state]
    state = found.state.replace("_", " ")
    text = f"The environment of Session {session} is {state}: generation {found.generation} {why}."
    return EnvironmentNotReady(text, fix=fix)


def _reason(found: Environment) -> str:
    error = found.result.error if found.result is not None else None
    return f" ({error.rstrip('.')})" if error else ""
