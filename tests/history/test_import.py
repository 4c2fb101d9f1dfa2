"""Imports: an equal Session or nothing, once, and nothing of it ever runs."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from milepost.bootstrap.system import SystemClock, UuidIds
from milepost.domain.budgets import Limits, Spending
from milepost.domain.content import BlobRef, Content
from milepost.domain.effects import SETTLED_EFFECT_STATES, EffectState
from milepost.domain.errors import InvalidInput, MilepostError
from milepost.domain.events import ImportCompleted
from milepost.domain.search import SearchFilter
from milepost.domain.turns import TurnState
from milepost.domain.usage import Usage
from milepost.engine.budgets import session_scope
from milepost.ledger.chain import verify_chain
from milepost.ledger.codec import decode_event, to_json
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.services.contents import Contents
from milepost.services.exporting.service import ExportFormat, ExportService
from milepost.services.finishing import Ending
from milepost.services.history import HistoryService
from milepost.services.importing.plan import BadLine
from milepost.services.importing.service import Imported, ImportOptions, ImportService
from milepost.services.rewinds import RewindService, RewindTo
from milepost.services.search import SearchRequest, SearchService
from milepost.services.verification import VerificationService
from milepost.storage import FileBlobStore
from tests.history.build import Builder, Call, Said
from tests.ledger.samples import NASTY, sql
from tests.support.databases import OpenLedger

IDS = re.compile(r"\b(?:(?:ses|trn|apr|rwd|wsp)_[0-9a-f]{32}|[0-9a-f]{64})\b")


def _contents(root: Path) -> Contents:
    return Contents(FileBlobStore(root / "blobs"))


async def _export(ledger: Ledger, root: Path, session: str, wanted: ExportFormat = ExportFormat.JSON) -> bytes:
    service = ExportService(ledger, _contents(root), SystemClock(), "0.1.0")
    return b"".join([piece async for piece in await service.export(session, wanted, superseded=True)])


async def _load(ledger: Ledger, root: Path, data: bytes, workspace: Path | None = None) -> Imported:
    service = ImportService(ledger, _contents(root), SystemClock(), UuidIds())
    options = ImportOptions(None if workspace is None else str(workspace))
    return await service.load(io.BytesIO(data), options)


async def _rich(ledger: Ledger, root: Path) -> str:
    """A Session with everything: long texts, odd characters, failures, a rewind, a turn that is at work."""
    builder = Builder(ledger)
    session = await builder.session(NASTY.replace("\0", ""), str(root))
    contents = _contents(root)
    long = await contents.store("long text " * 40_000)
    lost = Content("of this there is the preview", BlobRef("0" * 64, 300_000, "text/plain"))
    calls = [Call("bash", NASTY, long), Call("read_file", '{"path": "x"}', lost, is_error=True)]
    await builder.turn(session, Said(long, "# Answer\n" + NASTY, calls, reasoning="hm"))
    await builder.turn(session, Said("to be superseded", "common answer"))
    await RewindService(ledger, SystemClock(), UuidIds()).rewind(RewindTo(session, "api", number=1, reason="no"))
    failed = Ending(TurnState.FAILED, "no quota", "model_rate_limited")
    await builder.turn(session, Said("common request", None, ending=failed))
    stopped = Ending(TurnState.STOPPED, "lunch")
    await builder.turn(session, Said("common request", "half", [Call("bash", "{}", lost=True)], ending=stopped))
    spent = Spending(Usage(9, 8, 7, 6), model_calls=5, tool_calls=4, assumed_tokens=3)

    def spend(tx: LedgerTx) -> None:
        tx.budgets.lock([session_scope(session)], 1)
        tx.budgets.save({session_scope(session): spent}, 1)
        tx.budgets.set_limits(session, Limits(tokens=1_000_000))

    await ledger.write(spend)
    await builder.turn(session, Said("still at work", None, [Call("bash", "{}", lost=True)], ending=None))
    return session


def _plain(value: Any, instance: str) -> Any:
    """A value with ids by the order in which they come, and without what is the instance's own."""
    names: dict[str, str] = {}
    text = json.dumps(value, sort_keys=True).replace(instance, "INSTANCE")
    return json.loads(IDS.sub(lambda found: names.setdefault(found.group(), f"id{len(names)}"), text))


