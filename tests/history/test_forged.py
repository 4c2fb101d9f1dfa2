"""Files that somebody wrote himself: their hash chain holds, and still they may not touch, open or break anything."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from milepost.bootstrap.system import SystemClock, UuidIds
from milepost.domain.effects import EffectState
from milepost.domain.turns import TurnState
from milepost.engine.budgets import session_scope
from milepost.ledger.chain import GENESIS, event_hash
from milepost.ledger.codec import canonical_bytes
from milepost.ports.ledger import Ledger
from milepost.services.exporting.lossless import LosslessExport
from milepost.services.exporting.reading import SpanReader
from milepost.services.finishing import Ending
from milepost.services.importing.plan import BadLine
from milepost.services.rewinds import RewindService, RewindTo
from milepost.services.verification import VerificationService
from tests.history.build import Builder, Call, Said
from tests.history.test_import import _contents, _export, _load
from tests.ledger.samples import sql
from tests.support.databases import OpenLedger

Edit = Callable[[dict[str, Any], str, str], object]


async def _source(ledger: Ledger, root: Path) -> str:
    builder = Builder(ledger)
    session = await builder.session("A title", str(root))
    await builder.turn(session, Said("first", "answer", [Call("bash", "{}")]))
    await builder.turn(session, Said("second", "answer"))
    await RewindService(ledger, SystemClock(), UuidIds()).rewind(RewindTo(session, "api", number=1))
    await builder.turn(session, Said("third", "half", [Call("bash", "{}", lost=True)], ending=None))
    return session


def _forged(data: bytes, edit: Edit, victim: str, turn: str) -> bytes:
    """The document changed, and then made whole again: sequence, hash chain, counts."""
    document = json.loads(data)
    edit(document, victim, turn)
    head = GENESIS
    for seq, event in enumerate(document["events"], start=1):
        event["seq"] = seq
        header = (event["key"], event["type"], event["version"], event["at"], event["turn_id"])
        payload = canonical_bytes(event["payload"])
        head = event_hash(head, document["session"]["session_id"], seq, *header, payload)
    document["end"] = {
        "head_hash": head.hex(),
        "counts": {name: len(document[name]) for name in document["end"]["counts"]},
    }
    return json.dumps(document).encode()


def _put(*path: str | int) -> Callable[[Any], Edit]:
    """Replace what lies at a path. A text VICTIM or TURN stands for what is here already."""

    def to(value: Any) -> Edit:
        def edit(document: dict[str, Any], victim: str, turn: str) -> None:
            at: Any = document
            for step in path[:-1]:
                at = at[step]
            at[path[-1]] = {"VICTIM": victim, "TURN": turn}.get(value, value) if isinstance(value, str) else value

        return edit

    return to


def _event(document: dict[str, Any], kind: str) -> int:
    return next(index for index, event in enumerate(document["events"]) if event["type"] == kind)


def _approval(document: dict[str, Any], victim: str, turn: str) -> None:
    spec = document["effects"][0]["spec"]
    named = {"effect_id": spec["effect_id"], "session_id": victim, "turn_id": spec["turn_id"]}
    texts = {"agent": "a", "tool": "bash", "call_id": "c", "input_digest": "0", "preview": "rm", "actor": None}
    more = {"truncated": False, "requested_at": 1, "expires_at": 2, "resolved_at": None, "reason": None}
    document["approvals"].append({"approval_id": "apr_x", "state": "pending", **named, **texts, **more})


def _pending(document: dict[str, Any], victim: str, turn: str) -> None:
    _approval(document, document["session"]["session_id"], turn)
    ended = document["turns"][0]["turn_id"]
    spec = next(each["spec"] for each in document["effects"] if each["spec"]["turn_id"] == ended)
    document["approvals"][0] |= {"turn_id": ended, "effect_id": spec["effect_id"]}


def _open_effect(document: dict[str, Any], victim: str, turn: str) -> None:
    ended = document["turns"][0]["turn_id"]
    next(each for each in document["effects"] if each["spec"]["turn_id"] == ended)["state"] = "dispatched"


def _no_end(document: dict[str, Any], victim: str, turn: str) -> None:
    del document["events"][_event(document, "turn.completed")]


def _again(kind: str, key: str = "/again") -> Edit:
    """An event once more after the first turn's end."""

    def edit(document: dict[str, Any], victim: str, turn: str) -> None:
        more = copy.deepcopy(document["events"][_event(document, kind)])
        more["key"] += key
        document["events"].insert(_event(document, "turn.completed") + 1, more)

    return edit


