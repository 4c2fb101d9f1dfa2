"""Which files a rewind restores: those its turns changed, unless somebody else changed them since."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from milepost.domain.sessions import Session
from milepost.ledger.workspace import Run, Trace
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.ports.snapshots import Entry, Snapshots
from milepost.services.changes import Chains, traces

PAGE = 200
MAX_TURNS = 10_000
MAX_NAMED = 1000


@dataclass(frozen=True, slots=True)
class RestoredPath:
    """`action`: create, change or remove."""

    path: str
    action: str


@dataclass(frozen=True, slots=True)
class FilesPlan:
    """What happens to files. `present` is the state now, which is kept, `target` the one afterwards.

    `paths` are the first 1,000 of `count`. `conflicts` are paths that the turns changed and somebody else too: they
    stay, unless they are to be overwritten. `incomplete` are numbers of turns some of whose changes are in no snapshot.
    """

    present: str
    target: str
    count: int
    paths: tuple[RestoredPath, ...]
    conflicts: tuple[str, ...]
    incomplete: tuple[int, ...]


async def plan_files(
    ledger: Ledger, snapshots: Snapshots, session: Session, after_number: int, *, overwrite: bool
) -> FilesPlan:
    """What restoring the files that live turns with a greater number changed comes to. Takes the present state.

    Raises SnapshotFailed, SnapshotNotFound, StorageUnavailable.
    """
    found = await ledger.read(lambda tx: _traces_after(tx, session.session_id, after_number))
    workspace_id = session.workspace.workspace_id
    present = (await snapshots.take(workspace_id, Path(session.workspace.path))).tree
    chains = Chains()
    runs: list[Run] = [run for _, trace in found for run in trace.runs]
    await chains.add(snapshots, workspace_id, runs)
    now = await snapshots.entries(workspace_id, present, list(chains.paths))
    entries: dict[str, Entry | None] = {}
    conflicts: list[str] = []
    for path, chain in sorted(chains.paths.items()):
        if now[path] == chain.before:
            continue
        if (chain.broken or now[path] != chain.after) and not overwrite:
            conflicts.append(path)
        else:
            entries[path] = chain.before
    return FilesPlan(
        present=present,
        target=await snapshots.compose(workspace_id, present, entries),
        count=len(entries),
        paths=tuple(RestoredPath(path, _action(now[path], entry)) for path, entry in entries.items())[:MAX_NAMED],
        conflicts=tuple(conflicts[:MAX_NAMED]),
        incomplete=tuple(number for number, trace in found if trace.lost or trace.problems),
    )


def _action(now: Entry | None, then: Entry | None) -> str:
    if then is None:
        return "remove"
    return "create" if now is None else "change"


def _traces_after(tx: LedgerTx, session_id: str, after_number: int) -> list[tuple[int, Trace]]:
    """Numbers and traces of live turns after a number, in their order."""
    found: list[tuple[int, Trace]] = []
    before: int | None = None
    while len(found) < MAX_TURNS:
        page = tx.turns.page(session_id, before_number=before, limit=PAGE)
        wanted = [turn for turn in page if turn.number > after_number and not turn.superseded]
        by_id = traces(tx, session_id, [turn.turn_id for turn in wanted])
        found += [(turn.number, by_id[turn.turn_id]) for turn in wanted]
        if len(page) < PAGE or page[-1].number <= after_number:
            break
        before = page[-1].number
    return sorted(found, key=lambda item: item[0])
