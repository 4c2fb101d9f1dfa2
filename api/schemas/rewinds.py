"""Rewinds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.schemas.base import Body, Query, Shape
from api.schemas.sessions import ID_PATTERN, MAX_LIMIT
from api.schemas.turns import Reason
from api.times import rfc3339
from milepost.domain.errors import InvalidInput
from milepost.domain.events import WorkspaceRestored
from milepost.domain.rewinds import Rewind
from milepost.domain.turns import Turn
from milepost.ports.ledger import EffectCount
from milepost.services.rewinding import FilesPlan
from milepost.services.rewinds import RewindResult, RewindTo


class RewindBody(Body):
    """The last turn that shall count: by number (0 is before the first turn) or by id."""

    to_number: Annotated[int | None, Field(ge=0, le=2**31 - 1)] = None
    to_turn: Annotated[str | None, Field(pattern=ID_PATTERN)] = None
    reason: Reason | None = None
    files: bool = False
    """Also restore the files that the later turns changed."""
    overwrite: bool = False
    """With `files`: also those that somebody else changed since."""
    dry_run: bool = False

    def command(self, session_id: str, actor: str) -> RewindTo:
        """Raises InvalidInput for `overwrite` without `files`."""
        if self.overwrite and not self.files:
            raise InvalidInput("'overwrite' is about files.", field="overwrite", fix="Set 'files' as well.")
        return RewindTo(
            session_id, actor, self.to_number, self.to_turn, self.reason, files=self.files, overwrite=self.overwrite
        )


class EffectCountShape(Shape):
    """Calls of one operation that ended in one state, counted."""

    operation: str
    state: str
    count: int

    @classmethod
    def of(cls, item: EffectCount) -> EffectCountShape:
        return cls(operation=item.operation, state=item.state.value, count=item.count)


class SupersededTurn(Shape):
    """A turn that the rewind takes out of the conversation."""

    turn_id: str
    number: int
    state: str
    request: str

    @classmethod
    def of(cls, turn: Turn) -> SupersededTurn:
        text = turn.request.text.text[:200]
        return cls(turn_id=turn.turn_id, number=turn.number, state=turn.state.value, request=text)


class RestoredPathShape(Shape):
    """`action`: create, change or remove."""

    path: str
    action: str


class FilesReport(Shape):
    """What happened, or would happen, to files.

    `present` is the state before, which is kept. `count` paths are restored; `paths` are the first 1,000. `conflicts`
    were changed by somebody else too and stay. `incomplete_turns` changed files that are in no snapshot. `done` is
    false for a dry run, and while restoring is still to be done (before the next call in the Workspace). `kept` changed
    at the last moment and stay, `failed` could not be written.
    """

    done: bool
    present: str
    target: str
    count: int
    paths: list[RestoredPathShape]
    conflicts: list[str]
    incomplete_turns: list[int]
    changed: int
    kept: list[str]
    failed: list[str]
    error: str | None

    @classmethod
    def of(cls, plan: FilesPlan, restored: WorkspaceRestored | None) -> FilesReport:
        return cls(
            done=restored is not None and restored.error is None,
            present=plan.present,
            target=plan.target,
            count=plan.count,
            paths=[RestoredPathShape(path=item.path, action=item.action) for item in plan.paths],
            conflicts=list(plan.conflicts),
            incomplete_turns=list(plan.incomplete),
            changed=0 if restored is None else restored.changed,
            kept=[] if restored is None else list(restored.kept),
            failed=[] if restored is None else list(restored.failed),
            error=None if restored is None else restored.error,
        )


class RewindReport(Shape):
    """What a rewind did, or would do. `rewind_id` is null for a dry run and where nothing lay behind the point."""

    dry_run: bool
    rewind_id: str | None
    session_id: str
    to_number: int
    superseded: int
    turns: list[SupersededTurn]
    """The newest 100 of them."""
    workspace_calls: list[EffectCountShape]
    """Calls that may have changed files."""
    outside: list[EffectCountShape]
    """Calls with effects outside the Workspace, which nothing undoes."""
    files: FilesReport | None

    @classmethod
    def of(cls, done: RewindResult, *, dry_run: bool) -> RewindReport:
        plan, rewind = done.plan, done.rewind
        return cls(
            dry_run=dry_run,
            rewind_id=None if rewind is None else rewind.rewind_id,
            session_id=plan.session_id,
            to_number=plan.to_number,
            superseded=plan.count,
            turns=[SupersededTurn.of(turn) for turn in plan.turns],
            workspace_calls=[EffectCountShape.of(item) for item in plan.workspace],
            outside=[EffectCountShape.of(item) for item in plan.outside],
            files=None if plan.files is None else FilesReport.of(plan.files, done.restored),
        )


class RewindsQuery(Query):
    """A page of a Session's rewinds."""

    cursor: Annotated[str | None, Field(pattern=ID_PATTERN)] = None
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 50


class RewindShape(Shape):
    """A rewind that was done: turns after `to_number`, up to `last_number`, were superseded."""

    rewind_id: str
    to_number: int
    last_number: int
    superseded: int
    actor: str
    reason: str | None
    created_at: str

    @classmethod
    def of(cls, rewind: Rewind) -> RewindShape:
        return cls(
            rewind_id=rewind.rewind_id,
            to_number=rewind.to_number,
            last_number=rewind.last_number,
            superseded=rewind.turns,
            actor=rewind.actor,
            reason=rewind.reason,
            created_at=rfc3339(rewind.created_at),
        )


class RewindPage(Shape):
    """Newest first. `next_cursor` continues the list, null at its end."""

    session_id: str
    rewinds: list[RewindShape]
    next_cursor: str | None