async def _projections(ledger: Ledger, root: Path, session: str) -> Any:
    """All that can be read of a Session."""
    page = await HistoryService(ledger).page(session, limit=50, superseded=True)
    history = [
        # Which run owned it is the instance's own.
        to_json(entry.turn) | {"claimed_run": None, "agents": to_json(entry.agents), "tools": to_json(entry.tools)}
        for entry in page.entries
    ]
    hits = []
    for query in ("common", "answer", "long", "quota OR lunch"):
        found = await SearchService(ledger).search(SearchRequest(query, SearchFilter(session_id=session), limit=50))
        rows = [(hit.found.seq, hit.found.kind, hit.found.superseded, to_json(hit.snippet)) for hit in found.hits]
        hits.append(sorted(rows, key=str))
    effects = await HistoryService(ledger).effects(session, limit=200)
    rows = sorted((to_json(effect) | {"result": str(effect.result)} for effect in effects), key=_effect_order)
    rewinds = [to_json(each) for each in await RewindService(ledger, SystemClock(), UuidIds()).page(session)]
    markdown = (await _export(ledger, root, session, ExportFormat.MARKDOWN)).decode()
    told = re.sub(r"- (Exported|Folder|Session): .*", "", markdown)
    usage = to_json(await HistoryService(ledger).usage(session))
    assert usage["spending"]["model_calls"] == 5
    boundaries = [to_json(rewind) for rewind in page.rewinds]
    assert boundaries
    return [_plain(part, ledger.instance_id) for part in (history, hits, rows, rewinds, told, usage, boundaries)]


def _effect_order(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["created_at"], row["spec"]["position"], row["spec"]["operation"])


async def test_an_export_imports_as_an_equal_session(opened: OpenLedger, sqlite_ledger: Ledger, tmp_path: Path) -> None:
    """From either database to another instance, and to the same one."""
    source, here, there = opened.ledger, tmp_path / "here", tmp_path / "there"
    here.mkdir()
    session = await _rich(source, here)
    data = await _export(source, here, session)
    # The turn at work ends in the import; in the source it ends in the same way.
    targets = [(source, here)]
    if not opened.url.startswith("sqlite"):
        targets.append((sqlite_ledger, there))
    results = [await _load(ledger, root, data, here) for ledger, root in targets]
    ending = Ending(TurnState.INTERRUPTED, "It had no end where it was imported from.")

    def end(tx: LedgerTx) -> None:
        from milepost.services.finishing import end_turn

        running = tx.turns.running(session)
        assert running is not None
        end_turn(tx, running, ending, running.created_at)

    await source.write(end)
    expected = await _projections(source, here, session)
    for (ledger, root), done in zip(targets, results, strict=True):
        assert (done.created, done.turns, done.interrupted, done.missing_blobs) == (True, 5, 1, 1)
        assert done.session_id != session
        found = await _projections(ledger, root, done.session_id)
        for mine, theirs in zip(found, expected, strict=True):
            assert _without_times(mine) == _without_times(theirs)
        stored = await ledger.read(lambda tx, new=done.session_id: tx.events.read(new))  # type: ignore[misc]
        verify_chain(stored)
        last = decode_event(stored[-1].type, stored[-1].version, stored[-1].payload)
        assert isinstance(last, ImportCompleted)
        assert (last.source_session_id, last.interrupted) == (session, 1)
        findings = (await VerificationService(ledger, _contents(root)).verify()).findings
        # The one that is missing in the source as well.
        assert [f"The blob {'0' * 64}" in finding.problem for finding in findings] == [True]


def _without_times(value: Any) -> Any:
    """Without the end of the turn that had none, which each side has given its own."""
    if isinstance(value, dict):
        return {key: _without_times(item) for key, item in value.items() if key not in ("ended_at", "finished_at")}
    if isinstance(value, list):
        return [_without_times(item) for item in value]
    return re.sub(r" · (?:[0-9.]+ s|\d+ min \d+ s|\d+ h \d+ min)(?= )", "", value) if isinstance(value, str) else value


