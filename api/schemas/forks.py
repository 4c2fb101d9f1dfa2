"""Forks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.schemas.base import Body, Shape
from api.schemas.sessions import ID_PATTERN, PathText, SessionShape, Title, absolute_path
from milepost.services.forking import Forked
from milepost.services.forks import ForkFrom, ForkPlan


class ForkBody(Body):
    """The last turn to copy, by number (0: none) or id; neither: the last one that counts.

    Without `workspace` the fork works on the same folder. With `files` it is a new folder, which gets the files as they
    were at that point.
    """

    to_number: Annotated[int | None, Field(ge=0, le=2**31 - 1)] = None
    to_turn: Annotated[str | None, Field(pattern=ID_PATTERN)] = None
    title: Title | None = None
    workspace: PathText | None = None
    files: bool = False
    dry_run: bool = False

    def command(self, session_id: str, actor: str) -> ForkFrom:
        """Raises InvalidInput for a path that is not absolute."""
        workspace = None if self.workspace is None else absolute_path(self.workspace)
        return ForkFrom(session_id, actor, self.to_number, self.to_turn, self.title, workspace, self.files)


class ForkReport(Shape):
    """What a fork is made of.

    `session` is null for a dry run; it is closed until all turns are copied (`state`: copying, done, failed).
    `omitted` earlier turns are not copied. `tree` is the recorded state of files at that point, null if there is none.
    """

    dry_run: bool
    source_session: str
    to_number: int
    turns: int
    omitted: int
    tree: str | None
    state: str | None
    error: str | None
    session: SessionShape | None

    @classmethod
    def planned(cls, plan: ForkPlan) -> ForkReport:
        return cls(
            dry_run=True,
            source_session=plan.source.session_id,
            to_number=plan.to_number,
            turns=len(plan.numbers),
            omitted=plan.omitted,
            tree=plan.tree,
            state=None,
            error=None,
            session=None,
        )

    @classmethod
    def made(cls, done: Forked) -> ForkReport:
        fork = done.fork
        return cls(
            dry_run=False,
            source_session=fork.source_id,
            to_number=fork.to_number,
            turns=fork.copied,
            omitted=fork.omitted,
            tree=done.tree,
            state=fork.state.value,
            error=fork.error,
            session=SessionShape.of(done.session),
        )
