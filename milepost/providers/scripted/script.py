"""The script format: what the scripted provider answers, call by call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from ruamel.yaml.nodes import MappingNode, Node

from milepost.domain.errors import ScriptExhausted
from milepost.domain.usage import Usage
from milepost.providers.scripted import nodes

MAX_DELAY_SECONDS = 3_600.0
MAX_TIMES = 1_000
MAX_TOKENS = 1_000_000_000

_USAGE_KEYS = {
    "input": "input_tokens",
    "cached_input": "cached_input_tokens",
    "output": "output_tokens",
    "reasoning": "reasoning_tokens",
    "cache_write": "cache_write_tokens",
}


class CutKind(StrEnum):
    """`length`: the answer ends at the token limit; `disconnect`: the connection breaks off in the middle."""

    LENGTH = "length"
    DISCONNECT = "disconnect"


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call. `arguments` is the raw JSON text, or whatever text the script has in its place."""

    tool: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Failure:
    """An HTTP failure of the first `times` attempts of a call. `retry_after` is seconds."""

    status: int
    retry_after: float | None = None
    times: int = 1


@dataclass(frozen=True, slots=True)
class Cut:
    """How an answer is cut. A disconnect happens to the first `times` attempts, a length limit to all."""

    kind: CutKind
    times: int = 1


@dataclass(frozen=True, slots=True)
class Response:
    """One answer. `delay` is seconds before each delta but the first, and before the end. `line` is for messages."""

    line: int
    text: str = ""
    reasoning: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    usage: Usage | None = None
    delay: float = 0.0
    fail: Failure | None = None
    cut: Cut | None = None


@dataclass(frozen=True, slots=True)
class Script:
    """`agents` scripts single agents; every other agent gets `responses`. `summaries` are of compactions."""

    responses: tuple[Response, ...] = ()
    agents: Mapping[str, tuple[Response, ...]] = field(default_factory=dict)
    summaries: tuple[Response, ...] = ()

    def summary(self, number: int) -> Response | None:
        """The answer to the n-th compaction of the turn (counted from 1); None where the script has none."""
        return self.summaries[number - 1] if 1 <= number <= len(self.summaries) else None

    def response(self, agent: str, call_number: int) -> Response:
        """The answer to an agent's n-th call of the turn (counted from 1). Raises ScriptExhausted past the end."""
        responses = self.agents.get(agent, self.responses)
        if not 1 <= call_number <= len(responses):
            raise ScriptExhausted(
                f"The script has {len(responses)} response(s) for agent '{agent}', but this is model call "
                f"number {call_number} of the turn.",
                field="script",
                fix="Add a response, or let the one before end without tool calls.",
            )
        return responses[call_number - 1]


@lru_cache(maxsize=8)
def parse_script(text: str) -> Script:
    """Read a script.

    Raises:
        InvalidInput: naming the line, and the nearest known key for an unknown one.
        PayloadTooLarge: the text is over `nodes.MAX_SCRIPT_BYTES`.
    """
    return script_of(nodes.compose(text))


def script_of(root: Node) -> Script:
    """Read a script from its root node."""
    entries = nodes.mapping(root, "the script", ("responses", "agents", "summaries"))
    if not entries:
        raise nodes.invalid(
            nodes.line_of(root), "the script has no responses.", "Write `responses:` with a list of answers."
        )
    agents = nodes.mapping(entries["agents"], "'agents'") if "agents" in entries else {}
    return Script(
        responses=_responses(entries["responses"], "'responses'") if "responses" in entries else (),
        summaries=_responses(entries["summaries"], "'summaries'") if "summaries" in entries else (),
        agents={agent: _responses(node, f"agent '{agent}'") for agent, node in agents.items()},
    )


def _responses(node: Node, what: str) -> tuple[Response, ...]:
    return tuple(_response(entry) for entry in nodes.sequence(node, what))


