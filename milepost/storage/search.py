"""The search index: rows that say which text a passage is of, and the passages' words in the database's own index.

SQLite keeps the words in a contentless FTS5 table, PostgreSQL in a table of tsvectors under a GIN index; both are made
by the migrations and are called `search_words`. Neither has a say in what a word is (see `engine.words`), so a query
finds the same texts on both. Texts are not kept a second time: they are in the events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, text

from milepost.domain.events import Event
from milepost.domain.search import Found, SearchFilter, SearchKind, Term, WordQuery
from milepost.domain.turns import TurnState
from milepost.ledger.search import indexed, search_texts
from milepost.ledger.words import INDEX_VERSION, Passage, passages
from milepost.storage.bodies import Bodies, opened

MAX_RANKED = 10_000

_COLUMNS = (
    "session_id",
    "seq",
    "kind",
    "part",
    "passage",
    "first_character",
    "last_character",
    "agent",
    "turn_id",
    "at",
)
_INTO = f"INTO search_passages ({', '.join(_COLUMNS)})"
_SQLITE_ADD = f"INSERT OR IGNORE {_INTO} VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608
_SQLITE_WORDS = "INSERT INTO search_words (rowid, words) VALUES (?, ?)"
_POSTGRES_ADD = text(
    f"WITH added AS (INSERT {_INTO} VALUES ({', '.join(f':{name}' for name in _COLUMNS)})"  # noqa: S608
    " ON CONFLICT DO NOTHING RETURNING doc_id)"
    " INSERT INTO search_words (doc_id, words) SELECT doc_id, CAST(:words AS tsvector) FROM added"
)

_SHOWN = (
    "p.doc_id, p.session_id, p.seq, p.kind, p.part, p.first_character, p.last_character, p.at, p.turn_id,"
    " t.number, t.state, t.superseded"
)
_FROM = "search_passages p LEFT JOIN turns t ON t.turn_id = p.turn_id"
# What a person asked and was told counts more than what tools said.
_WEIGHT = "CASE p.kind WHEN 'result' THEN 0.4 WHEN 'attachment' THEN 0.4 WHEN 'call' THEN 0.6 ELSE 1.0 END"
_RANKS = {
    # bm25() is negative, smaller is better.
    "sqlite": ("search_words w", "w.rowid", "search_words MATCH :query", f"-bm25(search_words) * {_WEIGHT}"),
    "postgresql": (
        "search_words w",
        "w.doc_id",
        "w.words @@ CAST(:query AS tsquery)",
        f"ts_rank(w.words, CAST(:query AS tsquery), 1) * {_WEIGHT}",
    ),
}
_LOOKED_AT_ONCE = 50
"""Texts that literal search has in memory at a time."""


class SqlSearchIndex:
    """`ports.search.SearchIndex`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._sqlite = conn.dialect.name == "sqlite"

    def add(self, session_id: str, events: Sequence[tuple[int, int, str | None, Event]]) -> None:
        for seq, at, turn_id, event in events:
            for row, words in _rows(session_id, seq, at, turn_id, event):
                if self._sqlite:
                    self._add_sqlite(row, words)
                else:
                    values = dict(zip(_COLUMNS, row, strict=True))
                    self._conn.execute(_POSTGRES_ADD, {**values, "words": _vector(words)})

    def _add_sqlite(self, row: tuple[Any, ...], words: Sequence[str]) -> None:
        driver: Any = self._conn.connection.driver_connection
        added = driver.execute(_SQLITE_ADD, row)
        if added.rowcount == 1:
            driver.execute(_SQLITE_WORDS, (added.lastrowid, " ".join(words)))

    def find(self, query: WordQuery, where: SearchFilter, *, offset: int, limit: int) -> list[Found]:
        conditions, params = _conditions(where)
        statement = text(_ranked(self._conn.dialect.name, conditions))
        terms = _fts5(query) if self._sqlite else _tsquery(query)
        rows = self._conn.execute(statement, {**params, "query": terms, "skip": offset, "page": limit})
        return [_found(row) for row in rows]

    def scan(
        self, needle: bytes, where: SearchFilter, *, before: tuple[int, int] | None, rows: int, limit: int
    ) -> tuple[list[Found], tuple[int, int] | None]:
        conditions, params = _conditions(where)
        conditions.append("p.passage = 0")
        if before is not None:
            conditions.append("(p.at < :at OR (p.at = :at AND p.doc_id < :doc))")
            params |= {"at": before[0], "doc": before[1]}
        looked = (
            f"SELECT {_SHOWN} FROM {_FROM} WHERE {' AND '.join(conditions)}"  # noqa: S608
            " ORDER BY p.at DESC, p.doc_id DESC LIMIT :rows"
        )
        statement = text(
            f"WITH looked AS MATERIALIZED ({looked}) SELECT l.*, e.stream, e.pieces, e.body, n.name AS of_turn"  # noqa: S608
            " FROM looked l JOIN identifiers i ON i.name = l.session_id"
            " JOIN events e ON e.stream = i.number AND e.seq = l.seq LEFT JOIN identifiers n ON n.number = e.turn"
            " ORDER BY l.at DESC, l.doc_id DESC"
        )
        found: list[Found] = []
        seen = 0
        last: tuple[int, int] | None = None
        with self._conn.execution_options(yield_per=_LOOKED_AT_ONCE).execute(
            statement, {**params, "rows": rows}
        ) as got:
            for part in got.partitions():
                for row, payload in self._payloads(part):
                    seen += 1
                    last = (row.at, row.doc_id)
                    if needle in payload:
                        found.append(_found(row))
                        if len(found) == limit:
                            return found, last
        return found, last if seen == rows else None

    def _payloads(self, rows: Sequence[Any]) -> Iterator[tuple[Any, bytes]]:
        """Rows with the payloads of their events, in their order."""
        held: dict[int, dict[int, bytes]] = {}
        for stream in {row.stream for row in rows}:
            held[stream] = Bodies(self._conn).whole(stream, [row for row in rows if row.stream == stream])
        for row in rows:
            yield row, opened(held[row.stream][row.seq], row.of_turn)[1]

    def clear(self) -> None:
        self._conn.execute(text("UPDATE search_state SET complete = :no"), {"no": False})
        if self._sqlite:
            self._conn.execute(text("INSERT INTO search_words (search_words) VALUES ('delete-all')"))
            self._conn.execute(text("DELETE FROM search_passages"))
        else:
            self._conn.execute(text("TRUNCATE search_words, search_passages"))

    def set_complete(self) -> None:
        self._conn.execute(
            text("UPDATE search_state SET complete = :yes, version = :v"), {"yes": True, "v": INDEX_VERSION}
        )

    def complete(self) -> bool:
        state = self._conn.execute(text("SELECT complete, version FROM search_state")).one()
        return bool(state.complete) and state.version == INDEX_VERSION


