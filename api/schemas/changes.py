"""What a turn did to the files of its Workspace."""

from __future__ import annotations

from api.schemas.base import Shape
from milepost.ports.snapshots import FileDiff, Hunk
from milepost.services.changes import TurnChanges


class LineShape(Shape):
    """`kind` is ' ' (both), '-' or '+'. `ended` is false for a file's last line that has no line end."""

    kind: str
    text: str
    ended: bool


class HunkShape(Shape):
    """Lines count from 1."""

    old_start: int
    old_lines: int
    new_start: int
    new_lines: int
    heading: str
    lines: list[LineShape]

    @classmethod
    def of(cls, hunk: Hunk) -> HunkShape:
        return cls(
            old_start=hunk.old_start,
            old_lines=hunk.old_lines,
            new_start=hunk.new_start,
            new_lines=hunk.new_lines,
            heading=hunk.heading,
            lines=[LineShape(kind=line.kind, text=line.text, ended=line.ended) for line in hunk.lines],
        )


class FileShape(Shape):
    """A changed file. `status`: added, deleted, modified or type_changed. Modes are git's.

    `shared`: somebody else changed the file too while the turn ran. A binary file has no hunks; with `truncated` they
    are left out because the diff is too large.
    """

    path: str
    status: str
    old_mode: str | None
    new_mode: str | None
    binary: bool
    additions: int
    deletions: int
    shared: bool
    truncated: bool
    hunks: list[HunkShape]

    @classmethod
    def of(cls, file: FileDiff, *, shared: bool, hunks: bool) -> FileShape:
        return cls(
            path=file.path,
            status=file.status,
            old_mode=file.old_mode,
            new_mode=file.new_mode,
            binary=file.binary,
            additions=file.additions,
            deletions=file.deletions,
            shared=shared,
            truncated=file.truncated,
            hunks=[HunkShape.of(hunk) for hunk in file.hunks] if hunks else [],
        )


class ChangesShape(Shape):
    """The turn's own changes, and paths that others changed.

    `before` and `after` name the states around its calls, null if none of them could write. `outside_before`: changed
    by others since the state that turn `previous_turn` left; `outside_during`: between its calls; `unclear`: maybe by
    one of `lost_calls`, whose end is not known. `problems` say why snapshots are missing, `omitted` are files that none
    has.
    """

    turn_id: str
    session_id: str
    state: str
    before: str | None
    after: str | None
    files: list[FileShape]
    outside_before: list[str]
    outside_during: list[str]
    unclear: list[str]
    previous_turn: str | None
    lost_calls: list[str]
    problems: list[str]
    omitted: list[str]

    @classmethod
    def of(cls, found: TurnChanges, *, hunks: bool) -> ChangesShape:
        return cls(
            turn_id=found.turn.turn_id,
            session_id=found.turn.session_id,
            state=found.turn.state.value,
            before=found.before,
            after=found.after,
            files=[FileShape.of(file, shared=file.path in found.shared, hunks=hunks) for file in found.files],
            outside_before=list(found.outside_before),
            outside_during=list(found.outside_during),
            unclear=list(found.unclear),
            previous_turn=found.previous_turn,
            lost_calls=list(found.lost_calls),
            problems=list(found.problems),
            omitted=list(found.omitted),
        )
