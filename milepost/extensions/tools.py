"""`ports.tools.CustomTools`: the configured tools of the user's own."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from milepost.domain.effects import EffectClass
from milepost.domain.errors import MilepostError, OutcomeUnknown, ToolFailed, ToolUnavailable
from milepost.domain.extensions import (
    CUSTOM_TOOL_CLASSES,
    MAX_TOOL_SECONDS,
    TOOLS_GROUP,
    HttpTool,
    PythonTool,
    ToolConfig,
)
from milepost.domain.tools import CustomTool, ToolDefinition, ToolPolicy
from milepost.extensions.http import BODILESS, GATEWAY, PASSING, PeerClient, cut
from milepost.extensions.loading import load
from milepost.extensions.threads import Threads
from milepost.ports.tools import Answer, Call, Tool
from milepost.security.schemas import check_parameters

MAX_TEXT_CHARACTERS = 16 * 1024 * 1024
MAX_ERROR_CHARACTERS = 4000


@dataclass(frozen=True, slots=True)
class _Loaded:
    definition: ToolDefinition
    tool: CustomTool
    source: HttpTool | Tool


class ConfiguredTools:
    """HTTP tools, and Python tools whose packages are loaded by `load`."""

    def __init__(self, configs: Mapping[str, ToolConfig], peers: PeerClient) -> None:
        self._configs = configs
        self._peers = peers
        self._threads = Threads()
        self._loaded: dict[str, _Loaded] = {}
        self._problems: dict[str, ToolUnavailable] = {}

    def load(self) -> None:
        """Import the packages of Python tools; what fails is kept for whoever asks. Blocks."""
        for name, config in self._configs.items():
            try:
                self._loaded[name] = _http(name, config) if isinstance(config, HttpTool) else _python(name, config)
            except ToolUnavailable as error:
                self._problems[name] = error

    def problems(self) -> dict[str, MilepostError]:
        """See `CustomTools`."""
        found: dict[str, MilepostError] = dict(self._problems)
        for name, loaded in self._loaded.items():
            if isinstance(loaded.source, HttpTool):
                try:
                    self._peers.request(loaded.source.peer, None, None, None)
                except MilepostError as error:
                    found[name] = error
        return found

    def offered(self, names: Sequence[str], agent: str = "") -> list[tuple[ToolDefinition, CustomTool]]:
        """See `CustomTools`."""
        found = [self._get(name) for name in sorted(set(names))]
        return [(loaded.definition, loaded.tool) for loaded in found]

    async def run(self, call: Call, seconds: float) -> Answer:
        """See `CustomTools`."""
        source = self._get(call.tool).source
        if isinstance(source, HttpTool):
            return await self._request(source, call, seconds)
        return await self._function(source, call, seconds)

    def _get(self, name: str) -> _Loaded:
        if name in self._problems:
            raise self._problems[name]
        if name not in self._loaded:
            raise ToolUnavailable(
                f"The configuration of this worker has no tool '{name}'.", fix=f"Add it under tools.{name}."
            )
        return self._loaded[name]

    async def _request(self, tool: HttpTool, call: Call, seconds: float) -> Answer:
        peer, owner = tool.peer, f"The peer of tool '{call.tool}'"
        bodiless = peer.method in BODILESS
        body = None if bodiless else json.dumps(dict(call.arguments), ensure_ascii=False).encode("utf-8", "replace")
        query = {name: _query(value) for name, value in call.arguments.items()} if bodiless else None
        key = call.idempotency_key if tool.policy.effect_class is EffectClass.KEYED else None
        request = self._peers.request(peer, body, query, key)
        reply = await self._peers.send(owner, request, seconds, tool.response_bytes)
        detail: dict[str, int | str] = {"status": reply.status}
        note = f"\n[the answer was over {tool.response_bytes} bytes; the rest was not read]" if reply.truncated else ""
        if 200 <= reply.status < 300:
            return Answer((reply.text or "[the answer is empty]") + note, False, detail)
        said = f": {cut(reply.text, MAX_ERROR_CHARACTERS, self._peers.redactor)}" if reply.text.strip() else "."
        text = f"{owner} answered with status {reply.status}{said}"
        if 300 <= reply.status < 400:
            text = f"{owner} answered with a redirection ({reply.status}), which is not followed."
        if reply.status in GATEWAY:
            raise OutcomeUnknown(text)
        raise ToolFailed(text, retryable_now=reply.status in PASSING, detail=detail)

    async def _function(self, tool: Tool, call: Call, seconds: float) -> Answer:
        gone = threading.Event()
        try:
            value = await self._threads.call(
                f"Tool '{call.tool}'", tool.run, replace(call, cancelled=gone.is_set), seconds
            )
        except MilepostError:
            raise
        except Exception as error:
            said = cut(str(error), MAX_ERROR_CHARACTERS, self._peers.redactor)
            raise ToolFailed(f"{call.tool} failed: {type(error).__name__}: {said}") from error
        finally:
            gone.set()
        answer = Answer(value) if isinstance(value, str) else value
        if not isinstance(answer, Answer) or not isinstance(answer.text, str):
            # It has run; only what it said cannot be used.
            text = f"{call.tool} ran, and returned {type(value).__name__} instead of a text."
            return Answer(text, is_error=True)
        detail = answer.detail if isinstance(answer.detail, Mapping) else {}
        return Answer(cut(answer.text, MAX_TEXT_CHARACTERS, self._peers.redactor), bool(answer.is_error), detail)


def _query(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _http(name: str, config: HttpTool) -> _Loaded:
    return _Loaded(config.definition, CustomTool(name, config.policy, config.timeout), config)


def _python(name: str, config: PythonTool) -> _Loaded:
    owner = f"Tool '{name}'"
    tool = load(TOOLS_GROUP, config.entry_point, Tool, owner)
    effect, timeout = config.effect or tool.effect, config.timeout or tool.timeout
    if effect not in CUSTOM_TOOL_CLASSES:
        allowed = ", ".join(CUSTOM_TOOL_CLASSES)
        raise ToolUnavailable(f"{owner} has the effect class '{effect}'.", fix=f"A package's tool is one of {allowed}.")
    if not 0 < timeout <= MAX_TOOL_SECONDS:
        raise ToolUnavailable(f"{owner} has a timeout of {timeout} s; at most {MAX_TOOL_SECONDS:g} are possible.")
    try:
        parameters = json.loads(json.dumps(dict(tool.parameters)))
        check_parameters(parameters)
    except (TypeError, ValueError) as error:
        raise ToolUnavailable(f"{owner} has parameters that are no JSON Schema object: {str(error)[:500]}") from error
    policy = ToolPolicy(effect, config.parallel or tool.parallel, config.approval or tool.approval)
    definition = ToolDefinition(name, tool.description, parameters)
    return _Loaded(definition, CustomTool(name, policy, timeout), tool)
