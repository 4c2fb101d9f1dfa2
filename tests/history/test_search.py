"""Search: the same texts match on both databases, whatever is asked."""

from __future__ import annotations

import asyncio
import random
import string
from itertools import pairwise

import pytest

from milepost.domain.content import Content
from milepost.domain.errors import InvalidInput, PayloadTooLarge, SessionNotFound
from milepost.domain.search import SearchFilter, SearchKind
from milepost.domain.turns import TurnRequest, TurnState
from milepost.engine.words import words
from milepost.ledger.search import parse_query
from milepost.ledger.words import MAX_PASSAGE_WORDS, OVERLAP_WORDS, passages
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.services.finishing import Ending
from milepost.services.search import Hit, SearchRequest, SearchService
from milepost.storage.tables import turns as turns_table
from tests.history.build import Builder, Call, Said
from tests.ledger.samples import NASTY, connection

TEXTS = {
    "fox": 'The quick brown fox said "Hello, World!" to snake_case_name and path/to/file.py.',
    "german": "Größe und Straße; die Änderung war übermäßig.",
    "french": "Un élève naïf à l'été, CAFÉ.",
    "composed": "cafe\u0301 de\u0301compose\u0301",
    "chinese": "我们在东京都会议中心见面。",
    "japanese": "データベースの移行を実行する。がぎぐ",
    "korean": "한국어 데이터베이스를 검색한다",
    "thai": "สวัสดีครับ ยินดีต้อนรับ",
    "hindi": "हिन्दी भाषा में खोज",
    "arabic": "مُحَمَّد يبحث عن الكتاب",
    "greek": "Ὀδυσσεύς ΣΊΣΥΦΟΣ",
    "code": "if (a->b && c != d) { return x[0]; } // C++ && C#",
    "sql": "SELECT * FROM users WHERE name = 'O''Brien'; -- comment",
    "nasty": NASTY,
    "nul": "before\0after and half\ud800pair",
    "signs": "=> !!! ((( ~~~ $$$",
    "emoji": "deploy 🚀 now 👩‍👩‍👧",
    "long": "x" * 300 + " needle " + "lorem ipsum " * 200,
    "numbers": "version 3.11.2 costs 1,000 or ½ of 10²",
    "backslash": r"C:\temp\new {\"a\": 1} 100% _under_",
}

CASES: list[tuple[str, set[str]]] = [
    ("quick", {"fox"}),
    ("QUICK fox", {"fox"}),
    ("fox quick", {"fox"}),
    ('"quick brown"', {"fox"}),
    ('"brown quick"', set()),
    ("quick -fox", set()),
    ("quick -cat", {"fox"}),
    ("nothing OR fox", {"fox"}),
    ("qui*", {"fox"}),
    ('"quick bro"*', {"fox"}),
    ("snake_case_name", {"fox"}),
    ("case_name", {"fox"}),
    ("name", {"fox", "sql"}),
    ("to/file.py", {"fox"}),
    ("file.to", set()),
    ("grosse", {"german"}),
    ("GRÖSSE", {"german"}),
    ("strasse ubermaßig", {"german"}),
    ("eleve", {"french"}),
    ("café", {"french", "composed"}),
    ("cafe\u0301 decompose", {"composed"}),
    ("东京", {"chinese"}),
    ("京都", {"chinese"}),
    ("京东", set()),
    ("会议 我们", {"chinese"}),
    ("データベース", {"japanese"}),
    ("ベース 移行", {"japanese"}),
    ("がぎぐ", {"japanese"}),
    ("かきく", set()),
    ("데이터베이스*", {"korean"}),
    ("한국어", {"korean"}),
    ("ครับ", {"thai"}),
    ("भाषा", {"hindi"}),
    ("भष", set()),
    ("محمد", {"arabic"}),
    ("οδυσσευς σισυφος", {"greek"}),
    ("C++", {"code", "backslash"}),
    ("return x[0]", {"code"}),
    ("o'brien", {"sql"}),
    ("O''Brien", {"sql"}),
    ("before after", {"nul"}),
    ("half pair", {"nul"}),
    ("deploy now", {"emoji"}),
    ("x" * 300, {"long"}),
    ("x" * 70, {"long"}),
    ("needle lorem", {"long"}),
    ("3.11.2", {"numbers"}),
    ("1 2 of", {"numbers"}),
    ("10²", {"numbers"}),
    ("temp new", {"backslash"}),
    # These have no word in them and are looked for as they are.
    ("=>", {"signs"}),
    ("!!!", {"signs"}),
    ("🚀", {"emoji"}),
    ("-- ", {"sql"}),
    ("", set()),
    ("   \n", set()),
    ('"', {"fox", "nasty", "backslash"}),
    ('""', set()),
    ("*", {"sql"}),
    ("\0", {"nasty", "nul"}),
    ("\ud800", {"nasty", "nul"}),
]

