"""Files of before 1.0 are read where nothing newer is, and stay as they are."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from milepost.bootstrap.system import SystemClock, UuidIds
from milepost.domain.agents import AgentConfig
from milepost.domain.errors import InvalidInput, LegacyUnusable, StorageUnavailable
from milepost.domain.memory import DEFAULT_BLOCKS, BlockVersion, DailyEntry, Scope
from milepost.domain.semantic import AddOutcome, MemoryEntry
from milepost.domain.turns import TurnState
from milepost.ledger import legacy as form
from milepost.memory import legacy_files
from milepost.memory.block_files import FileBlocks
from milepost.memory.daily_files import FileDailyLog
from milepost.memory.legacy import LegacyBlocks, LegacyDailyLog, LegacySemantic
from milepost.memory.legacy_files import LegacyFiles, legacy_name
from milepost.ports.ledger import Ledger
from milepost.services.blocks import Author, BlockService, appended
from milepost.services.contents import Contents
from milepost.services.history import HistoryService
from milepost.services.importing.recovery import RecoveryService
from milepost.services.sessions import OpenSession, SessionService
from milepost.services.verification import VerificationService
from milepost.storage import FileBlobStore, open_ledger, open_notifier
from tests.support.semantic import WordMemory

OWNER = Scope.agent("ses_1", "coder")
NAME = "ses_1:coder"
DAY = 86_400_000_000
NOON = 20_000 * DAY + DAY // 2


def _put(root: Path, path: str, data: object) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    return file


def _tree(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file() and "v1" not in path.parts and path.suffix.startswith(".json")
    }


def test_names_are_the_keys_as_they_are() -> None:
    assert legacy_name(OWNER) == NAME
    assert legacy_name(Scope.worker("s", "c", "w")) == "s:c:worker:w"
    assert legacy_name(Scope.shared("team")) is None
    for agent in ("a/b", "..", "é", "x" * 300, "a."):
        assert legacy_name(Scope.agent("s", agent)) is None
    files = LegacyFiles(Path("/nowhere"))
    for name in ("v1", "shared", "../x", "", ".x", "a/b", "a\0b"):
        with pytest.raises(LegacyUnusable):
            files.checkpoints(name)
    assert files.checkpoints("fine") == []


def test_only_plain_files_of_this_user_within_the_limit_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = LegacyFiles(tmp_path)
    core = _put(tmp_path, f"memory/core/{NAME}.json", {"blocks": {}})
    assert files.core(OWNER) is not None
    core.rename(tmp_path / "elsewhere.json")
    core.symlink_to(tmp_path / "elsewhere.json")
    assert files.core(OWNER) is None, "a link"
    core.unlink()
    os.mkfifo(core)
    assert files.core(OWNER) is None, "a pipe does not hang a read"
    folder = tmp_path / "memory" / "daily_log"
    _put(tmp_path, "real/2026-01-31.jsonl", b"{}")
    folder.mkdir(parents=True)
    (folder / NAME).symlink_to(tmp_path / "real")
    assert files.days(OWNER) == [] and files.day(OWNER, "2026-01-31") is None, "a linked folder"
    records = _put(tmp_path, f"memory/semantic/{NAME}/records.jsonl", b"x" * 50)
    monkeypatch.setattr(legacy_files, "MAX_RECORDS_BYTES", 49)
    assert files.records(OWNER) is None, "too large"
    monkeypatch.setattr(legacy_files, "MAX_RECORDS_BYTES", 50)
    assert files.records(OWNER) is not None
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert files.records(OWNER) is None and records.exists(), "of another user"


def test_versions_are_read_exactly(tmp_path: Path) -> None:
    for name in ("7.json", "12.json", "007.json", "x.json", "9.bin", "8.json.tmp", "-1.json"):
        _put(tmp_path, f"checkpoints/old/{name}", {})
    assert LegacyFiles(tmp_path).checkpoints("old") == [12, 7]


async def test_blocks_fall_back_until_something_is_written(tmp_path: Path, sqlite_ledger: Ledger) -> None:
    _put(tmp_path, f"memory/core/{NAME}.json", {"blocks": {"human": "Is Ann.", "project": {"value": "Ships."}}})
    before = _tree(tmp_path)
    inner = FileBlocks(tmp_path)
    blocks = LegacyBlocks(inner, LegacyFiles(tmp_path))
    (version,) = await blocks.versions(OWNER, "human")
    assert (version.number, version.value, version.by) == (1, "Is Ann.", "legacy")
    assert await blocks.all(Scope.agent("ses_2", "coder")) == {}, "nobody else's"
    assert await inner.all(OWNER) == {}, "reading copies nothing"
    service = BlockService(sqlite_ledger, blocks)
    human = DEFAULT_BLOCKS[1]
    await service.edit(OWNER, human, Author("me", "k", 1), appended("Likes tea."))
    assert (await service.one(OWNER, human)).value == "Is Ann.\nLikes tea."
    assert (await service.one(OWNER, DEFAULT_BLOCKS[2])).value == "Ships.", "the others came along"
    assert [item.number for item in await inner.versions(OWNER, "human")] == [1, 2]
    _put(tmp_path, f"memory/core/{NAME}.json", {"blocks": {"human": "changed"}})
    assert (await service.one(OWNER, human)).value == "Is Ann.\nLikes tea.", "the current one wins"
    await service.revert(OWNER, human, Author("me", "k2", 2), 1)
    assert (await service.one(OWNER, human)).value == "Is Ann."
    _put(tmp_path, f"memory/core/{NAME}.json", {"blocks": {"human": "Is Ann.", "project": {"value": "Ships."}}})
    assert _tree(tmp_path) == before


async def test_a_first_write_to_another_block_loses_none_of_the_old_ones(tmp_path: Path) -> None:
    _put(tmp_path, f"memory/core/{NAME}.json", {"blocks": {"human": "Is Ann.", "project": {"value": "Ships."}}})
    blocks = LegacyBlocks(FileBlocks(tmp_path), LegacyFiles(tmp_path))
    await blocks.write(OWNER, "notes", BlockVersion(1, "New.", 5, "coder", "turn"))
    found = {label: versions[-1].value for label, versions in (await blocks.all(OWNER)).items()}
    assert found == {"human": "Is Ann.", "project": "Ships.", "notes": "New."}


async def test_broken_blocks_are_none(tmp_path: Path) -> None:
    for data in (b"", b"[]", b'{"blocks": {"human": 5}}', b"[" * 100_000):
        _put(tmp_path, f"memory/core/{NAME}.json", data)
        assert await LegacyBlocks(FileBlocks(tmp_path), LegacyFiles(tmp_path)).all(OWNER) == {}


async def test_daily_logs_are_merged_and_appended_to_the_current_one(tmp_path: Path) -> None:
    lines = [
        {"at": NOON / 1e6, "text": "old noon", "id": "same"},
        {"at": (NOON + 7200_000_000) / 1e6, "text": "old later"},
        {"text": "no time"},
        5,
    ]
    # The file's name is a day of another time zone.
    date = "2024-10-03"
    _put(tmp_path, f"memory/daily_log/{NAME}/{date}.jsonl", "\n".join(map(json.dumps, lines)).encode() + b"\nbroken\n")
    before = _tree(tmp_path)
    inner = FileDailyLog(tmp_path)
    log = LegacyDailyLog(inner, LegacyFiles(tmp_path))
    await log.append(
        OWNER, [DailyEntry("new", NOON + 1, "note", "me", "new"), DailyEntry("same", NOON, "note", "me", "wins")]
    )
    found = await log.read(OWNER, NOON, NOON + DAY, limit=10)
    assert [entry.text for entry in found.entries] == ["wins", "new", "old later"] and found.damaged == 3
    assert [entry.text for entry in (await log.read(OWNER, NOON, NOON + DAY, limit=2)).entries] == ["wins", "new"]
    rest = await log.read(OWNER, NOON, NOON + DAY, limit=2, after=(NOON + 1, "new"))
    assert [entry.text for entry in rest.entries] == ["old later"]
    assert (await log.read(OWNER, NOON + 2 * DAY, NOON + 3 * DAY, limit=9)).entries == ()
    assert date in await log.days(OWNER) and len(await inner.days(OWNER)) == 1
    assert (await log.read(Scope.agent("ses_2", "coder"), NOON, NOON + DAY, limit=9)).entries == ()
    assert _tree(tmp_path) == before


async def test_records_are_taken_once_and_a_kill_in_between_is_made_good(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"fact {n}", "kind": "FACT"}) for n in range(5)]
    _put(tmp_path, f"memory/semantic/{NAME}/records.jsonl", "\n".join([*lines, "broken", '{"text": " "}']).encode())
    files, inner = LegacyFiles(tmp_path), WordMemory()
    await inner.add(OWNER, form.memory_entries(b"\n".join(line.encode() for line in lines[:2]), 1))
    memory = LegacySemantic(inner, files)
    assert {record.text for record in await memory.page(OWNER)} == {f"fact {n}" for n in range(5)}
    (known,) = await memory.add(OWNER, [MemoryEntry("legacy-1", "fact 0", "fact", 1)])
    assert known.outcome is AddOutcome.KNOWN
    assert (await LegacySemantic(inner, files).stats(OWNER)).entries == 5
    other = WordMemory()
    await other.add(OWNER, [MemoryEntry("mine", "mine", "fact", 1)])
    assert (await LegacySemantic(other, files).stats(OWNER)).entries == 1, "the current one wins"
    forgetting = WordMemory()
    memory = LegacySemantic(forgetting, files)
    assert len((await memory.search(OWNER, "fact", limit=9)).items) == 5
    await memory.forget(OWNER, [f"legacy-{n}" for n in range(1, 6)], "me")
    assert (await LegacySemantic(forgetting, files).stats(OWNER)).entries == 0, "what was forgotten does not come back"


SAID = {
    "messages": [
        {"role": "system", "content": "Be careful."},
        {"role": "assistant", "content": "before anybody asked"},
        {"role": "user", "content": "List the files", "at": "2026-01-31T12:00:00Z"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "name": "list_dir", "arguments": {"path": "."}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
        {"role": "tool", "tool_call_id": "nobody", "content": "?"},
        {"role": "assistant", "content": "There is a.txt."},
        {"role": "user", "content": "And now?"},
    ],
    "usage": {"input_tokens": 10, "output_tokens": 5, "complete": True},
}


class Recovering:
    def __init__(self, ledger: Ledger, folder: Path) -> None:
        clock, ids = SystemClock(), UuidIds()
        agents = {"coder": AgentConfig("coder", "scripted", "demo")}
        self.ledger = ledger
        self.folder = folder
        self.sessions = SessionService(ledger, clock, ids, agents, "coder")
        self.written: list[str] = []
        self.fails = False
        contents = Contents(FileBlobStore(folder / "blobs"))
        self.service = RecoveryService(ledger, contents, clock, LegacyFiles(folder), self._write)
        self.verify = VerificationService(ledger, contents)
        self.history = HistoryService(ledger)

    async def _write(self, session_id: str) -> None:
        # The ledger was first.
        assert await self.ledger.read(lambda tx: tx.turns.page(session_id, before_number=None, limit=1))
        if self.fails:
            raise StorageUnavailable("full")
        self.written.append(session_id)

    async def open(self) -> str:
        (self.folder / "project").mkdir(exist_ok=True)
        return (await self.sessions.open(OpenSession(str(self.folder / "project")))).session_id


@pytest.fixture
async def recovering(sqlite_url: str, tmp_path: Path) -> AsyncIterator[Recovering]:
    notifier = await open_notifier(sqlite_url)
    ledger = await open_ledger(sqlite_url, notifier)
    yield Recovering(ledger, tmp_path)
    await ledger.close()
    await notifier.close()


async def test_a_session_without_turns_is_recovered_once(recovering: Recovering, tmp_path: Path) -> None:
    session = await recovering.open()
    _put(tmp_path, f"checkpoints/{session}:coder/3.json", SAID)
    _put(tmp_path, f"checkpoints/{session}:coder/12.json", b'{"messages": "torn')
    _put(tmp_path, f"checkpoints/{session}:coder/5.json", {"messages": [{"role": "system", "content": "x"}]})
    before = _tree(tmp_path / "checkpoints")
    done = await recovering.service.recover(session)
    assert (done.created, done.version, done.turns, done.interrupted) == (True, 3, 2, 1)
    assert len(done.notes) == 2 and "Version 12" in done.notes[0]
    page = await recovering.history.page(session)
    second, first = page.entries
    assert (first.turn.state, first.output.text) == (TurnState.COMPLETED, "There is a.txt.")
    assert first.turn.request.text.text == "List the files" and first.agents[0].agent == "coder"
    assert [(card.tool, card.preview) for card in first.tools] == [("list_dir", "a.txt")]
    assert second.turn.state is TurnState.INTERRUPTED
    assert first.turn.usage.total_tokens == 15 and first.turn.usage.complete
    assert recovering.written == [session]
    assert (await recovering.verify.verify()).findings == []
    again = await recovering.service.recover(session)
    assert not again.created and recovering.written == [session]
    assert len((await recovering.history.page(session)).entries) == 2
    assert _tree(tmp_path / "checkpoints") == before
    # What goes on is a Session like any other.
    assert await recovering.ledger.write(lambda tx: tx.turns.lock_session(session)) == 3


async def test_a_kill_between_the_ledger_and_the_cache_costs_the_cache(recovering: Recovering, tmp_path: Path) -> None:
    session = await recovering.open()
    _put(tmp_path, "checkpoints/old-name/1.json", SAID)
    recovering.fails = True
    assert (await recovering.service.recover(session, "old-name")).created
    assert recovering.written == []
    assert not (await recovering.service.recover(session, "old-name")).created
    assert len((await recovering.history.page(session)).entries) == 2


async def test_what_cannot_be_recovered_is_said(recovering: Recovering, tmp_path: Path) -> None:
    session = await recovering.open()
    with pytest.raises(LegacyUnusable, match=f"checkpoints/{session}:coder"):
        await recovering.service.recover(session)
    _put(tmp_path, "checkpoints/broken/1.json", b"{}")
    with pytest.raises(LegacyUnusable, match="Version 1 was passed over"):
        await recovering.service.recover(session, "broken")
    with pytest.raises(LegacyUnusable, match="is no name"):
        await recovering.service.recover(session, "../broken")
    _put(tmp_path, "checkpoints/one/1.json", SAID)
    _put(tmp_path, "checkpoints/two/1.json", {"messages": [{"role": "user", "content": "other"}]})
    await recovering.service.recover(session, "one")
    with pytest.raises(InvalidInput, match="has turns already"):
        await recovering.service.recover(session, "two")