def _ranked(dialect: str, conditions: Sequence[str]) -> str:
    """The best passage of each text that matches, best text first. The newest passages are ranked, a bounded number."""
    table, key, matches, score = _RANKS[dialect]
    wanted = " AND ".join([matches, *conditions])
    return (
        f"WITH matching AS MATERIALIZED (SELECT {_SHOWN}, p.passage, {score} AS score"  # noqa: S608
        f" FROM {table} JOIN search_passages p ON p.doc_id = {key} LEFT JOIN turns t ON t.turn_id = p.turn_id"
        f" WHERE {wanted} ORDER BY {key} DESC LIMIT {MAX_RANKED}),"
        " placed AS (SELECT m.*, row_number() OVER"
        " (PARTITION BY session_id, seq, kind, part ORDER BY score DESC, passage) AS place FROM matching m)"
        " SELECT * FROM placed WHERE place = 1 ORDER BY score DESC, at DESC, doc_id DESC LIMIT :page OFFSET :skip"
    )


def _conditions(where: SearchFilter) -> tuple[list[str], dict[str, Any]]:
    chosen: list[tuple[str, str, Any]] = [
        ("p.session_id = :session", "session", where.session_id),
        ("p.agent = :agent", "agent", None if where.agent is None else where.agent.encode("utf-8", "surrogatepass")),
        ("t.state = :state", "state", None if where.state is None else where.state.value),
        ("p.kind = :kind", "kind", None if where.kind is None else where.kind.value),
        ("p.at >= :since", "since", where.since),
        ("p.at < :until", "until", where.until),
    ]
    chosen = [item for item in chosen if item[2] is not None]
    conditions = [condition for condition, _, _ in chosen]
    params = {name: value for _, name, value in chosen}
    if not where.superseded:
        conditions.append("(t.superseded IS NULL OR t.superseded = :live)")
        params["live"] = False
    return conditions, params


def _rows(
    session_id: str, seq: int, at: int, turn_id: str | None, event: Event
) -> Iterator[tuple[tuple[Any, ...], Sequence[str]]]:
    for found in search_texts(event):
        agent = found.agent.encode("utf-8", "surrogatepass")
        text_ = indexed(found)
        # A text without a word has a row too, for literal search.
        for number, passage in enumerate(list(passages(text_)) or [Passage(0, len(text_), ())]):
            place = (number, passage.start, passage.end)
            yield (session_id, seq, found.kind.value, found.part, *place, agent, turn_id, at), passage.words


def _vector(words: Sequence[str]) -> str:
    """The text form of a tsvector; words have no quotes or backslashes in them."""
    places: dict[str, list[int]] = {}
    for place, word in enumerate(words, start=1):
        places.setdefault(word, []).append(place)
    return " ".join(f"'{word}':{','.join(map(str, at))}" for word, at in places.items())


def _fts5(query: WordQuery) -> str:
    def term(value: Term) -> str:
        return f'"{" ".join(value.words)}"{"*" if value.prefix else ""}'

    wanted = " AND ".join(f"({' OR '.join(map(term, group))})" for group in query.groups)
    return f"({wanted}) NOT ({' OR '.join(map(term, query.excluded))})" if query.excluded else wanted


def _tsquery(query: WordQuery) -> str:
    def term(value: Term) -> str:
        quoted = " <-> ".join(f"'{word}'" for word in value.words)
        return f"({quoted}{':*' if value.prefix else ''})"

    wanted = " & ".join(f"({' | '.join(map(term, group))})" for group in query.groups)
    return f"({wanted}) & !({' | '.join(map(term, query.excluded))})" if query.excluded else wanted


def _found(row: Any) -> Found:
    return Found(
        doc_id=row.doc_id,
        session_id=row.session_id,
        seq=row.seq,
        kind=SearchKind(row.kind),
        part=row.part,
        start=row.first_character,
        end=row.last_character,
        at=row.at,
        turn_id=row.turn_id,
        turn_number=row.number,
        turn_state=None if row.state is None else TurnState(row.state),
        superseded=bool(row.superseded),
    )
