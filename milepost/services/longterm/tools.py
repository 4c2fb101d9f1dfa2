"""Long-term memory as tools of agents. Each call is an effect: what it brought is recorded and used again on replay."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from milepost.domain.agents import AgentConfig
from milepost.domain.effects import EffectClass
from milepost.domain.errors import MilepostError, OutcomeUnknown, RecordNotFound, ToolFailed
from milepost.domain.longterm import (
    DEFAULT_RESULTS,
    LONG_TERM_TOOLS,
    MAX_RESULTS,
    MAX_RETENTION_DAYS,
    AgentLongTerm,
    Provenance,
    Record,
    Scored,
    SearchMode,
)
from milepost.domain.tools import Approval, CustomTool, Parallel, ToolDefinition, ToolPolicy
from milepost.ports.tools import Answer, Call, CustomTools
from milepost.services.longterm import entries
from milepost.services.longterm.service import LongTermMemory, Put, SearchRequest

SECONDS = 120.0
SHOWN_TEXT = 2000
"""Characters of a hit's text; the whole is read with `long_term_memory_read`."""

READ, SEARCH, WRITE, DELETE = LONG_TERM_TOOLS

_OBSERVE = ToolPolicy(EffectClass.OBSERVE, Parallel.SAFE, Approval.ALLOW)
_CHANGE = ToolPolicy(EffectClass.KEYED, Parallel.ORDERED, Approval.ALLOW)
POLICIES = {READ: _OBSERVE, SEARCH: _OBSERVE, WRITE: _CHANGE, DELETE: _CHANGE}
"""Documented in docs/tools.md."""


@dataclass(frozen=True, slots=True)
class LongTermTools:
    """`CustomTools` that adds those of long-term memory to others."""

    others: CustomTools
    memory: LongTermMemory
    agents: Mapping[str, AgentConfig]

    def offered(self, names: Sequence[str], agent: str = "") -> list[tuple[ToolDefinition, CustomTool]]:
        """See `CustomTools`. The definitions name the agent's namespaces, so a turn keeps those it began with."""
        own = sorted({name for name in names if name in LONG_TERM_TOOLS})
        config = self.agents.get(agent)
        rule = (config.long_term if config is not None else None) or AgentLongTerm((agent or "default",))
        found = [(_definition(name, rule), CustomTool(name, POLICIES[name], SECONDS)) for name in own]
        return [*self.others.offered([name for name in names if name not in LONG_TERM_TOOLS], agent), *found]

    async def run(self, call: Call, seconds: float) -> Answer:
        """See `CustomTools`."""
        if call.tool not in LONG_TERM_TOOLS:
            return await self.others.run(call, seconds)
        act = {READ: self._read, SEARCH: self._search, WRITE: self._write, DELETE: self._delete}[call.tool]
        try:
            async with asyncio.timeout(seconds):
                return await act(call, call.arguments["namespace"])
        except TimeoutError:
            text = f"{call.tool} did not end within {seconds:g} s."
            raise (ToolFailed(text) if POLICIES[call.tool] is _OBSERVE else OutcomeUnknown(text)) from None
        except MilepostError as error:
            raise ToolFailed(str(error), retryable_now=error.retryable) from error

    def problems(self) -> dict[str, MilepostError]:
        """See `CustomTools`."""
        return self.others.problems()

    async def _read(self, call: Call, namespace: str) -> Answer:
        record = await self.memory.get(namespace, call.arguments["key"])
        return Answer(_json(_shown(record)), detail={"namespace": namespace, "version": record.version})

    async def _search(self, call: Call, namespace: str) -> Answer:
        given = call.arguments
        request = SearchRequest(
            given["query"],
            SearchMode(given.get("mode", SearchMode.HYBRID)),
            int(given.get("limit", DEFAULT_RESULTS)),
            given.get("filters", {}),
        )
        found = await self.memory.search(namespace, request)
        whole: dict[str, Any] = {"hits": [_hit(hit) for hit in found.hits]}
        if not found.exact:
            whole["note"] = "The vectors were searched approximately."
        detail: dict[str, int | str] = {
            "namespace": namespace,
            "hits": len(found.hits),
            "mode": found.mode.value,
        }
        return Answer(_json(whole), detail=detail)

    async def _write(self, call: Call, namespace: str) -> Answer:
        given = call.arguments
        content: dict[str, Any] = {"type": "text", "text": given.get("text")}
        if "value" in given:
            content = {"type": "json", "value": given["value"]}
            content |= {"text": given["text"]} if "text" in given else {}
        put = Put(
            key=given["key"],
            entry=entries.from_content(content, given.get("metadata", {})),
            provenance=Provenance(f"agent {call.agent}", call.turn_id, call.idempotency_key),
            retention_days=given.get("retention_days"),
            expected=given.get("expected_version"),
        )
        kept = await self.memory.put(namespace, put)
        said: dict[str, Any] = {"key": kept.record.key, "version": kept.record.version}
        if kept.embedding_error is not None:
            said["note"] = f"It is found by its words only: {kept.embedding_error}"
        return Answer(_json(said), detail={"namespace": namespace, "version": kept.record.version})

    async def _delete(self, call: Call, namespace: str) -> Answer:
        try:
            await self.memory.delete(namespace, call.arguments["key"], call.arguments.get("expected_version"))
        except RecordNotFound:
            # An earlier attempt of this call may have deleted it.
            return Answer("There is no such record.", detail={"namespace": namespace})
        return Answer("The record is deleted.", detail={"namespace": namespace})


