"""Random lives of Sessions against a simple model of the ledger: after every step each projection says what it should.

The model is a list of turns for each Session. What a worker does is written as a worker writes it, without Temporal.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from milepost.domain.attachments import AttachmentScope
from milepost.domain.content import Content
from milepost.domain.errors import TurnRunning, TurnSuperseded
from milepost.domain.messages import UserMessage
from milepost.domain.turns import TurnState
from milepost.ledger.attached import INTRODUCTION
from milepost.ports.ledger import Ledger
from milepost.services.attachments import NewFile
from milepost.services.forks import ForkFrom
from milepost.services.rewinds import RewindTo
from milepost.services.search import SearchRequest, SearchService
from milepost.services.turns import BeginTurn, RetryTurn
from milepost.storage import open_ledger, open_notifier
from tests.api.stack import AGENT, Work
from tests.attachments.conftest import in_pieces, make_files
from tests.rewind.conftest import Bench

T = TypeVar("T")

ENDS = (TurnState.COMPLETED, TurnState.FAILED, TurnState.STOPPED, TurnState.INTERRUPTED)
WORDS = st.sampled_from(["alpha", "beta", "gamma", "delta", "two words", "x" * 300, "\U0001f9ed \ud800 \0"])


@dataclass
class ModelTurn:
    """What is known of a turn: answers by round, and how many calls of tools."""

    turn_id: str
    text: str
    answers: list[str] = field(default_factory=list)
    tools: int = 0
    state: TurnState = TurnState.RUNNING
    superseded: bool = False
    retry_of: str | None = None
    files: list[str] = field(default_factory=list)
    copied_from: str | None = None


@dataclass
class ModelSession:
    """A Session's turns by number from 1, its rewinds, and who works on the running turn.

    `once` and `kept` are the names of files that wait for the next turn, and that every turn gets.
    """

    session_id: str
    turns: list[ModelTurn] = field(default_factory=list)
    rewinds: list[tuple[int, int]] = field(default_factory=list)
    once: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    work: Work | None = None

    @property
    def running(self) -> ModelTurn | None:
        return next((turn for turn in self.turns if turn.state is TurnState.RUNNING), None)

    def live(self) -> list[ModelTurn]:
        return [turn for turn in self.turns if not turn.superseded]

    def at(self, number: int) -> list[ModelTurn]:
        """The conversation when turn `number` had ended."""
        gone = {index for to, last in self.rewinds if last < number for index in range(to + 1, last + 1)}
        return [turn for index, turn in enumerate(self.turns, 1) if index <= number and index not in gone]


class Lives(RuleBasedStateMachine):
    """Begin, output, tool, stop, crash, retry, rewind, fork, attach, detach, in any order on any Session."""

    sessions = Bundle("sessions")
    ledger_url: Callable[[], str]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.root = Path(tempfile.mkdtemp(prefix="milepost-lives-"))
        self.all: list[ModelSession] = []
        self.attached = 0
        self.contents: dict[str, str] = {}
        self.bench: Bench = self.run(self._open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    async def _open(self) -> Bench:
        url = type(self).ledger_url()
        self.notifier = await open_notifier(url)
        self.ledger: Ledger = await open_ledger(url, self.notifier)
        made = make_files(self.ledger, self.root)
        self.files = made.attachments
        return made.bench

    def teardown(self) -> None:
        try:
            assert self.run(self.bench.verified()) == []
            self.run(self._searched())
        finally:
            self.run(self.ledger.close())
            self.run(self.notifier.close())
            self.loop.close()
            shutil.rmtree(self.root)

    # --- steps --------------------------------------------------------------------------------------------------

    @initialize(target=sessions)
    def first(self) -> ModelSession:
        return self.open()

    @precondition(lambda self: len(self.all) < 4)
    @rule(target=sessions)
    def open(self) -> ModelSession:
        made = ModelSession(self.run(self.bench.open()))
        self.all.append(made)
        return made

    @rule(session=sessions, text=WORDS)
    def begin(self, session: ModelSession, text: str) -> None:
        self._begins(session, text, None, lambda: self.bench.turns.begin(BeginTurn(session.session_id, text)))

    @rule(session=sessions, data=st.data())
    def retry(self, session: ModelSession, data: st.DataObject) -> None:
        if not session.turns:
            return
        old = data.draw(st.sampled_from(session.turns))
        self._begins(session, old.text, old.turn_id, lambda: self.bench.turns.retry(RetryTurn(old.turn_id)))

    def _begins(self, session: ModelSession, text: str, retry_of: str | None, call: Callable[[], Any]) -> None:
        if session.running is not None:
            with pytest.raises(TurnRunning):
                self.run(call())
            return
        turn = self.run(call()).turn
        assert turn.number == len(session.turns) + 1
        files = [*session.kept] if retry_of else [*session.kept, *session.once]
        session.turns.append(ModelTurn(turn.turn_id, text, retry_of=retry_of, files=sorted(files)))
        if retry_of is None:
            session.once = []
        session.work = Work(self.ledger, session.session_id, turn.turn_id, at=turn.created_at)
        self.run(session.work.claim())
        self.run(session.work.start_agent())

    @precondition(lambda self: self.attached < 30)
    @rule(session=sessions, once=st.booleans(), text=WORDS)
    def attach(self, session: ModelSession, once: bool, text: str) -> None:
        chosen = session.once if once else session.kept
        if len(session.once) + len(session.kept) >= 6:
            return
        self.attached += 1
        name = f"file {self.attached}"
        scope = AttachmentScope.ONCE if once else AttachmentScope.SESSION
        data = text.encode("utf-8", "surrogatepass")
        self.run(self.files.attach(NewFile(session.session_id, name, scope), in_pieces(data)))
        self.contents[name] = data.decode("utf-8", "replace")
        chosen.append(name)

    @rule(session=sessions, data=st.data())
    def detach(self, session: ModelSession, data: st.DataObject) -> None:
        selected = self.run(self.files.selected(session.session_id))
        if not selected:
            return
        item = data.draw(st.sampled_from(selected))
        self.run(self.files.remove(item.ref.attachment_id))
        (session.once if item.ref.name in session.once else session.kept).remove(item.ref.name)

    @rule(session=sessions, answer=WORDS)
    def output(self, session: ModelSession, answer: str) -> None:
        if session.running is None or session.work is None:
            return
        spec, attempt = self.run(session.work.start_call())
        self.run(session.work.finish_call(spec, attempt, answer))
        session.running.answers.append(answer)

    @rule(session=sessions, cut=WORDS)
    def crash(self, session: ModelSession, cut: str) -> None:
        """A worker dies in the middle of an answer; what it had streamed is all there is of it."""
        if session.running is None or session.work is None:
            return
        turn = session.running
        spec, attempt = self.run(session.work.start_call())
        self.run(session.work.say(spec, attempt, 0, cut))
        self.run(session.work.end(TurnState.INTERRUPTED, "the worker was lost"))
        turn.answers.append(cut)
        turn.state = TurnState.INTERRUPTED

    @rule(session=sessions)
    def tool(self, session: ModelSession) -> None:
        if session.running is None or session.work is None:
            return
        self.run(session.work.run_tool(Content("done"), tool="tool:bash"))
        session.running.tools += 1

    @rule(session=sessions, state=st.sampled_from(ENDS))
    def end(self, session: ModelSession, state: TurnState) -> None:
        if session.running is None or session.work is None:
            return
        turn = session.running
        self.run(session.work.end(state, "because"))
        turn.state = state

    @rule(session=sessions, data=st.data(), dry_run=st.booleans())
    def rewind(self, session: ModelSession, data: st.DataObject, dry_run: bool) -> None:
        number = data.draw(st.integers(0, len(session.turns)))
        to = RewindTo(session.session_id, "model", number)
        call = self.bench.rewinds.plan if dry_run else self.bench.rewinds.rewind
        if number and session.turns[number - 1].superseded:
            with pytest.raises(TurnSuperseded):
                self.run(call(to))  # type: ignore[operator]
            return
        if session.running is not None:
            with pytest.raises(TurnRunning):
                self.run(call(to))  # type: ignore[operator]
            return
        gone = [turn for turn in session.turns[number:] if not turn.superseded]
        done = self.run(call(to))  # type: ignore[operator]
        plan = done if dry_run else done.plan
        assert plan.count == len(gone)
        if dry_run:
            return
        assert (done.rewind is not None) == bool(gone)
        if gone:
            session.rewinds.append((number, len(session.turns)))
        for turn in gone:
            turn.superseded = True

    @precondition(lambda self: len(self.all) < 4)
    @rule(target=sessions, session=sessions, data=st.data())
    def fork(self, session: ModelSession, data: st.DataObject) -> ModelSession:
        ended = [number for number, turn in enumerate(session.turns, 1) if turn.state is not TurnState.RUNNING]
        number = data.draw(st.sampled_from([0, *ended]))
        done = self.run(self.bench.forks.fork(ForkFrom(session.session_id, "model", number)))
        ids = self.run(self.bench.turns.page(done.session.session_id, limit=200))[::-1]
        source = session.at(number)
        assert len(ids) == len(source)
        turns = [
            replace(
                turn, turn_id=view.turn.turn_id, superseded=False, copied_from=turn.turn_id, answers=[*turn.answers]
            )
            for turn, view in zip(source, ids, strict=True)
        ]
        made = ModelSession(done.session.session_id, turns, kept=[*session.kept])
        self.all.append(made)
        return made

    # --- what must hold -----------------------------------------------------------------------------------------

    @invariant()
    def history(self) -> None:
        for session in self.all:
            every = self.run(self.bench.history.page(session.session_id, limit=200, superseded=True)).entries[::-1]
            assert [self._shown(entry) for entry in every] == [self._known(turn) for turn in session.turns]
            live = self.run(self.bench.history.page(session.session_id, limit=200)).entries[::-1]
            assert [entry.turn.turn_id for entry in live] == [turn.turn_id for turn in session.live()]

    def _shown(self, entry: Any) -> tuple[object, ...]:
        turn = entry.turn
        calls = len(entry.tools)
        facts = (turn.turn_id, turn.request.text.text, turn.state, turn.superseded, turn.retry_of, turn.copied_from)
        files = sorted(ref.name for ref in turn.request.attachments)
        return (*facts, files, entry.output.text, calls)

    def _known(self, turn: ModelTurn) -> tuple[object, ...]:
        ended = turn.state is not TurnState.RUNNING
        last = next((answer for answer in reversed(turn.answers) if answer), "")
        output = last if ended else (turn.answers[-1] if turn.answers else "")
        facts = (turn.turn_id, turn.text, turn.state, turn.superseded, turn.retry_of, turn.copied_from)
        return (*facts, turn.files, output, turn.tools)

    @invariant()
    def active_turns_and_rewinds(self) -> None:
        for session in self.all:
            active = self.run(self.bench.turns.active(session.session_id))
            running = session.running
            assert (active.turn.turn_id if active else None) == (running.turn_id if running else None)
            rewinds = self.run(self.bench.rewinds.page(session.session_id, limit=200))[::-1]
            assert [(item.to_number, item.last_number) for item in rewinds] == session.rewinds

    @invariant()
    def selections(self) -> None:
        """What the next turn gets; and what a turn has had can be read, whatever became of it."""
        for session in self.all:
            selected = self.run(self.files.selected(session.session_id))
            assert sorted(item.ref.name for item in selected) == sorted(session.once + session.kept)
            views = self.run(self.bench.turns.page(session.session_id, limit=200))
            for ref in {ref for view in views[:3] for ref in view.turn.request.attachments}:
                item = self.run(self.files.get(ref.attachment_id))
                assert item.session_id == session.session_id and item.used_by is not None
                assert self.run(self.files.text(ref.attachment_id)) == self.contents[ref.name]

    @invariant()
    def transcripts(self) -> None:
        """A model gets the live turns before its own, each valid, and nothing of what was rewound."""
        for session in self.all:
            running = session.running
            if running is None:
                continue
            expected: list[str] = []
            given: list[list[str]] = []
            seen: set[str] = set()
            for turn in session.live():
                expected += [turn.text, *(turn.answers if turn is not running else [])]
                given.append([name for name in turn.files if name not in seen])
                seen.update(turn.files)
            context = self.run(self.bench.conversations.whole(running.turn_id, AGENT, 1))
            got = [getattr(message.text, "text", message.text) for message in context.messages]
            assert [text.partition(f"\n\n{INTRODUCTION}")[0] for text in got] == expected
            # Each file where the conversation first refers to it, and nowhere else.
            asked = [message.text.text for message in context.messages if isinstance(message, UserMessage)]
            assert [sorted(re.findall(r'<attached_file name="(file [0-9]+)"', text)) for text in asked] == [
                sorted(names) for names in given
            ]

    async def _searched(self) -> None:
        """Search marks what was rewound, and knows the copies of forks."""
        search = SearchService(self.ledger)
        page = await search.search(SearchRequest("alpha", limit=100))
        if not page.complete or page.next_cursor is not None:
            return
        superseded = {turn.turn_id: turn.superseded for session in self.all for turn in session.turns}
        turns = [turn for session in self.all for turn in session.turns]
        # What a turn put out is searched when it has ended: its last answer. Its files' texts are searched with it.
        expected = {
            turn.turn_id
            for turn in turns
            if turn.text == "alpha"
            or (turn.state is not TurnState.RUNNING and turn.answers[-1:] == ["alpha"])
            or any("alpha" in self.contents[name].split() for name in turn.files)
        }
        found = {hit.found.turn_id: hit.found.superseded for hit in page.hits if hit.found.turn_id is not None}
        assert set(found) == expected
        assert found == {turn_id: superseded[turn_id] for turn_id in expected}


@pytest.fixture
def lives(sqlite_template: Path, tmp_path: Path) -> Iterator[type[Lives]]:
    numbers = iter(range(1_000_000))

    def fresh() -> str:
        path = tmp_path / f"ledger{next(numbers)}.db"
        path.write_bytes(sqlite_template.read_bytes())
        return f"sqlite:///{path}"

    class OnSqlite(Lives):
        ledger_url = staticmethod(fresh)

    yield OnSqlite


def _run(machine: type[Lives], examples: int, steps: int) -> None:
    machine.TestCase.settings = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    machine.TestCase("runTest").runTest()


def test_random_lives(lives: type[Lives]) -> None:
    _run(lives, 6, 20)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_random_lives(lives: type[Lives]) -> None:
    _run(lives, 40, 40)


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(600)
def test_random_lives_on_postgresql(postgres_server: Any, postgres_template: str) -> None:
    class OnPostgres(Lives):
        ledger_url = staticmethod(lambda: postgres_server.url(postgres_server.create_database(postgres_template)))

    _run(OnPostgres, 10, 25)
