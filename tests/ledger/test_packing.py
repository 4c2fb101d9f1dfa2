"""What is kept packed comes back byte for byte; what repeats is kept once; what is damaged is told."""

from __future__ import annotations

import hashlib
import random
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.domain.content import Content
from milepost.domain.effects import EffectState
from milepost.domain.events import StreamKind, ToolFinished
from milepost.engine.effects import idempotency_key
from milepost.ledger.chain import verify_chain
from milepost.ledger.codec import encode
from milepost.ports.ledger import Ledger, NewEvent
from milepost.ports.sandbox import Exec, Outcome
from milepost.storage.bodies import PIECE_BYTES, body, opened
from milepost.storage.packing import WORDS_1, Unpackable, packed, unpacked
from milepost.storage.repeats import MARK, with_repeats, without_repeats
from milepost.tools.rendering import render
from tests.ledger.samples import NASTY, new_turn, spec, sql
from tests.support.databases import OpenLedger
from tests.support.driven import log_text

EXEC: dict[str, Any] = {"command": "make", "timeout": 60.0}


def test_the_words_of_a_form_never_change() -> None:
    assert hashlib.sha256(WORDS_1).hexdigest() == "2f0b68f4d19a6dc2f8bff5c5c5c08c454ca1608e807cafa3002a9d8d76ff12fd"


@given(data=st.binary(max_size=300), known=st.binary(max_size=40))
def test_every_value_comes_back(data: bytes, known: bytes) -> None:
    for value in (data, data * 20, b"\0" + data, b"\1" + data):
        assert unpacked(packed(value, known), known) == value


def test_what_was_kept_before_there_was_packing_is_read() -> None:
    assert unpacked(b'{"old":1}') == b'{"old":1}'
    assert unpacked(b"") == b""


@pytest.mark.parametrize("damage", [lambda kept: kept[:-2], lambda kept: kept + b"x", lambda kept: kept[:1]])
def test_damage_is_told(damage: Any) -> None:
    with pytest.raises(Unpackable):
        unpacked(damage(packed(b"some text that is said twice, " * 9)))


@given(key=st.text(st.characters(exclude_categories=["Cs"]), max_size=40), text=st.text(max_size=200))
def test_every_body_comes_back(key: str, text: str) -> None:
    payload = encode(Content(text * 9))
    for turn in (None, "trn_1"):
        assert opened(body(key, payload, turn), turn) == (key, payload)


def _finished(text: str, full: str | None) -> bytes:
    whole = None if full is None else Content(full)
    event = ToolFinished(
        "trn_1", "a", "e" * 64, 1, 1, 0, "c", "bash", EffectState.SUCCEEDED, Content(text), False, {}, whole
    )
    return encode(event)


@pytest.mark.parametrize("stderr", [0, 50_000], ids=["stdout", "both"])
@pytest.mark.parametrize("special", ["", NASTY.replace("\ud800", "").replace("\udfff", "") + "\n"], ids=["", "nasty"])
def test_a_shortened_output_takes_no_room_beside_the_whole(stderr: int, special: str) -> None:
    chosen = random.Random(1)
    out = (special + log_text(chosen, 100_000)).encode()
    error = (special + log_text(chosen, stderr)).encode() if stderr else b""
    rendered = render("bash", Exec(**EXEC), Outcome(exit_code=3, stdout=out, stderr=error))
    assert rendered.full_text is not None and len(rendered.text) < len(rendered.full_text) / 2
    payload = _finished(rendered.text, rendered.full_text)
    kept = without_repeats(payload)
    assert kept.startswith(MARK)
    assert with_repeats(kept) == payload
    alone = zlib.compress(_finished("", rendered.full_text), 6)
    assert len(packed(kept)) < 1.03 * len(alone)
    # By compression alone it is not seen: it lies too far apart.
    assert len(packed(payload)) > 1.15 * len(alone)


@given(
    full=st.lists(st.sampled_from(["a", "é", '"', "\\", "\n", "xyz" * 40, '"},"round":']), max_size=60),
    cuts=st.lists(st.integers(0, 5000), max_size=4),
)
def test_any_output_comes_back(full: list[str], cuts: list[int]) -> None:
    whole = "".join(full) * 9
    text = "".join(whole[at : at + 3000] + "\n[cut]\n" for at in cuts)
    for payload in (_finished(text, whole), _finished(text, None), _finished(whole, text)):
        assert with_repeats(without_repeats(payload)) == payload


