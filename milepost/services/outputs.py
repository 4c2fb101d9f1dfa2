"""Reading recorded outputs of an agent's earlier tool calls, whole, from the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from milepost.domain.content import Content
from milepost.domain.errors import EffectNotFound, TurnNotFound
from milepost.domain.events import ToolFinished
from milepost.domain.outputs import Output, OutputMatch, OutputMatches, OutputRef
from milepost.domain.tools import UNSANDBOXED_TOOLS
from milepost.domain.turns import Turn
from milepost.ledger.codec import decode_event
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.services.contents import Contents
from milepost.services.finishing import call_position, tool_event_key

PAGE = 20
MAX_MATCHES = 50
MAX_MATCHES_OF_CALL = 10
MAX_TURNS = 1_000
MAX_CHARACTERS = 32 * 1024 * 1024
"""Of outputs, what one search looks at."""
LINE_CHARACTERS = 240
IN_THREAD_CHARACTERS = 64 * 1024


@dataclass(frozen=True, slots=True)
class Place:
    """Who reads: an agent in the turn with this number of a Session."""

    session_id: str
    agent: str
    turn: int


class OutputReader:
    """Finds outputs in the live turns of a Session, up to the turn that asks."""

    def __init__(self, ledger: Ledger, contents: Contents) -> None:
        self._ledger = ledger
        self._contents = contents

    async def read(self, place: Place, ref: OutputRef) -> Output:
        """One output. Raises EffectNotFound, BlobNotFound."""
        event = await self._ledger.read(lambda tx: _find(tx, place, ref))
        return Output(ref, event.tool, await self._contents.load(_whole(event)))

    async def search(self, place: Place, query: str, ref: OutputRef | None = None) -> OutputMatches:
        """Lines with the text, upper and lower case alike: of one call, or of all, newest first.

        Raises EffectNotFound, BlobNotFound.
        """
        if ref is not None:
            output = await self.read(place, ref)
            found = await _matches(output, query, MAX_MATCHES + 1)
            return OutputMatches(tuple(found[:MAX_MATCHES]), 1, cut=len(found) > MAX_MATCHES)
        matches: list[OutputMatch] = []
        calls = looked = turns = 0
        before = place.turn + 1
        while turns < MAX_TURNS:
            page, events = await self._ledger.read(lambda tx, before=before: _page(tx, place, before))  # type: ignore[misc]
            for turn, event in events:
                output = Output(OutputRef(turn.number, event.round, event.index + 1), event.tool, "")
                text = await self._contents.load(_whole(event))
                calls, looked = calls + 1, looked + len(text)
                matches += await _matches(Output(output.ref, output.tool, text), query, MAX_MATCHES_OF_CALL)
                if len(matches) > MAX_MATCHES:
                    return OutputMatches(tuple(matches[:MAX_MATCHES]), calls, cut=True, unsearched=turn.number)
                if looked > MAX_CHARACTERS:
                    return OutputMatches(tuple(matches), calls, unsearched=turn.number)
            if len(page) < PAGE:
                return OutputMatches(tuple(matches), calls)
            before, turns = page[-1].number, turns + len(page)
        return OutputMatches(tuple(matches), calls, unsearched=before)


def _find(tx: LedgerTx, place: Place, ref: OutputRef) -> ToolFinished:
    try:
        turn = tx.turns.numbered(place.session_id, ref.turn)
    except TurnNotFound:
        raise _not_found(ref) from None
    if turn.superseded or turn.number > place.turn:
        raise _not_found(ref)
    key = tool_event_key(turn.turn_id, place.agent, call_position(ref.round, ref.call - 1), "finished")
    stored = tx.events.find(place.session_id, key)
    event = None if stored is None else decode_event(stored.type, stored.version, stored.payload)
    if not isinstance(event, ToolFinished):
        raise _not_found(ref)
    return event


def _page(tx: LedgerTx, place: Place, before: int) -> tuple[list[Turn], list[tuple[Turn, ToolFinished]]]:
    """Turns, newest first, and the calls of the live ones, newest first; not of what only reads outputs."""
    page = tx.turns.page(place.session_id, before_number=before, limit=PAGE)
    live = {turn.turn_id: turn for turn in page if not turn.superseded}
    found: list[tuple[Turn, ToolFinished]] = []
    for item in tx.events.read_turns(place.session_id, list(live), types=[ToolFinished.TYPE]) if live else ():
        event = decode_event(item.type, item.version, item.payload)
        if isinstance(event, ToolFinished) and event.agent == place.agent and event.tool not in UNSANDBOXED_TOOLS:
            found.append((live[event.turn_id], event))
    found.sort(key=lambda pair: (-pair[0].number, -pair[1].round, -pair[1].index))
    return page, found


def _whole(event: ToolFinished) -> Content:
    return event.output if event.full_output is None else event.full_output


async def _matches(output: Output, query: str, limit: int) -> list[OutputMatch]:
    if len(output.text) > IN_THREAD_CHARACTERS:
        return await asyncio.to_thread(_listed, output, query, limit)
    return _listed(output, query, limit)


def _listed(output: Output, query: str, limit: int) -> list[OutputMatch]:
    return [match for match, _ in zip(_lines(output, query), range(limit), strict=False)]


def _lines(output: Output, query: str) -> Iterator[OutputMatch]:
    """A match for each line with the query: the line, or the piece of a long one around it."""
    text = output.text
    # Lower case may be longer than the text it is of (İ): then places are looked for in the text as it is.
    lowered = text.lower()
    searched, needle = (lowered, query.lower()) if len(lowered) == len(text) else (text, query)
    at = searched.find(needle)
    while at >= 0:
        start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
        end = len(text) if end < 0 else end
        first = start if end - start <= LINE_CHARACTERS else max(start, at - LINE_CHARACTERS // 4)
        yield OutputMatch(output.ref, output.tool, first, text[first : min(end, first + LINE_CHARACTERS)])
        at = searched.find(needle, max(end, at + len(needle)))


def _not_found(ref: OutputRef) -> EffectNotFound:
    return EffectNotFound(
        f"There is no output {ref} in this conversation.", fix="Find the outputs there are with search_output."
    )