LITERAL: list[tuple[str, set[str]]] = [
    ("Quick", set()),
    ("quick brown", {"fox"}),
    ('said "Hello', {"fox"}),
    ("uick bro", {"fox"}),
    ("O''Brien'; --", {"sql"}),
    ("->b && c", {"code"}),
    (r"C:\temp\new {\"a", {"backslash"}),
    ("100%", {"backslash"}),
    ("_under_", {"backslash"}),
    ("cafe\u0301", {"composed"}),
    ("\0after", {"nul"}),
    ("half\ud800pair", {"nul"}),
    ("京都会", {"chinese"}),
    ("turn_id", set()),  # in the event, but in no text
    ("\r\n", {"nasty"}),
    ("👩‍👩", {"emoji"}),
    ("%", {"backslash"}),
]


async def _fill(ledger: Ledger) -> dict[str, str]:
    """A Session with one turn for each text; names by turn id."""
    builder = Builder(ledger)
    session = await builder.session("Corpus", "/corpus")
    return {await builder.turn(session, Said(text, "ok")): name for name, text in TEXTS.items()}


async def _all(ledger: Ledger, query: str, *, literal: bool = False, where: SearchFilter | None = None) -> list[Hit]:
    request = SearchRequest(query, where or SearchFilter(kind=SearchKind.REQUEST), literal)
    return list((await SearchService(ledger).search(SearchRequest(query, request.where, literal, limit=100))).hits)


def _names(hits: list[Hit], names: dict[str, str]) -> set[str]:
    return {names[hit.found.turn_id or ""] for hit in hits}


async def test_match_sets(ledger: Ledger) -> None:
    """One table for both databases: that both agree with it is that they agree."""
    names = await _fill(ledger)
    found = {query: _names(await _all(ledger, query), names) for query, _ in CASES}
    assert found == dict(CASES)
    literal = {query: _names(await _all(ledger, query, literal=True), names) for query, _ in LITERAL}
    assert literal == dict(LITERAL)


async def test_any_query_is_safe(ledger: Ledger) -> None:
    await _fill(ledger)
    chosen = random.Random(5)
    alphabet = string.printable + "\"'\\*-:()&|!<>^{}+~\0\ud800é東🚀\u202e%_"
    queries = ["".join(chosen.choices(alphabet, k=chosen.randint(1, 60))) for _ in range(60)]
    queries += [
        "fox " * 2_500,
        '"' * 10_000,
        "(" * 10_000,
        "東" * 3_400,
        "-fox " * 2_000,
        "fox OR " * 1_500,
        "a* " * 3_000,
        '"' + "fox " * 2_500,
        "OR",
        "-",
        "OR OR OR",
        "fox AND NOT NEAR(quick)",
        "words:fox",
        "fox:*",
        "'fox' <-> 'dog'",
        "fox & !dog",
        "'; DROP TABLE events; --",
        "%s %d {0} :query",
    ]
    for query in queries:
        for literal in (False, True):
            await _all(ledger, query, literal=literal, where=SearchFilter())
    assert {hit.found.kind for hit in await _all(ledger, "fox " * 2_500)} == {SearchKind.REQUEST}
    with pytest.raises(PayloadTooLarge):
        await _all(ledger, "x" * 65_537)


