"""The tools of an agent's memory."""

from __future__ import annotations

from typing import Any

from activities.internal import InternalTool
from activities.toolcalls import ToolCall
from milepost.domain.errors import BlockNotFound, InvalidInput, MemoryOff, RecordNotFound
from milepost.domain.memory import DEFAULT_RECALL, MAX_DAILY_ENTRIES, BlockSpec, DailyEntry, MemorySettings, Scope
from milepost.ports.ledger import Ledger
from milepost.ports.memory import DailyLog
from milepost.ports.semantic import SemanticMemory
from milepost.ports.system import Clock
from milepost.services.blocks import Author, Change, appended, replaced, set_to
from milepost.services.memory_edits import MemoryEdits
from milepost.tools import ToolOutput
from milepost.tools.memory import render_edit, render_entries, render_recall, timeframe

PAGE = 100
MAX_PAGES = 50


class MemoryTools:
    """Runs calls of memory tools in the scope of the agent that makes them."""

    def __init__(
        self, ledger: Ledger, clock: Clock, edits: MemoryEdits, daily: DailyLog, semantic: SemanticMemory
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._edits = edits
        self._daily = daily
        self._semantic = semantic

    def tools(self) -> dict[str, InternalTool]:
        """By name."""
        return {
            "core_memory_append": self._append,
            "core_memory_replace": self._replace,
            "core_memory_set": self._set,
            "recall_search": self._search,
            "recall_timeframe": self._timeframe,
            "forget": self._forget,
        }

    async def _append(self, call: ToolCall, arguments: dict[str, Any]) -> ToolOutput:
        return await self._edit(call, arguments["block"], appended(arguments["text"]))

    async def _replace(self, call: ToolCall, arguments: dict[str, Any]) -> ToolOutput:
        label = arguments["block"]
        return await self._edit(call, label, replaced(arguments["old"], arguments["new"], label))

    async def _set(self, call: ToolCall, arguments: dict[str, Any]) -> ToolOutput:
        return await self._edit(call, arguments["block"], set_to(arguments["value"]))

    async def _edit(self, call: ToolCall, label: str, change: Change) -> ToolOutput:
        spec = _writable(_settings(call), label)
        session_id = call.context.session.session_id
        version = await self._edits.edit(session_id, _scope(call), spec, self._author(call), change)
        return render_edit(spec, version)

    async def _search(self, call: ToolCall, arguments: dict[str, Any]) -> ToolOutput:
        found = await self._semantic.search(
            _scope(call),
            arguments["query"],
            limit=int(arguments.get("k", DEFAULT_RECALL)),
            min_score=_settings(call).min_score,
            exclude_turns=await self._hidden(call),
        )
        return render_recall(found)

    async def _timeframe(self, call: ToolCall, arguments: dict[str, Any]) -> ToolOutput:
        start, end = timeframe(arguments["from"], arguments["to"])
        hidden = await self._hidden(call)
        found: list[DailyEntry] = []
        after: tuple[int, str] | None = None
        for _ in range(MAX_PAGES):
            page = (await self._daily.read(_scope(call), start, end, limit=PAGE, after=after)).entries
            found += [entry for entry in page if entry.turn_id not in hidden]
            if len(page) < PAGE or len(found) > MAX_DAILY_ENTRIES:
                break
            after = (page[-1].at, page[-1].id)
        return render_entries(found[:MAX_DAILY_ENTRIES], more=len(found) > MAX_DAILY_ENTRIES)

    async def _forget(self, call: ToolCall, arguments: dict[str, Any]) -> ToolOutput:
        gone = await self._edits.forget(_scope(call), [arguments["id"]], self._author(call))
        if not gone:
            raise RecordNotFound(f"There is no record {arguments['id']!r}.", fix="Use an id that recall_search gives.")
        return ToolOutput(f"Forgotten: {', '.join(gone)}.", False, {"ids": gone})

    async def _hidden(self, call: ToolCall) -> frozenset[str]:
        session_id = call.context.session.session_id
        return await self._ledger.read(lambda tx: tx.turns.superseded(session_id))

    def _author(self, call: ToolCall) -> Author:
        turn = call.context.turn
        return Author(
            by=f"agent:{call.params.agent}",
            key=call.spec.effect_id,
            at=self._clock.now(),
            turn_id=turn.turn_id,
            turn_number=turn.number,
        )


def _scope(call: ToolCall) -> Scope:
    return Scope.of_part(call.context.session.session_id, call.params.agent)


def _settings(call: ToolCall) -> MemorySettings:
    settings = call.context.started.memory
    if settings is None:
        raise MemoryOff(f"The agent '{call.params.agent}' has no memory.")
    return settings


def _writable(settings: MemorySettings, label: str) -> BlockSpec:
    spec = settings.block(label)
    if spec is None:
        labels = ", ".join(each.label for each in settings.blocks) or "none"
        raise BlockNotFound(f"There is no block '{label}'.", field="block", fix=f"Your blocks: {labels}.")
    if spec.read_only:
        raise InvalidInput(f"The block '{label}' is read-only; a person writes it.", field="block")
    return spec
