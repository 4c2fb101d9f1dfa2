"""What of an event is searched, how a query is read, and how a hit is shown. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from milepost.domain.events import (
    AgentOutput,
    AttachmentConsumed,
    Event,
    ModelCalled,
    ModelFailed,
    SessionOpened,
    ToolFinished,
    TurnBegun,
    TurnFailed,
    TurnInterrupted,
    TurnStopped,
)
from milepost.domain.search import SearchKind, Term, WordQuery
from milepost.engine.words import placed_words, words

MAX_QUERY_WORDS = 64
"""Words of a query that count; further ones are passed over."""

CALL_CHARACTERS = 2_000
"""How much of a call's arguments, and of its result, is found by words. Literal search looks at all of them."""

SNIPPET_CHARACTERS = 240
MAX_MARKS = 20
MAX_PLACES = 100

_TERM = re.compile(r'(?P<minus>-?)(?:"(?P<phrase>[^"]*)"?|(?P<plain>[^\s"]+))(?P<star>\*?)')


@dataclass(frozen=True, slots=True)
class SearchText:
    """A text of an event. `part` counts the texts of one kind of the event; `agent` is empty where there is none."""

    kind: SearchKind
    part: int
    agent: str
    text: str


@dataclass(frozen=True, slots=True)
class Fragment:
    """A piece of a snippet; `match` tells what was found."""

    text: str
    match: bool = False


def search_texts(event: Event) -> list[SearchText]:
    """The texts of an event that can be found, whole where the event has them whole."""
    match event:
        case SessionOpened():
            return [SearchText(SearchKind.SESSION, 0, "", f"{event.title}\n{event.workspace_path}")]
        case TurnBegun():
            return [SearchText(SearchKind.REQUEST, 0, "", event.request.text.text)]
        case AttachmentConsumed():
            text = "" if event.text is None else event.text.text
            return [SearchText(SearchKind.ATTACHMENT, 0, "", f"{event.name}\n{text}")]
        case AgentOutput():
            return [SearchText(SearchKind.OUTPUT, 0, event.agent, event.text.text)]
        case ModelCalled():
            return [
                SearchText(SearchKind.CALL, index, event.agent, f"{call.tool} {call.arguments.text}")
                for index, call in enumerate(event.message.calls)
            ]
        case ToolFinished():
            return [SearchText(SearchKind.RESULT, 0, event.agent, event.output.text)]
        case ModelFailed():
            return [SearchText(SearchKind.ERROR, 0, event.agent, f"{event.error_code}: {event.error_message}")]
        case TurnFailed():
            return [SearchText(SearchKind.ERROR, 0, "", f"{event.error_code}: {event.error_message}")]
        case TurnStopped() | TurnInterrupted():
            return [SearchText(SearchKind.ERROR, 0, "", event.reason)]
        case _:
            return []


SEARCHED_TYPES = tuple(
    cls.TYPE
    for cls in (
        SessionOpened,
        TurnBegun,
        AttachmentConsumed,
        AgentOutput,
        ModelCalled,
        ToolFinished,
        ModelFailed,
        TurnFailed,
        TurnStopped,
        TurnInterrupted,
    )
)


def indexed(text: SearchText) -> str:
    """The part of a text whose words are indexed."""
    return text.text[:CALL_CHARACTERS] if text.kind in (SearchKind.CALL, SearchKind.RESULT) else text.text


def parse_query(query: str) -> WordQuery | None:
    """Read what a person typed; None if it has no word to look for. No text is an error.

    Words must all be there, in any order. `"several words"` must follow each other, as must the words of `foo.bar`.
    `-word` must not be there, `a OR b` is one of both, `wor*` is any word that begins so.
    """
    groups: list[list[Term]] = []
    excluded: list[Term] = []
    left, joined = MAX_QUERY_WORDS, False
    for found in _TERM.finditer(query):
        if found["plain"] == "OR" and not found["minus"]:
            joined = bool(groups)
            continue
        plain = found["plain"] or ""
        term_words = words(found["phrase"] if found["phrase"] is not None else plain)[:left]
        if not term_words:
            continue
        left -= len(term_words)
        term = Term(tuple(term_words), prefix=bool(found["star"]) or plain.endswith("*"))
        if found["minus"]:
            excluded.append(term)
        elif joined:
            groups[-1].append(term)
        else:
            groups.append([term])
        joined = False
    if not groups:
        return None
    return WordQuery(tuple(tuple(group) for group in groups), tuple(excluded))


def literal_places(text: str, needle: str) -> list[tuple[int, int]]:
    """The first places of an exact string, which do not overlap."""
    places: list[tuple[int, int]] = []
    at = text.find(needle)
    while at >= 0 and len(places) < MAX_MARKS:
        places.append((at, at + len(needle)))
        at = text.find(needle, at + len(needle))
    return places


def word_places(text: str, query: WordQuery) -> list[tuple[int, int]]:
    """The first places of a query's terms."""
    placed = list(placed_words(text))
    found: set[tuple[int, int]] = set()
    for term in query.wanted:
        found.update(_term_places(placed, term))
    return sorted(found)[:MAX_PLACES]


def _term_places(placed: Sequence[tuple[str, int, int]], term: Term) -> Iterator[tuple[int, int]]:
    size, marks = len(term.words), 0
    head, last = term.words[:-1], term.words[-1]
    for index in range(len(placed) - size + 1):
        word = placed[index + size - 1][0]
        if not (word == last or (term.prefix and word.startswith(last))):
            continue
        if all(placed[index + offset][0] == word for offset, word in enumerate(head)):
            yield placed[index][1], placed[index + size - 1][2]
            marks += 1
            if marks == MAX_MARKS:
                return


def snippet(text: str, places: Sequence[tuple[int, int]]) -> list[Fragment]:
    """The part of a text with the most of the places, about 240 characters, cut at words where it has some."""
    start, end = _window(text, places)
    fragments: list[Fragment] = []
    at = start
    for first, last in places:
        first, last = max(first, at), min(last, end)
        if first >= last:
            continue
        if first > at:
            fragments.append(Fragment(text[at:first]))
        fragments.append(Fragment(text[first:last], match=True))
        at = last
    if at < end:
        fragments.append(Fragment(text[at:end]))
    if start > 0:
        fragments.insert(0, Fragment("… "))
    if end < len(text):
        fragments.append(Fragment(" …"))
    return fragments


def _window(text: str, places: Sequence[tuple[int, int]]) -> tuple[int, int]:
    best, most = 0, 0
    for first, _ in places:
        inside = sum(1 for start, end in places if start >= first and end <= first + SNIPPET_CHARACTERS * 3 // 4)
        if inside > most:
            best, most = first, inside
    start = max(0, min(best - SNIPPET_CHARACTERS // 4, len(text) - SNIPPET_CHARACTERS))
    if start > 0:
        space = text.find(" ", start, best)
        start = space + 1 if 0 <= space < start + 30 else start
    end = min(len(text), start + SNIPPET_CHARACTERS)
    if end < len(text):
        space = text.rfind(" ", end - 30, end)
        end = space if space > 0 and all(last <= space or first >= end for first, last in places) else end
    return start, end