def value_of(record: Record) -> Any:
    """What a promotion copies into working memory: the text of a text record, else the JSON value."""
    content = entries.content_of(record.entry)
    return content["text"] if content["type"] == "text" else content["value"]


def _shown(record: Record) -> dict[str, Any]:
    return {
        "key": record.key,
        "version": record.version,
        "content": entries.content_of(record.entry),
        "metadata": dict(record.entry.metadata),
        "written_by": record.provenance.by,
    }


def _hit(hit: Scored) -> dict[str, Any]:
    text = hit.record.text
    shown = text if len(text) <= SHOWN_TEXT else text[:SHOWN_TEXT] + f"… [{len(text)} characters; read the record]"
    return {
        "key": hit.record.key,
        "score": hit.score,
        "version": hit.record.version,
        "text": shown,
        "metadata": dict(hit.record.entry.metadata),
    }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _definition(name: str, rule: AgentLongTerm) -> ToolDefinition:
    properties: dict[str, Any] = {
        "namespace": {
            "type": "string",
            "enum": list(rule.namespaces),
            "default": rule.namespaces[0],
            "description": f"Which memory; '{rule.namespaces[0]}' if left out.",
        },
        **_PROPERTIES[name],
    }
    if name == WRITE and rule.retention_days is not None:
        days = {**properties["retention_days"], "default": rule.retention_days}
        properties["retention_days"] = days
    parameters = {"type": "object", "properties": properties, "required": _REQUIRED[name]}
    return ToolDefinition(name, _DESCRIPTIONS[name], {**parameters, "additionalProperties": False})


_KEY = {"type": "string", "minLength": 1, "maxLength": 512, "description": "Name of the record."}
_VERSION = {"type": "integer", "minimum": 0}
_PROPERTIES: dict[str, dict[str, Any]] = {
    READ: {"key": _KEY},
    SEARCH: {
        "query": {"type": "string", "minLength": 1, "maxLength": 65536, "description": "What to look for."},
        "mode": {
            "type": "string",
            "enum": [mode.value for mode in SearchMode],
            "description": "hybrid (default): words and meaning; text: words; vector: meaning; bm25: rare words count "
            "more; best: bm25 and meaning.",
        },
        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_RESULTS, "description": "At most so many hits."},
        "filters": {"type": "object", "description": "Metadata that a record must have exactly, all of it."},
    },
    WRITE: {
        "key": _KEY,
        "text": {"type": "string", "description": "What to remember; with `value`, the text that is searched."},
        "value": {"description": "What to remember as JSON."},
        "metadata": {"type": "object", "description": "Names and JSON values that searches can filter by."},
        "retention_days": {
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_RETENTION_DAYS,
            "description": "After how many days it is forgotten.",
        },
        "expected_version": {**_VERSION, "description": "Write only over this version; 0: only if there is none."},
    },
    DELETE: {"key": _KEY, "expected_version": {**_VERSION, "description": "Delete only this version."}},
}
_REQUIRED = {READ: ["key"], SEARCH: ["query"], WRITE: ["key"], DELETE: ["key"]}
_DESCRIPTIONS = {
    READ: "Read one record of long-term memory, which is kept across conversations.",
    SEARCH: "Search long-term memory, which is kept across conversations. Returns the best records with their scores "
    "in millionths.",
    WRITE: "Write a record of long-term memory, which is kept across conversations. An existing one of this key is "
    "replaced.",
    DELETE: "Delete a record of long-term memory.",
}