async def test_importing_again_changes_nothing(opened: OpenLedger, tmp_path: Path) -> None:
    session = await _rich(opened.ledger, tmp_path)
    data = await _export(opened.ledger, tmp_path, session)
    first = await _load(opened.ledger, tmp_path, data, tmp_path)
    tables = ("events", "turns", "effects", "sessions", "approvals", "rewinds", "outbox", "search_passages")
    before = [sql(opened.url, f"SELECT count(*) FROM {table}") for table in tables]
    again = await asyncio.gather(*(_load(opened.ledger, tmp_path, data, tmp_path) for _ in range(3)))
    assert {(done.session_id, done.created) for done in again} == {(first.session_id, False)}
    assert [sql(opened.url, f"SELECT count(*) FROM {table}") for table in tables] == before


async def test_nothing_of_an_import_ever_runs(sqlite_ledger: Ledger, tmp_path: Path) -> None:
    session = await _rich(sqlite_ledger, tmp_path)
    done = await _load(sqlite_ledger, tmp_path, await _export(sqlite_ledger, tmp_path, session), tmp_path)

    def look(tx: LedgerTx) -> None:
        assert tx.turns.running(done.session_id) is None
        turns = tx.turns.page(done.session_id, before_number=None, limit=50)
        for turn in turns:
            assert turn.state.terminal
            assert tx.outbox.pending(turn.turn_id) is None
            assert tx.effects.open_of_turn(turn.turn_id) == []
        for effect in tx.effects.page(done.session_id, turn_id=None, state=None, limit=200):
            assert effect.state in {*SETTLED_EFFECT_STATES, EffectState.UNCERTAIN}
        assert turns[0].state is TurnState.INTERRUPTED

    await sqlite_ledger.read(look)


async def test_the_workspace_is_a_person_s_choice(sqlite_ledger: Ledger, tmp_path: Path) -> None:
    builder = Builder(sqlite_ledger)
    session = await builder.session("x", "/somewhere/else")
    await builder.turn(session, Said("x"))
    data = await _export(sqlite_ledger, tmp_path, session)
    there = data.replace(b"/somewhere/else", b"/etc")
    with pytest.raises(BadLine, match="hash chain"):
        await _load(sqlite_ledger, tmp_path, there)
    head = data.split(b"\n", 3)
    head[2] = head[2].replace(b"/somewhere/else", b"/etc")
    with pytest.raises(InvalidInput, match="needs a folder"):
        await _load(sqlite_ledger, tmp_path, b"\n".join(head))
    with pytest.raises(InvalidInput, match="does not exist"):
        await _load(sqlite_ledger, tmp_path, data, tmp_path / "none")
    done = await _load(sqlite_ledger, tmp_path, data)
    found = await sqlite_ledger.read(lambda tx: tx.sessions.get(done.session_id))
    assert found.workspace.path == "/somewhere/else"


async def test_a_document_that_was_set_anew(sqlite_ledger: Ledger, tmp_path: Path) -> None:
    session = await _rich(sqlite_ledger, tmp_path)
    data = await _export(sqlite_ledger, tmp_path, session)
    pretty = json.dumps(json.loads(data), indent=2).encode()
    first = await _load(sqlite_ledger, tmp_path, pretty, tmp_path)
    assert first.created
    assert not (await _load(sqlite_ledger, tmp_path, data, tmp_path)).created


def _lines(edit: Callable[[list[bytes]], object]) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        lines = data.split(b"\n")
        edit(lines)
        return b"\n".join(lines)

    return change


def _at(data: bytes, section: str) -> int:
    return data.split(b"\n").index(b'"%s":[' % section.encode()) + 1


