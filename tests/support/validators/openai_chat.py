"""An offline validator of chat-completions requests, written from the rules real endpoints enforce."""

from __future__ import annotations

import json
import re
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_IMAGE = re.compile(r"(https?://|data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}\Z)")
_ROLES = {"system", "developer", "user", "assistant", "tool"}


def violations(body: Any) -> list[str]:
    """Why an endpoint would answer 400; empty for a valid request."""
    if not isinstance(body, dict):
        return ["the body is not an object"]
    found: list[str] = []
    if not isinstance(body.get("model"), str) or not body["model"]:
        found.append("model: missing")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return [*found, "messages: must be a list with at least one message"]
    for index, message in enumerate(messages):
        found.extend(f"messages[{index}]: {problem}" for problem in _message(message))
    if not found:
        found.extend(_order(messages))
    names: set[str] = set()
    for index, tool in enumerate(body.get("tools") or []):
        function = tool.get("function", {})
        name = function.get("name")
        if tool.get("type") != "function" or not isinstance(name, str) or not _NAME.match(name):
            found.append(f"tools[{index}]: bad type or name")
        elif name in names:
            found.append(f"tools[{index}]: '{name}' is offered twice")
        names.add(str(name))
        if not isinstance(function.get("parameters", {}), dict):
            found.append(f"tools[{index}]: parameters must be an object")
    if "response_format" in body:
        found.extend(_format_problems(body["response_format"]))
    if "tools" in body and not body["tools"]:
        found.append("tools: must not be empty")
    return found


def _message(message: Any) -> list[str]:
    if not isinstance(message, dict):
        return ["is not an object"]
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        return [f"unknown role {role!r}"]
    found = _content_problems(content, role) if content is not None else []
    if role == "user" and isinstance(content, list):
        return found
    if role != "assistant":
        if not isinstance(content, str):
            found.append(f"{role} content must be a string")
        if "tool_calls" in message:
            found.append("only an assistant has tool_calls")
        if role == "tool" and not _is_id(message.get("tool_call_id")):
            found.append("tool_call_id must be 1 to 40 printable characters")
        return found
    calls = message.get("tool_calls")
    if calls is None:
        if not isinstance(content, str) or not content.strip():
            found.append("an assistant needs content or tool_calls")
    elif not isinstance(calls, list) or not calls:
        found.append("tool_calls must not be empty")
    else:
        for index, call in enumerate(calls):
            found.extend(f"tool_calls[{index}]: {problem}" for problem in _call(call))
        ids = [call.get("id") for call in calls if isinstance(call, dict)]
        if len(set(ids)) != len(ids):
            found.append("tool_calls: an id occurs twice")
    return found


def _content_problems(content: Any, role: str) -> list[str]:
    if role != "user" or not isinstance(content, list):
        return _text_problems(content)
    found = [] if content else ["content must not be empty"]
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            found.extend(_text_problems(part.get("text")))
        elif kind != "image_url" or not _IMAGE.match(str((part.get("image_url") or {}).get("url"))):
            found.append(f"bad content part {kind!r}")
    return found


def _format_problems(wanted: Any) -> list[str]:
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind in ("text", "json_object"):
        return []
    schema = wanted.get("json_schema") if kind == "json_schema" else None
    if not isinstance(schema, dict) or not _NAME.match(str(schema.get("name"))):
        return ["response_format: bad type or name"]
    return [] if isinstance(schema.get("schema"), dict) else ["response_format: the schema is no object"]


def _call(call: Any) -> list[str]:
    if not isinstance(call, dict) or call.get("type") != "function" or not isinstance(call.get("function"), dict):
        return ["is not a function call"]
    found: list[str] = []
    if not _is_id(call.get("id")):
        found.append("id must be 1 to 40 printable characters")
    name, arguments = call["function"].get("name"), call["function"].get("arguments")
    if not isinstance(name, str) or not _NAME.match(name):
        found.append(f"bad function name {name!r}")
    if not isinstance(arguments, str):
        return [*found, "arguments must be a string"]
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return [*found, "arguments are not JSON"]
    if not isinstance(parsed, dict):
        found.append("arguments are not an object")
    return found + _text_problems(arguments)


def _order(messages: list[dict[str, Any]]) -> list[str]:
    """System first; every call answered once, directly after; roles alternate; somebody to answer at the end."""
    found: list[str] = []
    pending: list[str] = []
    previous = None
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "tool":
            if message["tool_call_id"] in pending:
                pending.remove(message["tool_call_id"])
            else:
                found.append(f"messages[{index}]: answers no open call")
            previous = role
            continue
        if pending:
            found.append(f"messages[{index}]: calls {pending} before it have no result")
            pending = []
        if role in ("system", "developer") and index:
            found.append(f"messages[{index}]: {role} is not first")
        if role == previous and role in ("user", "assistant"):
            found.append(f"messages[{index}]: two {role} messages in a row")
        pending = [call["id"] for call in message.get("tool_calls") or []]
        previous = role
    if pending:
        found.append(f"the last calls {pending} have no result")
    return found


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= 40 and value.isascii() and value.isprintable()


def _text_problems(value: Any) -> list[str]:
    if not isinstance(value, str):
        return ["content must be a string"]
    if "\0" in value:
        return ["contains NUL"]
    return ["contains a lone surrogate"] if any("\ud800" <= char <= "\udfff" for char in value) else []
