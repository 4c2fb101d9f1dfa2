"""Last turn: which files a turn changed, and what others changed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from milepost.domain.errors import SnapshotFailed
from milepost.domain.sessions import Session
from milepost.domain.tools import BUILTIN_TOOL_POLICIES
from milepost.domain.turns import Turn
from milepost.ledger.codec import decode_event
from milepost.ledger.workspace import WORKSPACE_EVENTS, Run, Trace, trace
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.ports.snapshots import Entry, FileChange, FileDiff, Snapshots
from milepost.services.workspaces import can_write

MAX_PATHS = 1000
WRITING_TOOLS = frozenset(name for name in BUILTIN_TOOL_POLICIES if can_write(name))


@dataclass(frozen=True, slots=True)
class TurnChanges:
    """What a turn did to the files of its Workspace.

    `before` and `after` are the states around its calls, None if none of them could write. `files` are the turn's own
    changes; of those in `shared` somebody else changed the file too while the turn ran, and the diff has both.
    `outside_before` are paths changed by others since the state recorded last (`previous_turn` made it), before the
    turn's first call; `outside_during` those changed between its calls. `unclear` are changes that a call may have made
    whose end is not known (`lost_calls`). `omitted` are files that no snapshot has.
    """

    turn: Turn
    before: str | None
    after: str | None
    files: tuple[FileDiff, ...] = ()
    shared: tuple[str, ...] = ()
    outside_before: tuple[str, ...] = ()
    outside_during: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    previous_turn: str | None = None
    lost_calls: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    omitted: tuple[str, ...] = ()


@dataclass(slots=True)
class PathChain:
    """The changes of one path over consecutive runs. `broken`: somebody else changed it in between."""

    before: Entry | None
    after: Entry | None
    broken: bool = False

    def follow(self, change: FileChange) -> None:
        """The next run's change."""
        self.broken = self.broken or change.before != self.after
        self.after = change.after


@dataclass(slots=True)
class Chains:
    """By path, over runs given in order."""

    paths: dict[str, PathChain] = field(default_factory=dict)

    async def add(self, snapshots: Snapshots, workspace_id: str, runs: Iterable[Run]) -> None:
        """Go on with these runs. Raises SnapshotFailed, SnapshotNotFound."""
        for run in joined(runs):
            for change in await snapshots.changes(workspace_id, run.start, run.end) if run.start != run.end else ():
                chain = self.paths.get(change.path)
                if chain is None:
                    self.paths[change.path] = PathChain(change.before, change.after)
                else:
                    chain.follow(change)


def joined(runs: Iterable[Run]) -> list[Run]:
    """Runs that begin where the one before ended are one."""
    found: list[Run] = []
    for run in runs:
        if found and found[-1].end == run.start:
            found[-1] = Run(found[-1].start, run.end)
        else:
            found.append(run)
    return found


def traces(tx: LedgerTx, session_id: str, turn_ids: Sequence[str]) -> dict[str, Trace]:
    """By turn id; at most 200 turns at once."""
    events: dict[str, list[object]] = {turn_id: [] for turn_id in turn_ids}
    for item in tx.events.read_turns(session_id, list(turn_ids), types=WORKSPACE_EVENTS):
        events[item.turn_id or ""].append(decode_event(item.type, item.version, item.payload))
    return {turn_id: trace(found, WRITING_TOOLS) for turn_id, found in events.items()}  # type: ignore[arg-type]


class ChangesService:
    """Reads the ledger and the snapshots of this host. `hide` takes our own secrets out of lines of files."""

    def __init__(self, ledger: Ledger, snapshots: Snapshots | None, hide: Callable[[str], str] | None = None) -> None:
        self._ledger = ledger
        self._snapshots = snapshots
        self._hide = hide or str

    async def of_turn(self, turn_id: str) -> TurnChanges:
        """Also of a turn that runs, as far as it is.

        Raises TurnNotFound, SnapshotFailed, SnapshotNotFound (the snapshots lie on another host).
        """

        def body(tx: LedgerTx) -> tuple[Turn, Session, Trace]:
            turn = tx.turns.get(turn_id)
            found = traces(tx, turn.session_id, [turn_id])[turn_id]
            return turn, tx.sessions.get(turn.session_id), found

        turn, session, found = await self._ledger.read(body)
        base = TurnChanges(
            turn, found.start, found.end, lost_calls=found.lost, problems=found.problems, omitted=found.omitted
        )
        if found.start is None:
            return base
        if self._snapshots is None:
            raise SnapshotFailed("Snapshots are off, so there is no diff.", fix="Set snapshots.enabled to true.")
        return await self._filled(self._snapshots, session.workspace.workspace_id, base, found)

    async def _filled(self, snapshots: Snapshots, workspace_id: str, base: TurnChanges, found: Trace) -> TurnChanges:
        chains = Chains()
        await chains.add(snapshots, workspace_id, found.runs)
        start = found.start or ""
        shared = tuple(sorted(path for path, chain in chains.paths.items() if chain.broken))
        runs = joined(found.runs)
        if len(runs) == 1:
            files = await snapshots.diff(workspace_id, runs[0].start, runs[0].end)
        else:
            # Nobody else's changes: two states that differ by the turn's own ones alone.
            before = {path: chain.before for path, chain in chains.paths.items()}
            after = {path: chain.after for path, chain in chains.paths.items()}
            old = await snapshots.compose(workspace_id, start, before)
            files = await snapshots.diff(workspace_id, old, await snapshots.compose(workspace_id, start, after))
        outside: dict[str, dict[str, None]] = {"before": {}, "during": {}, "unclear": {}}
        for gap in found.gaps:
            kind = "unclear" if gap.lost else "before" if gap.first else "during"
            for change in await snapshots.changes(workspace_id, gap.start, gap.end):
                outside[kind][change.path] = None
        first = next((gap for gap in found.gaps if gap.first), None)
        return TurnChanges(
            turn=base.turn,
            before=base.before,
            after=base.after,
            files=tuple(await asyncio.to_thread(lambda: [self._hidden(file) for file in files])),
            shared=shared[:MAX_PATHS],
            outside_before=tuple(outside["before"])[:MAX_PATHS],
            outside_during=tuple(outside["during"])[:MAX_PATHS],
            unclear=tuple(outside["unclear"])[:MAX_PATHS],
            previous_turn=first.after_turn if first else None,
            lost_calls=base.lost_calls,
            problems=base.problems,
            omitted=base.omitted,
        )

    def _hidden(self, file: FileDiff) -> FileDiff:
        hunks = tuple(
            replace(
                hunk,
                heading=self._hide(hunk.heading),
                lines=tuple(replace(line, text=self._hide(line.text)) for line in hunk.lines),
            )
            for hunk in file.hunks
        )
        return replace(file, hunks=hunks)