DAMAGE: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("breaks off", lambda data: data[: len(data) // 2]),
    ("breaks off", lambda data: data[: data.rindex(b'"end"')]),
    ("follows", lambda data: data + b"{}\n"),
    ("version", lambda data: data.replace(b'"version":1,\n', b'"version":99,\n', 1)),
    ("format", lambda data: data.replace(b'"milepost.session"', b'"other.session"', 1)),
    ("Line 4", _lines(lambda lines: lines.__setitem__(3, b'"turnips":['))),
    ("no JSON", _lines(lambda lines: lines.__setitem__(4, b"{nonsense,"))),
    ("must be a JSON object", _lines(lambda lines: lines.__setitem__(4, b"[1],"))),
    ("Line 5: This is no turn", _lines(lambda lines: lines.__setitem__(4, b"{},"))),
    ("Turn number", _lines(lambda lines: lines.pop(4))),
    ("is there twice|missing", _lines(lambda lines: lines.insert(4, lines[4]))),
    ("hash chain", lambda data: data.replace(b"common answer", b"another answer")),
    ("hash chain|Event", lambda data: data.replace(b'"at":17000000', b'"at":17000001')),
    ("blob", lambda data: data.replace(b'"data":"bG9u', b'"data":"bG9v', 1)),
    ("base64", lambda data: data.replace(b'"data":"bG9u', b'"data":"!!!!', 1)),
    ("Records are missing", lambda data: data.replace(b'"turns":5', b'"turns":6')),
    ("no event 'run.started'", lambda data: data.replace(b'"type":"turn.begun"', b'"type":"run.started"', 1)),
]


async def test_damage_is_refused_with_its_place(sqlite_ledger: Ledger, tmp_path: Path) -> None:
    session = await _rich(sqlite_ledger, tmp_path)
    data = await _export(sqlite_ledger, tmp_path, session)
    for reason, damage in DAMAGE:
        damaged = damage(data)
        assert damaged != data
        with pytest.raises(BadLine, match=reason) as error:
            await _load(sqlite_ledger, tmp_path, damaged, tmp_path)
        assert error.value.field == "file"
    assert len(await sqlite_ledger.read(lambda tx: tx.sessions.page(status=None, before=None, limit=50))) == 1


async def test_a_fault_while_writing_leaves_nothing(
    opened: OpenLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await _rich(opened.ledger, tmp_path)
    data = await _export(opened.ledger, tmp_path, session)
    tables = ("streams", "events", "turns", "effects", "sessions", "search_passages")
    before = [sql(opened.url, f"SELECT count(*) FROM {table}") for table in tables]

    def fails(*_: Any) -> None:
        raise LookupError

    with monkeypatch.context() as patch:
        patch.setattr("milepost.services.importing.service.end_turn", fails)
        with pytest.raises(LookupError):
            await _load(opened.ledger, tmp_path, data, tmp_path)
    assert [sql(opened.url, f"SELECT count(*) FROM {table}") for table in tables] == before
    assert (await _load(opened.ledger, tmp_path, data, tmp_path)).created


def _transcript(*lines: dict[str, Any]) -> bytes:
    return b"\n".join(json.dumps(line).encode() for line in lines) + b"\n"


CONVERSATION = _transcript(
    {"type": "session", "title": "Date parser", "id": "42", "at": "2026-01-31T12:00:00Z"},
    {"role": "system", "text": "You are careful."},
    {"role": "user", "text": "Fix the failing test \ud800\0", "at": "2026-01-31T12:00:01Z"},
    {
        "role": "assistant",
        "text": "Let me look.",
        "reasoning": "hm",
        "agent": "coder",
        "model": "gpt-x",
        "tool_calls": [
            {"id": "c1", "name": "bash", "arguments": {"command": "pytest"}},
            {"id": "c2", "name": "read_file", "arguments": "not even JSON"},
        ],
        "usage": {"input_tokens": 100, "output_tokens": 5},
    },
    {"role": "tool", "call_id": "c2", "text": "y" * 300_000},
    {"role": "tool", "call_id": "c1", "text": "1 failed", "is_error": True},
    {"role": "assistant", "text": "Fixed.", "agent": "coder", "at": "2026-01-31T12:01:00+00:00"},
    {"role": "user", "text": "And the docs?"},
    {"role": "assistant", "text": "On it.", "agent": "coder", "tool_calls": [{"id": "c1", "name": "bash"}]},
    {"role": "user", "text": "Hello?"},
)


async def test_a_transcript(ledger: Ledger, tmp_path: Path) -> None:
    done = await _load(ledger, tmp_path, CONVERSATION, tmp_path)
    assert (done.created, done.format, done.turns, done.interrupted) == (True, "transcript", 3, 2)
    page = await HistoryService(ledger).page(done.session_id)
    last, second, first = page.entries
    assert [entry.turn.state for entry in (first, second, last)] == ["completed", "interrupted", "interrupted"]
    assert first.output == Content("Fixed.")
    assert [(card.tool, card.state, card.is_error, card.truncated) for card in first.tools] == [
        ("bash", "failed", True, False),
        ("read_file", "succeeded", False, True),
    ]
    assert first.tools[1].arguments == "not even JSON"
    finished = await HistoryService(ledger).tool_result(first.tools[1].effect_id)
    assert await _contents(tmp_path).load(finished.output) == "y" * 300_000
    assert (first.agents[0].agent, first.agents[0].model, first.agents[0].rounds) == ("coder", "gpt-x", 2)
    assert first.turn.usage.total_tokens == 105 and not first.turn.usage.complete
    assert (first.turn.ended_at or 0) - first.turn.created_at == 59_000_000
    assert [(card.tool, card.state) for card in second.tools] == [("bash", "cancelled")]
    assert second.output == Content("On it.")
    hits = await SearchService(ledger).search(SearchRequest("failing test"))
    assert [hit.session_title for hit in hits.hits] == ["Date parser"]
    again = await _load(ledger, tmp_path, CONVERSATION, tmp_path)
    assert (again.session_id, again.created) == (done.session_id, False)
    assert (await VerificationService(ledger, _contents(tmp_path)).verify()).findings == []
    # What was imported from another tool is a Session like any other.
    exported = await _export(ledger, tmp_path, done.session_id)
    assert (await _load(ledger, tmp_path, exported, tmp_path)).created


BAD_LINES: list[tuple[str, bytes]] = [
    ("no message of role 'user'", b""),
    ("no message of role 'user'", b"\n\n  \n"),
    ("Line 1: This is no JSON", b"hello\n"),
    ("Line 1: This is no JSON", b"\xff\xfe\x00"),
    ("Line 1: A line must be a JSON object", b"[1, 2]\n"),
    ("Line 1: This is no JSON", b"[" * 100_000),
    ("Line 1: 'role' must be one of", b'{"role": "boss", "text": "x"}'),
    ("Line 1: 'role' must be one of", b'{"role": 1}'),
    ("Line 1: A message of role 'assistant' comes before", b'{"role": "assistant", "text": "x"}'),
    ("Line 1: A request must have text", b'{"role": "user", "text": " "}'),
    ("Line 1: 'text' must be a text", b'{"role": "user", "text": 5}'),
    ("Line 1: The key 'txt' is not known", b'{"role": "user", "text": "x", "txt": "y"}'),
    ("Line 1: 'at' must be a time", b'{"role": "user", "text": "x", "at": "yesterday"}'),
    ("Line 1: 'at' must be a time", b'{"role": "user", "text": "x", "at": "9999-12-31T23:59:59-12:00"}'),
    ("Line 1: 'at' must be a time", b'{"role": "user", "text": "x", "at": "0001-01-01T00:00:00+12:00"}'),
    ("Line 2: 'call_id' names no call", b'{"role":"user","text":"x"}\n{"role":"tool","call_id":"c","text":"y"}'),
    ("Line 2: 'tool_calls' must be", b'{"role":"user","text":"x"}\n{"role":"assistant","tool_calls":5}'),
    ("Line 2: 'name' must be a text", b'{"role":"user","text":"x"}\n{"role":"assistant","tool_calls":[{"id":"1"}]}'),
    ("Line 2: Token counts", b'{"role":"user","text":"x"}\n{"role":"assistant","usage":{"input_tokens":-1}}'),
    ("Line 2: The line about the session", b'{"role":"user","text":"x"}\n{"type":"session"}'),
    ("Line 3: .*breaks off|no JSON", b'{"role":"user","text":"x"}\n\n{"role":"assist'),
]


async def test_bad_transcripts_are_refused_with_their_line(sqlite_ledger: Ledger, tmp_path: Path) -> None:
    for reason, data in BAD_LINES:
        with pytest.raises(BadLine, match=reason):
            await _load(sqlite_ledger, tmp_path, data, tmp_path)
    assert await sqlite_ledger.read(lambda tx: tx.sessions.page(status=None, before=None, limit=5)) == []


async def test_any_bytes_are_refused_or_imported(sqlite_ledger: Ledger, tmp_path: Path) -> None:
    """Every export cut and changed at many places: an error with a code, or a Session; never anything else."""
    session = await _rich(sqlite_ledger, tmp_path)
    data = await _export(sqlite_ledger, tmp_path, session)
    head = data[: data.index(b'"blobs":[')]
    for at in range(0, len(head), max(1, len(head) // 120)):
        for changed in (data[:at], data[:at] + b"\0" + data[at + 1 :], data[:at] + b'"' + data[at:]):
            try:
                await _load(sqlite_ledger, tmp_path, changed, tmp_path)
            except MilepostError as error:
                assert error.code == "invalid_input"
