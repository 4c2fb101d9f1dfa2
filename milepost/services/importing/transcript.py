"""From a transcript of another tool: JSON lines, one message each; docs/history.md describes them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO

from milepost.domain.usage import UNKNOWN_USAGE, Usage
from milepost.ledger.codec import canonical_bytes
from milepost.services.importing.course import FIRST_TIME, LAST_TIME
from milepost.services.importing.plan import BadLine

FORMAT = "transcript"
MAX_BYTES = 64 * 1024 * 1024
MAX_MESSAGES = 100_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KEYS = {
    "user": {"role", "text", "at"},
    "assistant": {"role", "text", "at", "agent", "provider", "model", "reasoning", "tool_calls", "usage"},
    "tool": {"role", "text", "at", "call_id", "is_error"},
    "system": {"role", "text", "at"},
}
_SESSION_KEYS = {"type", "id", "title", "at"}
_USAGE_KEYS = {"input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens"}


@dataclass(slots=True)
class Asked:
    """A call of an assistant message, and the tool message that answers it."""

    call_id: str
    tool: str
    arguments: str
    result: Message | None = None


@dataclass(slots=True)
class Message:
    line: int
    role: str
    text: str
    at: int | None
    agent: str = "imported"
    provider: str = "imported"
    model: str = "unknown"
    reasoning: str = ""
    calls: list[Asked] = field(default_factory=list)
    usage: Usage = UNKNOWN_USAGE
    is_error: bool = False


@dataclass(slots=True)
class Parsed:
    """A transcript. Each of `turns` begins with the person's message."""

    digest: str
    title: str
    at: int | None
    turns: list[list[Message]] = field(default_factory=list)
    systems: dict[int, str] = field(default_factory=dict)


def parse(file: BinaryIO) -> Parsed:
    """Read and check the whole transcript. Raises BadLine."""
    file.seek(0)
    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise BadLine(None, f"The transcript is over {MAX_BYTES} bytes; split it into several.")
    found = Parsed(hashlib.sha256(data).hexdigest(), "Imported", None)
    open_calls: dict[str, Asked] = {}
    system = ""
    messages = 0
    for number, raw in enumerate(data.split(b"\n"), start=1):
        if not raw.strip():
            continue
        value = _object(raw, number)
        messages += 1
        if messages > MAX_MESSAGES:
            raise BadLine(number, f"More than {MAX_MESSAGES} messages; split the transcript into several.")
        if value.get("type") == "session":
            if messages > 1:
                raise BadLine(number, "The line about the session must be the first.")
            _session_line(found, value, number)
            continue
        message = _message(value, number)
        if message.role == "system":
            system = message.text
        elif message.role == "user":
            open_calls.clear()
            found.systems[len(found.turns)] = system
            found.turns.append([message])
        elif not found.turns:
            raise BadLine(number, f"A message of role '{message.role}' comes before the first one of role 'user'.")
        elif message.role == "tool":
            _answer(open_calls, value, message, number)
        else:
            for call in message.calls:
                if call.call_id in open_calls:
                    raise BadLine(number, f"The call id {call.call_id[:80]!r} is used already and has no result yet.")
                open_calls[call.call_id] = call
            found.turns[-1].append(message)
    if not found.turns:
        raise BadLine(None, "The transcript has no message of role 'user'.")
    return found


def _object(raw: bytes, line: int) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadLine(line, f"This is no JSON ({error}).") from error
    if not isinstance(value, dict):
        raise BadLine(line, "A line must be a JSON object.")
    return value


def _session_line(found: Parsed, value: dict[str, Any], line: int) -> None:
    _only(value, _SESSION_KEYS, line)
    found.title = _text(value, "title", line, default="Imported")[:200] or "Imported"
    found.at = _time(value, line)


def _message(value: dict[str, Any], line: int) -> Message:
    role = value.get("role")
    if not isinstance(role, str) or role not in _KEYS:
        raise BadLine(line, f"'role' must be one of {', '.join(_KEYS)}.")
    _only(value, _KEYS[role], line)
    text = _text(value, "text", line, default="" if role == "assistant" else None)
    if role == "user" and not text.strip():
        raise BadLine(line, "A request must have text.")
    message = Message(line, role, text, _time(value, line))
    if role == "assistant":
        message.agent = _text(value, "agent", line, default="imported") or "imported"
        message.provider = _text(value, "provider", line, default="imported")
        message.model = _text(value, "model", line, default="unknown")
        message.reasoning = _text(value, "reasoning", line, default="")
        message.calls = _calls(value.get("tool_calls", []), line)
        message.usage = _usage(value.get("usage"), line)
        _check_agent(message.agent, line)
    if role == "tool":
        message.is_error = value.get("is_error", False)
        if not isinstance(message.is_error, bool):
            raise BadLine(line, "'is_error' must be true or false.")
    return message


def _check_agent(agent: str, line: int) -> None:
    try:
        fits = len(agent.encode()) <= 200 and "\0" not in agent
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise BadLine(line, "'agent' has more than 200 bytes, or characters that a name cannot have.")


def _calls(value: Any, line: int) -> list[Asked]:
    if not isinstance(value, list) or len(value) > 128:
        raise BadLine(line, "'tool_calls' must be a list of at most 128 calls.")
    calls = []
    for item in value:
        if not isinstance(item, dict):
            raise BadLine(line, "A tool call must be an object.")
        _only(item, {"id", "name", "arguments"}, line)
        arguments = item.get("arguments", {})
        raw = arguments if isinstance(arguments, str) else canonical_bytes(arguments).decode()
        name = _text(item, "name", line)
        if not name or len(name) > 4096:
            raise BadLine(line, "A tool's name has 1 to 4,096 characters.")
        calls.append(Asked(_text(item, "id", line), name, raw))
    return calls


def _usage(value: Any, line: int) -> Usage:
    if value is None:
        return UNKNOWN_USAGE
    if not isinstance(value, dict):
        raise BadLine(line, "'usage' must be an object.")
    _only(value, _USAGE_KEYS, line)
    if any(type(tokens) is not int or not 0 <= tokens < 2**53 for tokens in value.values()):
        raise BadLine(line, "Token counts are whole numbers, 0 or more.")
    return Usage(**value)


def _answer(open_calls: dict[str, Asked], value: dict[str, Any], message: Message, line: int) -> None:
    call = open_calls.pop(_text(value, "call_id", line), None)
    if call is None:
        raise BadLine(line, "'call_id' names no call of this turn that still waits for its result.")
    call.result = message


def _only(value: dict[str, Any], known: set[str], line: int) -> None:
    for key in value:
        if key not in known:
            raise BadLine(line, f"The key {key[:80]!r} is not known here. Known: {', '.join(sorted(known))}.")


def _text(value: dict[str, Any], key: str, line: int, *, default: str | None = None) -> str:
    found = value.get(key, default)
    if not isinstance(found, str):
        raise BadLine(line, f"'{key}' must be a text.")
    return found


def _time(value: dict[str, Any], line: int) -> int | None:
    raw = value.get("at")
    if raw is None:
        return None
    try:
        moment = datetime.fromisoformat(raw)
        if moment.tzinfo is None:
            raise ValueError
        found = (moment - _EPOCH) // timedelta(microseconds=1)
        if not FIRST_TIME <= found <= LAST_TIME:
            raise ValueError
        return found
    except (TypeError, ValueError, OverflowError) as error:
        raise BadLine(line, "'at' must be a time with an offset: 2026-01-31T12:00:00Z.") from error