def _response(node: Node) -> Response:
    keys = ("text", "reasoning", "calls", "usage", "delay", "fail", "cut")
    entry = nodes.mapping(node, "a response", keys)
    line = nodes.line_of(node)
    if not entry.keys() & {"text", "reasoning", "calls", "fail"}:
        raise nodes.invalid(line, "a response needs `text`, `reasoning`, `calls` or `fail`.")
    delay = entry.get("delay")
    return Response(
        line=line,
        text=nodes.text(entry["text"], "'text'") if "text" in entry else "",
        reasoning=nodes.text(entry["reasoning"], "'reasoning'") if "reasoning" in entry else "",
        calls=tuple(_call(call) for call in nodes.sequence(entry["calls"], "'calls'")) if "calls" in entry else (),
        usage=_usage(entry["usage"]) if "usage" in entry else None,
        delay=nodes.number(delay, "'delay'", 0, MAX_DELAY_SECONDS) if delay is not None else 0.0,
        fail=_failure(entry["fail"]) if "fail" in entry else None,
        cut=_cut(entry["cut"]) if "cut" in entry else None,
    )


def _call(node: Node) -> ScriptedCall:
    entry = nodes.mapping(node, "a call", ("tool", "args"))
    if "tool" not in entry:
        raise nodes.invalid(nodes.line_of(node), "a call needs `tool`.")
    args = entry.get("args")
    if args is None:
        arguments = "{}"
    elif isinstance(args, MappingNode):
        arguments = json.dumps(nodes.json_value(args), ensure_ascii=False)
    else:
        # A text stands for itself: the way to script arguments that are not JSON.
        arguments = nodes.text(args, "'args'")
    return ScriptedCall(nodes.text(entry["tool"], "'tool'"), arguments)


def _usage(node: Node) -> Usage:
    known = {**_USAGE_KEYS, **{name: name for name in _USAGE_KEYS.values()}}
    entry = nodes.mapping(node, "'usage'", (*known, "complete"))
    complete = nodes.boolean(entry.pop("complete"), "'complete'") if "complete" in entry else True
    counts: dict[str, int] = {}
    for key, value in entry.items():
        name = known[key]
        if name in counts:
            raise nodes.invalid(nodes.line_of(value), f"'usage' names {name} twice.")
        counts[name] = nodes.integer(value, f"'{key}'", 0, MAX_TOKENS)
    if counts.get("cache_write_tokens", 0) > counts.get("input_tokens", 0):
        raise nodes.invalid(nodes.line_of(node), "'cache_write' is a part of 'input' and cannot be more.")
    return Usage(
        counts.get("input_tokens", 0),
        counts.get("cached_input_tokens", 0),
        counts.get("output_tokens", 0),
        counts.get("reasoning_tokens", 0),
        complete,
        counts.get("cache_write_tokens", 0),
    )


def _failure(node: Node) -> Failure:
    entry = nodes.mapping(node, "'fail'", ("status", "retry_after", "times"))
    if "status" not in entry:
        raise nodes.invalid(nodes.line_of(node), "'fail' needs `status`, an HTTP status.")
    after = entry.get("retry_after")
    return Failure(
        status=nodes.integer(entry["status"], "'status'", 400, 599),
        retry_after=nodes.number(after, "'retry_after'", 0, MAX_DELAY_SECONDS) if after is not None else None,
        times=nodes.integer(entry["times"], "'times'", 1, MAX_TIMES) if "times" in entry else 1,
    )


def _cut(node: Node) -> Cut:
    """`length` or `disconnect`, or a mapping with `kind` and `times`."""
    times = 1
    if isinstance(node, MappingNode):
        entry = nodes.mapping(node, "'cut'", ("kind", "times"))
        if "kind" not in entry:
            raise nodes.invalid(nodes.line_of(node), "'cut' needs `kind`.")
        times = nodes.integer(entry["times"], "'times'", 1, MAX_TIMES) if "times" in entry else 1
        node = entry["kind"]
    kind = nodes.text(node, "'cut'")
    if kind not in set(CutKind):
        raise nodes.invalid(nodes.line_of(node), f"'cut' must be length or disconnect, not '{kind[:80]}'.")
    return Cut(CutKind(kind), times)