def _begun_as(document: dict[str, Any], victim: str, turn: str) -> None:
    document["events"][_event(document, "turn.begun")]["payload"]["turn_id"] = turn


def _begun_nowhere(document: dict[str, Any], victim: str, turn: str) -> None:
    document["events"][_event(document, "turn.begun")]["turn_id"] = None


def _other_number(document: dict[str, Any], victim: str, turn: str) -> None:
    document["events"][_event(document, "turn.begun")]["payload"]["number"] = 7


def _same_workflow(document: dict[str, Any], victim: str, turn: str) -> None:
    document["turns"][1]["workflow_id"] = document["turns"][0]["workflow_id"]


def _deep(document: dict[str, Any], victim: str, turn: str) -> None:
    value: Any = 1
    for _ in range(400):
        value = [value]
    document["events"][_event(document, "tool.finished")]["payload"]["detail"] = {"x": value}


def _blob(digest: str) -> Edit:
    record = {"digest": digest, "size": 1, "media_type": "x", "offset": 0, "data": base64.b64encode(b"x").decode()}
    return lambda document, victim, turn: document["blobs"].append(record)


PATH = {"digest": "../../../../etc/passwd", "size": 10, "media_type": "x"}
FORGERIES: list[tuple[str, Edit]] = [
    ("effect belongs to another Session", _put("effects", 0, "spec", "session_id")("VICTIM")),
    ("effect belongs to no turn", _put("effects", 0, "spec", "turn_id")("TURN")),
    ("rewind belongs to another Session", _put("rewinds", 0, "session_id")("VICTIM")),
    ("approval belongs to another Session", _approval),
    ("turn belongs to another Session", _put("turns", 0, "session_id")("VICTIM")),
    ("belongs to no turn", _begun_as),
    ("begins twice, or as another", _begun_nowhere),
    ("another number", _other_number),
    ("open, but its turn has ended", _pending),
    ("open, but its turn has ended", _open_effect),
    ("turn is 'running', but its events end it", _put("turns", 0, "state")("running")),
    ("turn is 'failed', but its events end it", _put("turns", 0, "state")("failed")),
    ("More than one turn has no end", _no_end),
    ("after its turn has ended", _again("turn.completed")),
    ("after its turn has ended", _again("agent.output")),
    ("is there twice", _again("agent.output", "")),
    ("is there twice", _same_workflow),
    ("does not have", _put("rewinds", 0, "last_number")(9)),
    ("does not have", _put("rewinds", 0, "to_number")(2)),
    ("'to_number' is out of range", _put("rewinds", 0, "to_number")(-1)),
    ("'last_number' is out of range", _put("rewinds", 0, "last_number")(2**62)),
    ("'generation' is out of range", _put("turns", 0, "generation")(10**15)),
    ("'attempt' is out of range", _put("effects", 0, "attempt")(10**30)),
    ("'created_at' is out of range", _put("turns", 0, "created_at")(10**30)),
    ("'at' is out of range", _put("events", 3, "at")(2**62)),
    ("'model_calls' is out of range", _put("session", "spending", "model_calls")(10**30)),
    ("nobody can have used", _put("session", "spending", "model_calls")(-1)),
    ("nobody can have used", _put("session", "spending", "assumed_micros")("Infinity")),
    ("nested over", _deep),
    ("blob before is not", _blob("../../etc/passwd")),
    ("no SHA-256 digest", _put("turns", 0, "request", "text", "blob")(PATH)),
]


