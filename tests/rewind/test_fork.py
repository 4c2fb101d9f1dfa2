"""Fork: a complete copy of a conversation up to a point; the source is untouched, a kill in between is carried on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from milepost.domain.errors import InvalidInput, SessionClosed, TurnRunning
from milepost.domain.events import SessionForked
from milepost.domain.forks import ForkState
from milepost.domain.sessions import SessionStatus
from milepost.ledger.chain import verify_chain
from milepost.ledger.codec import decode_event
from milepost.ledger.history import HistoryEntry
from milepost.services.forking import ForkCopier
from milepost.services.forks import ForkFrom, ForkService
from milepost.services.rewinds import RewindTo
from milepost.services.turns import BeginTurn
from milepost.snapshots import GitSnapshots
from tests.api.stack import Work
from tests.rewind.conftest import Bench
from tests.rewind.test_files import Killed


def told(entries: tuple[HistoryEntry, ...]) -> list[object]:
    """History without ids, oldest first."""
    return [
        (
            entry.turn.request,
            entry.turn.state,
            entry.turn.usage,
            entry.turn.created_at,
            entry.turn.ended_at,
            entry.turn.error_code,
            [replace(agent) for agent in entry.agents],
            [replace(card, effect_id="") for card in entry.tools],
        )
        for entry in reversed(entries)
    ]


async def test_the_copy_is_complete_and_the_source_untouched(bench: Bench) -> None:
    session = await bench.open()
    for text in ("one", "two"):
        await bench.turn(session, text, tool="tool:bash")
    await bench.turn(session, "three")
    head = await bench.ledger.read(lambda tx: tx.events.head(session))
    dry = await bench.forks.plan(ForkFrom(session, "anna", 2))
    assert (dry.numbers, dry.omitted, dry.to_number) == ((1, 2), 0, 2)
    done = await bench.forks.fork(ForkFrom(session, "anna", 2, title="try"))
    fork = done.session.session_id
    assert (done.session.status, done.session.title, done.fork.copied) == (SessionStatus.ACTIVE, "try", 2)
    copied, source = await bench.history.page(fork), await bench.history.page(session)
    assert told(copied.entries) == told(source.entries[1:])
    assert [entry.turn.number for entry in copied.entries] == [2, 1]
    assert [entry.turn.copied_from for entry in copied.entries] == [e.turn.turn_id for e in source.entries[1:]]
    assert await bench.ledger.read(lambda tx: tx.events.head(session)) == head
    # Every call has a row of its own, and its result is found under its own id.
    mine = await bench.history.effects(fork)
    theirs = {effect.spec.effect_id for effect in await bench.history.effects(session)}
    assert len(mine) == 4 and not theirs & {effect.spec.effect_id for effect in mine}
    card = copied.entries[0].tools[0]
    assert (await bench.history.tool_result(card.effect_id)).output.text == "done"
    # It goes on from there, and each way alone.
    begun = (await bench.turns.begin(BeginTurn(fork, "and now"))).turn
    assert begun.number == 3
    await Work(bench.ledger, fork, begun.turn_id).start_agent()
    assert await bench.texts(begun.turn_id) == ["one", "answer to one", "two", "answer to two", "and now"]
    events = await bench.ledger.read(lambda tx: tx.events.read(fork))
    verify_chain(events)
    forked = [decode_event(e.type, e.version, e.payload) for e in events if e.type == SessionForked.TYPE]
    assert forked == [SessionForked(session, 2, 2, 0, False, "anna")]
    assert await bench.verified() == []


async def test_a_turn_of_many_calls_is_copied_whole(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milepost.services.forking.EFFECTS_PAGE", 2)
    session = await bench.open()
    turn = await bench.begin(session)
    for number in range(1, 6):
        await bench.call(session, turn, lambda: None, number)
    await bench.end(session, turn)
    fork = (await bench.forks.fork(ForkFrom(session, "anna"))).session.session_id
    (copy,), (original,) = [(await bench.history.page(each)).entries for each in (fork, session)]
    assert len(original.tools) == 5
    assert told((copy,)) == told((original,))
    assert len(await bench.history.effects(fork, limit=200)) == len(await bench.history.effects(session, limit=200))
    known = {effect.spec.effect_id for effect in await bench.history.effects(fork, limit=200)}
    assert {card.effect_id for card in copy.tools} <= known
    assert await bench.verified() == []


async def test_points(bench: Bench) -> None:
    session = await bench.open()
    turns = [await bench.turn(session, text) for text in ("one", "two", "three")]
    await bench.rewinds.rewind(RewindTo(session, "a", 1))
    turns += [await bench.turn(session, text) for text in ("four", "five")]
    await bench.rewinds.rewind(RewindTo(session, "a", 4))

    async def copied(**point: object) -> list[str]:
        done = await bench.forks.fork(ForkFrom(session, "a", **point))  # type: ignore[arg-type]
        page = await bench.history.page(done.session.session_id)
        return [entry.turn.request.text.text for entry in reversed(page.entries)]

    assert await copied() == ["one", "four"]
    assert await copied(number=0) == []
    assert await copied(turn_id=turns[2]) == ["one", "two", "three"], "as it was then"
    assert await copied(number=5) == ["one", "four", "five"]
    # A fork of a fork, and a rewind in one.
    first = (await bench.forks.fork(ForkFrom(session, "a", 3))).session.session_id
    await bench.rewinds.rewind(RewindTo(first, "a", 2))
    await bench.turn(first, "six")
    again = await bench.forks.fork(ForkFrom(first, "a"))
    page = await bench.history.page(again.session.session_id)
    assert [entry.turn.request.text.text for entry in reversed(page.entries)] == ["one", "two", "six"]
    running = (await bench.turns.begin(BeginTurn(session, "runs"))).turn
    with pytest.raises(TurnRunning):
        await copied(number=running.number)
    assert await copied() == ["one", "four"], "a turn that runs is in nobody's way"
    with pytest.raises(InvalidInput):
        await copied(number=1, turn_id=turns[0])
    with pytest.raises(InvalidInput):
        await bench.forks.fork(ForkFrom(first, "a", turn_id=turns[0]))


async def test_files_of_that_point_in_a_new_folder(bench: Bench, tmp_path: Path) -> None:
    bench.write("kept", "0")()
    session = await bench.open()
    await bench.writes(session, bench.write("a", "1"))
    await bench.turn(session, "reads only")
    await bench.writes(session, bench.write("a", "2"), bench.write("b", "2"))
    bench.write("mine", "person")()
    before = bench.files()
    for number, expected in (
        (0, {"kept": "0"}),
        (1, {"kept": "0", "a": "1"}),
        (2, {"kept": "0", "a": "1"}),
        (3, {"kept": "0", "a": "2", "b": "2"}),
    ):
        target = tmp_path / f"fork{number}"
        done = await bench.forks.fork(ForkFrom(session, "a", number, workspace=str(target), files=True))
        assert {path.name: path.read_text() for path in target.iterdir()} == expected
        assert done.session.workspace.path == str(target) and done.fork.files
    assert bench.files() == before
    # Without a recorded state, as they are now.
    other = await bench.open()
    target = tmp_path / "now"
    await bench.forks.fork(ForkFrom(other, "a", workspace=str(target), files=True))
    assert {path.name: path.read_text() for path in target.iterdir()} == before
    # The fork's own changes are its own.
    fork = replace(bench, folder=target)
    mine = (await bench.sessions.page(limit=1))[0].session_id
    await fork.writes(mine, fork.write("a", "fork"))
    assert bench.files() == before
    await bench.rewinds.rewind(RewindTo(mine, "a", 0, files=True))
    assert fork.files() == before


async def test_refused_folders(bench: Bench, tmp_path: Path) -> None:
    session = await bench.open()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "full")
    for folder in ("full", "full/x", "link", "no/such", "data/inside"):
        (tmp_path / "data").mkdir(exist_ok=True)
        with pytest.raises(InvalidInput):
            await bench.forks.fork(ForkFrom(session, "a", workspace=str(tmp_path / folder), files=True))
    with pytest.raises(InvalidInput, match="new folder"):
        await bench.forks.fork(ForkFrom(session, "a", files=True))
    assert not (tmp_path / "data" / "inside").exists() and (tmp_path / "full" / "x").read_text() == "x"
    assert len(await bench.sessions.page()) == 1


@pytest.mark.parametrize(
    "step", [0, pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow), 4]
)
async def test_a_kill_at_every_step(bench: Bench, tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milepost.services.forking.BATCH_TURNS", 1)
    bench.write("a", "1")()
    session = await bench.open()
    await bench.writes(session, bench.write("b", "1"))
    await bench.turn(session, "two")
    writes = 0

    class Doomed:
        """The ledger of a process that dies right before its n-th transaction after the Session was recorded."""

        instance_id = bench.ledger.instance_id
        read = staticmethod(bench.ledger.read)

        async def write(self, body):  # type: ignore[no-untyped-def]
            nonlocal writes
            writes += 1
            if writes == step + 2:
                raise Killed
            return await bench.ledger.write(body)

    target = tmp_path / "fork"
    doomed = ForkService(
        Doomed(),  # type: ignore[arg-type]
        bench.guard._clock,
        bench.turns._ids,
        bench.snapshots,
        lambda path: path,
    )
    request = ForkFrom(session, "a", 2, workspace=str(target), files=True)
    if step == 4:
        await doomed.fork(request)
    else:
        with pytest.raises(Killed):
            await doomed.fork(request)
    fork = (await bench.sessions.page(limit=1))[0]
    if step < 4:
        assert fork.status is SessionStatus.CLOSED
        with pytest.raises(SessionClosed, match="is being made"):
            await bench.sessions.reopen(fork.session_id)
    copier = ForkCopier(bench.ledger, bench.guard._clock, bench.snapshots)
    await copier.carry_on_all()
    assert (await bench.ledger.read(lambda tx: tx.forks.get(fork.session_id))).state is (  # type: ignore[union-attr]
        ForkState.DONE if step == 4 else ForkState.COPYING
    ), "one that is young is left to its maker"
    done = await copier.carry_on(fork.session_id)
    assert done.fork.state is ForkState.DONE and done.fork.copied == 2
    assert (await bench.sessions.get(fork.session_id)).status is SessionStatus.ACTIVE
    page, source = await bench.history.page(fork.session_id), await bench.history.page(session)
    assert told(page.entries) == told(source.entries)
    assert {path.name: path.read_text() for path in target.iterdir()} == {"a": "1", "b": "1"}
    assert await bench.verified() == []


async def test_a_folder_that_was_filled_meanwhile(bench: Bench, tmp_path: Path) -> None:
    bench.write("a", "1")()
    session = await bench.open()
    target = tmp_path / "fork"

    class Slow(GitSnapshots):
        async def export(self, workspace_id: str, tree: str, folder: Path) -> int:
            (folder / "mine").write_text("mine")
            return await super().export(workspace_id, tree, folder)

    forks = ForkService(
        bench.ledger, bench.guard._clock, bench.turns._ids, Slow(tmp_path / "snapshots"), lambda path: path
    )
    done = await forks.fork(ForkFrom(session, "a", workspace=str(target), files=True))
    assert done.fork.state is ForkState.FAILED and done.session.status is SessionStatus.CLOSED
    assert [path.name for path in target.iterdir()] == ["mine"]
    with pytest.raises(SessionClosed, match="could not be made"):
        await bench.sessions.reopen(done.session.session_id)