@pytest.mark.parametrize("damage", [b"\2", b"\2[]\n{}", b'\2[1,[[2]]]\n{"a":1}', b"\2{", b'\2[1,["\xc4\x80"]]\n{}'])
def test_damaged_repeats_are_left_as_they_are(damage: bytes) -> None:
    assert with_repeats(damage) == damage


async def test_a_long_event_is_read_in_every_way(opened: OpenLedger) -> None:
    ledger = opened.ledger
    turn = await new_turn(ledger)
    chosen = random.Random(2)
    sizes = (10, PIECE_BYTES, 20_000, 400_000)
    new = [
        NewEvent(f"k{n}", _event(turn.turn_id, log_text(chosen, size), n), turn.turn_id) for n, size in enumerate(sizes)
    ]
    await ledger.write(lambda tx: tx.events.append(turn.session_id, StreamKind.SESSION, new, 5))
    stored = (await ledger.read(lambda tx: tx.events.read(turn.session_id)))[-4:]
    assert [item.payload for item in stored] == [encode(item.event) for item in new]
    types = (ToolFinished.TYPE,)
    assert await ledger.read(lambda tx: tx.events.read_turn(turn.session_id, turn.turn_id, types=types)) == stored
    assert await ledger.read(lambda tx: tx.events.read_turns(turn.session_id, [turn.turn_id], types=types)) == stored
    for item in stored:
        assert await ledger.read(lambda tx, key=item.key: tx.events.find(turn.session_id, key)) == item  # type: ignore[misc]
    verify_chain(await ledger.read(lambda tx: tx.events.read(turn.session_id)))
    (kept,) = sql(opened.url, "SELECT sum(length(body)) FROM events")[0]
    (apart,) = sql(opened.url, "SELECT sum(length(data)) FROM event_pieces")[0]
    assert int(kept) + int(apart) < sum(len(item.payload) for item in stored) / 2


def _event(turn_id: str, text: str, index: int) -> ToolFinished:
    return ToolFinished(
        turn_id, "a", "e" * 64, 1, 1, index, f"c{index}", "bash", EffectState.SUCCEEDED, Content(text), False, {}
    )


async def test_a_key_that_follows_from_the_rest_is_not_kept_twice(opened: OpenLedger) -> None:
    turn = await new_turn(opened.ledger)
    usual = spec(turn)
    key = idempotency_key(usual.turn_id, usual.agent, usual.position, usual.operation, usual.input_digest)
    of_both = [spec(turn, effect_id="usual", idempotency_key=key), spec(turn, effect_id="own", idempotency_key="own")]
    for each in of_both:
        await opened.ledger.write(lambda tx, each=each: tx.effects.dispatch(each, 3, "w"))  # type: ignore[misc]
        found = await opened.ledger.read(lambda tx, each=each: tx.effects.get(each.effect_id))  # type: ignore[misc]
        assert found is not None and found.spec == each
    rows = dict(sql(opened.url, "SELECT effect_id, idempotency_key FROM effects"))
    assert rows == {"usual": "", "own": "own"}
    result = b'{"effect_id":"usual","text":"' + b"x" * 99 + b'"}'
    await opened.ledger.write(lambda tx: tx.effects.settle("usual", 1, EffectState.SUCCEEDED, 4, result))
    found = await opened.ledger.read(lambda tx: tx.effects.get("usual"))
    assert found is not None and found.result == result
    assert sql(opened.url, "SELECT length(result) < 60 FROM effects WHERE effect_id = 'usual'")[0][0]


async def test_a_turns_workflow_id_is_kept_by_what_it_has_of_its_own(ledger: Ledger) -> None:
    for workflow in ("inst/turn/{}", "another"):
        turn = await new_turn(ledger, workflow_id=workflow)
        found = await ledger.read(lambda tx, turn=turn: tx.turns.get(turn.turn_id))  # type: ignore[misc]
        assert found.workflow_id == turn.workflow_id
