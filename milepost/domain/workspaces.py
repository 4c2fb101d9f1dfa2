"""Who works on a Workspace's files, the last state known of them, and file operations that are to be carried out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from milepost.domain.errors import WorkspaceBusy
from milepost.domain.sessions import Workspace


class LeasePurpose(StrEnum):
    """What a Workspace is held for."""

    TURN = "turn"
    REWIND = "rewind"
    FORK = "fork"
    REPAIR = "repair"
    """Also of Git work, whose holder begins with `git/`."""
    SETUP = "setup"


@dataclass(frozen=True, slots=True)
class WorkspaceLease:
    """The right to change a Workspace's files.

    `holder` is a turn's id, or the id of an operation. A turn holds it until it has ended, whoever works on it; an
    operation until `expires_at` (microseconds since the epoch, UTC), which it moves on while it lives. `fence` grows
    with every holder: what an earlier one still wants to record is refused.
    """

    workspace_id: str
    holder: str
    purpose: LeasePurpose
    session_id: str
    fence: int
    since: int
    expires_at: int | None


def workspace_busy(lease: WorkspaceLease, workspace: Workspace) -> WorkspaceBusy:
    """The refusal of what somebody's lease stands in the way of."""
    who = f"Turn {lease.holder}" if lease.purpose is LeasePurpose.TURN else f"A {lease.purpose} ({lease.holder})"
    if lease.holder.startswith("git/"):
        who = f"Git work ({lease.holder})"
    stop = f", or stop it: milepost turn stop {lease.holder}" if lease.purpose is LeasePurpose.TURN else "."
    return WorkspaceBusy(
        f"{who} of Session {lease.session_id} works on the files of {workspace.path}.", fix=f"Wait for its end{stop}"
    )


@dataclass(frozen=True, slots=True)
class WorkspaceHead:
    """The last snapshot recorded of a Workspace; `turn_id` is None if no turn made it."""

    tree: str
    turn_id: str | None


class RestoreKind(StrEnum):
    REWIND = "rewind"
    FORK = "fork"


class RestoreState(StrEnum):
    """`pending` is carried out before anything else touches the Workspace."""

    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Restore:
    """Files that are to be put into a state, recorded before they are touched.

    A rewind: paths that differ between `present` and `target` get the target's version. A fork: the state `target` of
    the Workspace `source_id` is written into the new Workspace. `restore_id` is the rewind's id, or the new Session's.
    """

    restore_id: str
    kind: RestoreKind
    session_id: str
    workspace_id: str
    source_id: str
    present: str | None
    target: str
    state: RestoreState
    created_at: int
    error: str | None = None