async def test_what_is_found_and_how_it_is_shown(ledger: Ledger) -> None:
    builder = Builder(ledger)
    session = await builder.session("Payment gateway", "/srv/shop")
    calls = [Call("bash", '{"command": "alembic upgrade head"}', "Traceback: missing zebrafish", is_error=True)]
    failing = Ending(TurnState.FAILED, "The quota of walrus is used up.", "model_rate_limited")
    one = await builder.turn(session, Said("Migrate the database", "Migrated everything.", calls))
    two = await builder.turn(session, Said("Again", None, ending=failing))
    stopped = Ending(TurnState.STOPPED, "because of lunch")
    three = await builder.turn(session, Said("Once more", "half an ans", agent="second", ending=stopped))

    async def places(query: str, **where: object) -> list[tuple[str, str | None]]:
        hits = await _all(ledger, query, where=SearchFilter(**where))  # type: ignore[arg-type]
        return sorted((hit.found.kind.value, hit.found.turn_id) for hit in hits)

    assert await places("payment") == [("session", None)]
    assert await places("srv/shop") == [("session", None)]
    assert await places("database") == [("request", one)]
    assert await places("migrated") == [("output", one)]
    assert await places("bash") == [("call", one)]
    assert await places("alembic upgrade") == [("call", one)]
    assert await places("zebrafish") == [("result", one)]
    assert await places("walrus") == [("error", two)]
    assert await places("model_rate_limited") == [("error", two)]
    assert await places("lunch") == [("error", three)]
    assert await places("ans", agent="second") == [("output", three)]
    assert await places("ans", agent="default") == []
    assert await places("once OR again", state=TurnState.STOPPED) == [("request", three)]
    (hit,) = await _all(ledger, "migrate database", where=SearchFilter())
    assert (hit.session_title, hit.found.turn_number, hit.found.turn_state) == ("Payment gateway", 1, "completed")
    assert [(piece.text, piece.match) for piece in hit.snippet] == [
        ("Migrate", True),
        (" the ", False),
        ("database", True),
    ]


async def test_filters_of_session_and_time(ledger: Ledger) -> None:
    builder = Builder(ledger)
    first, second = await builder.session(), await builder.session()
    turns = [await builder.turn(session, Said("common word")) for session in (first, second, first)]
    hits = await _all(ledger, "common")
    at = {hit.found.turn_id: hit.found.at for hit in hits}
    assert set(at) == set(turns)

    async def found(**where: object) -> set[str | None]:
        return {hit.found.turn_id for hit in await _all(ledger, "common", where=SearchFilter(**where))}  # type: ignore[arg-type]

    assert await found(session_id=first) == {turns[0], turns[2]}
    assert await found(since=at[turns[1]]) == {turns[1], turns[2]}
    assert await found(until=at[turns[1]]) == {turns[0]}
    assert await found(since=at[turns[1]], until=at[turns[2]]) == {turns[1]}
    for literal in (True, False):
        with pytest.raises(SessionNotFound):
            await _all(ledger, "common", literal=literal, where=SearchFilter(session_id="ses_none"))


async def test_superseded_turns_are_marked(ledger: Ledger) -> None:
    builder = Builder(ledger)
    session = await builder.session()
    old, kept = [await builder.turn(session, Said("common word")) for _ in range(2)]

    def supersede(tx: LedgerTx) -> None:
        connection(tx).execute(turns_table.update().where(turns_table.c.turn_id == old).values(superseded=True))

    await ledger.write(supersede)
    for literal in (True, False):
        hits = await _all(ledger, "common", literal=literal)
        assert {hit.found.turn_id: hit.found.superseded for hit in hits} == {old: True, kept: False}
        live = await _all(ledger, "common", literal=literal, where=SearchFilter(superseded=False))
        assert {hit.found.turn_id for hit in live} == {kept}


@pytest.mark.parametrize("literal", [False, True])
async def test_pages(ledger: Ledger, literal: bool) -> None:
    builder = Builder(ledger)
    session = await builder.session()
    turns = {await builder.turn(session, Said("common word", None)) for _ in range(7)}
    service = SearchService(ledger)
    seen: list[str | None] = []
    cursor: str | None = None
    while True:
        page = await service.search(SearchRequest("common", literal=literal, cursor=cursor, limit=3))
        assert len(page.hits) <= 3
        seen += [hit.found.turn_id for hit in page.hits]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert len(seen) == 7 and set(seen) == turns
    for bad in ("nonsense", "W10", "WzEsMiwzXQ", "WyJhIl0", "Wy0xXQ", "Wy0xLC0xXQ"):
        with pytest.raises(InvalidInput, match="cursor"):
            await service.search(SearchRequest("common", literal=literal, cursor=bad))