async def test_forged_files_are_refused_and_leave_nothing(sqlite_ledger: Ledger, tmp_path: Path) -> None:
    victim = await _source(sqlite_ledger, tmp_path)
    session = await _source(sqlite_ledger, tmp_path)
    turn = (await sqlite_ledger.read(lambda tx: tx.turns.numbered(victim, 1))).turn_id
    data = await _export(sqlite_ledger, tmp_path, session)
    for reason, edit in FORGERIES:
        forged = _forged(data, edit, victim, turn)
        assert forged != _forged(data, lambda *_: None, victim, turn), reason
        with pytest.raises(BadLine, match=reason):
            await _load(sqlite_ledger, tmp_path, forged, tmp_path)
    # Nothing came of any of them; the same document as it was is accepted.
    assert (await _load(sqlite_ledger, tmp_path, _forged(data, lambda *_: None, victim, turn), tmp_path)).created
    assert len(await sqlite_ledger.read(lambda tx: tx.sessions.page(status=None, before=None, limit=9))) == 3
    assert (await VerificationService(sqlite_ledger, _contents(tmp_path)).verify()).findings == []


async def test_a_file_brings_no_reservation(opened: OpenLedger, tmp_path: Path) -> None:
    ledger = opened.ledger
    data = await _export(ledger, tmp_path, await _source(ledger, tmp_path))

    def edit(document: dict[str, Any], victim: str, turn: str) -> None:
        document["session"]["spending"] |= {"reserved_tokens": 10**9, "reserved_micros": "1E+9", "tool_calls": 3}

    done = await _load(ledger, tmp_path, _forged(data, edit, "", ""), tmp_path)
    spent = await ledger.read(lambda tx: tx.budgets.spending(session_scope(done.session_id)))
    assert (spent.reserved_tokens, spent.reserved_micros, spent.tool_calls) == (0, 0, 3)
    for table in ("outbox", "leases", "reservations", "workspace_states", "workspace_waits", "workspace_restores"):
        assert sql(opened.url, f"SELECT count(*) FROM {table}")[0][0] == 0, table


async def test_what_was_imported_can_be_exported_and_imported_again(sqlite_ledger: Ledger, tmp_path: Path) -> None:
    """Each import adds its own event, also to a Session that came by one."""
    session = await _source(sqlite_ledger, tmp_path)
    for count in (1, 2, 3):
        done = await _load(sqlite_ledger, tmp_path, await _export(sqlite_ledger, tmp_path, session), tmp_path)
        session = done.session_id
        events = await sqlite_ledger.read(lambda tx, new=session: tx.events.read(new))  # type: ignore[misc]
        assert [event.type for event in events].count("import.completed") == count
        assert events[-1].type == "import.completed"


async def test_an_export_during_which_the_session_goes_on_can_be_imported(
    sqlite_ledger: Ledger, tmp_path: Path
) -> None:
    """Turns that begin while it is written, with all their rows, are not of it."""
    session = await _source(sqlite_ledger, tmp_path)
    span = await SpanReader(sqlite_ledger).open(session)
    pieces = LosslessExport(sqlite_ledger, _contents(tmp_path), span, "0.1.0", 1).pieces()
    data = [await anext(pieces)]
    builder = Builder(sqlite_ledger)
    running = await sqlite_ledger.read(lambda tx: tx.turns.running(session))
    assert running is not None

    def end(tx: Any) -> None:
        from milepost.services.finishing import end_turn

        end_turn(tx, running, Ending(TurnState.STOPPED, "lunch"), running.created_at)

    await sqlite_ledger.write(end)
    await builder.turn(session, Said("fourth", "answer", [Call("bash", "{}")]))
    await RewindService(sqlite_ledger, SystemClock(), UuidIds()).rewind(RewindTo(session, "api", number=3))
    data += [piece async for piece in pieces]
    done = await _load(sqlite_ledger, tmp_path, b"".join(data), tmp_path)
    assert (done.turns, done.interrupted) == (3, 1)
    effects = await sqlite_ledger.read(
        lambda tx: tx.effects.page(done.session_id, turn_id=None, state=EffectState.DISPATCHED, limit=9)
    )
    assert effects == []
    assert (await VerificationService(sqlite_ledger, _contents(tmp_path)).verify()).findings == []