async def test_a_long_text_is_found_in_every_part(ledger: Ledger) -> None:
    """Over what a tsvector holds (1 MiB, 16,383 places, 256 of one word), with a phrase across every border."""
    builder = Builder(ledger)
    session = await builder.session()
    many = " ".join(f"w{number}" for number in range(MAX_PASSAGE_WORDS * 3))
    turn = await builder.turn(session, Said(many, "the " * 40_000 + "end"))
    border = MAX_PASSAGE_WORDS
    for query in ("w0", f"w{border * 3 - 1}", f'"w{border - 2} w{border - 1} w{border} w{border + 1}"', '"the end"'):
        hits = await _all(ledger, query, where=SearchFilter())
        assert [hit.found.turn_id for hit in hits] == [turn], query
        assert any(piece.match for piece in hits[0].snippet)
        assert sum(len(piece.text) for piece in hits[0].snippet) < 300


async def test_the_index_is_in_the_transaction_of_the_events(ledger: Ledger) -> None:
    builder = Builder(ledger)
    session = await builder.session()
    await builder.turn(session, Said("kept phrase"))

    def fails(tx: LedgerTx) -> None:
        turn = builder._begin(tx, session, "trn_never", TurnRequest(Content("lost phrase")), 5)
        assert tx.search.find(parse_query("lost"), SearchFilter(), offset=0, limit=9)  # type: ignore[arg-type]
        raise LookupError(turn.turn_id)

    with pytest.raises(LookupError):
        await ledger.write(fails)
    assert await _all(ledger, "lost") == []
    assert len(await _all(ledger, "kept")) == 1


async def test_rebuilding(ledger: Ledger) -> None:
    names = await _fill(ledger)
    service = SearchService(ledger)
    before = {query: _names(await _all(ledger, query), names) for query, _ in CASES}
    await ledger.write(lambda tx: tx.search.clear())
    page = await service.search(SearchRequest("quick"))
    assert (page.hits, page.complete) == ((), False)
    told: list[int] = []
    done = await service.rebuild(lambda progress: told.append(progress.events))
    assert done.sessions == 1 and done.events == told[-1] > 3 * len(TEXTS)
    assert {query: _names(await _all(ledger, query), names) for query, _ in CASES} == before
    assert (await service.search(SearchRequest("quick"))).complete


async def test_appends_while_the_index_is_rebuilt(ledger: Ledger) -> None:
    builder = Builder(ledger)
    session = await builder.session()
    turns = [await builder.turn(session, Said("common word", None)) for _ in range(4)]

    async def append() -> None:
        for _ in range(6):
            turns.append(await builder.turn(session, Said("common word", None)))

    await asyncio.gather(SearchService(ledger).rebuild(lambda _: None), append())
    assert sorted(hit.found.turn_id or "" for hit in await _all(ledger, "common")) == sorted(turns)


def test_words_of_many_scripts() -> None:
    assert words("Ünïcödé_Straße ﬁx ½") == ["unicode", "strasse", "fix", "1", "2"]
    assert words("e\u0301a") == words("éa") == words("ea")
    assert words("東京 Tower") == ["東", "京", "tower"]
    assert words("\x1b[31mError\x1b[0m\x1b[2Kdone") == ["error", "done"]
    assert words("") == words("=> \0 \ud800 🚀") == []


@pytest.mark.parametrize("text", ["ab " * 50_000, "東" * 30_000, " ".join(map(str, range(20_000))), "x" * 10**6])
def test_passages_cover_a_text(text: str) -> None:
    found = list(passages(text))
    whole = words(text)
    joined = list(found[0].words)
    for before, passage in pairwise(found):
        assert before.words[-OVERLAP_WORDS:] == passage.words[:OVERLAP_WORDS]
        joined += passage.words[OVERLAP_WORDS:]
    assert joined == whole
    assert all(len(passage.words) <= MAX_PASSAGE_WORDS for passage in found)
    assert all(words(text[passage.start : passage.end]) == list(passage.words) for passage in found[:3])
