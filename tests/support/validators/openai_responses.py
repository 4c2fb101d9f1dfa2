"""Requests of OpenAI's responses API, without state at the service.

Encrypted content of the fake server proves the item it was issued for (`encrypt`), so that one changed byte is seen.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_IMAGE = re.compile(r"(https?://|data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}\Z)")
_KNOWN = {
    "model", "input", "instructions", "tools", "tool_choice", "stream", "store", "include", "reasoning", "temperature",
    "top_p", "max_output_tokens", "text", "parallel_tool_calls", "metadata", "service_tier", "prompt_cache_key",
}  # fmt: skip
_ENCRYPTED = "fake-enc."
MIN_OUTPUT_TOKENS = 16


def encrypt(item_id: str, summary: list[dict[str, Any]]) -> str:
    """The fake's encrypted content of a reasoning item."""
    text = json.dumps([item_id, summary], sort_keys=True)
    return _ENCRYPTED + hashlib.sha256(text.encode()).hexdigest()


def violations(body: Any) -> list[str]:
    """Why the service would answer 400; empty for a valid request."""
    if not isinstance(body, dict):
        return ["the body is not an object"]
    found = [f"Unknown parameter: '{key}'" for key in body if key not in _KNOWN]
    if not isinstance(body.get("model"), str) or not body["model"]:
        found.append("model: missing")
    if body.get("max_output_tokens", MIN_OUTPUT_TOKENS) < MIN_OUTPUT_TOKENS:
        found.append(f"max_output_tokens: must be at least {MIN_OUTPUT_TOKENS}")
    found += _tools(body) + _format((body.get("text") or {}).get("format"))
    if not _sendable(body.get("instructions", "")):
        found.append("instructions: bad text")
    items = body.get("input")
    if not isinstance(items, list) or not items:
        return [*found, "input: must be a list with at least one item"]
    for at, item in enumerate(items):
        found += [f"input[{at}]: {problem}" for problem in _item(item, stored=body.get("store", True))]
    return found or _order(items)


def _tools(body: dict[str, Any]) -> list[str]:
    tools = body.get("tools")
    if tools is None:
        return []
    if not tools:
        return ["tools: must not be empty"]
    found = []
    for tool in tools:
        if tool.get("type") != "function" or not _NAME.match(str(tool.get("name"))):
            found.append(f"tools: bad type or name {tool.get('name')!r}")
        if not isinstance(tool.get("parameters"), dict) or not isinstance(tool.get("strict"), bool):
            found.append("tools: parameters and strict are required")
    names = [tool.get("name") for tool in tools]
    return found if len(set(names)) == len(names) else [*found, "tools: a name occurs twice"]


def _format(wanted: Any) -> list[str]:
    if wanted is None or wanted.get("type") in ("text", "json_object"):
        return []
    if wanted.get("type") != "json_schema" or not _NAME.match(str(wanted.get("name"))):
        return ["text.format: bad type or name"]
    return [] if isinstance(wanted.get("schema"), dict) else ["text.format: the schema is no object"]


def _item(item: Any, *, stored: bool) -> list[str]:
    if not isinstance(item, dict):
        return ["is not an object"]
    match item.get("type"):
        case "message":
            return _message(item)
        case "function_call":
            return _call(item)
        case "function_call_output":
            fine = isinstance(item.get("output"), str) and _sendable(item["output"]) and _is_id(item.get("call_id"))
            return [] if fine else ["function_call_output: bad call_id or output"]
        case "reasoning":
            return _reasoning(item, stored=stored)
    return [f"unknown type {item.get('type')!r}"]


def _message(item: dict[str, Any]) -> list[str]:
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system", "developer"):
        return [f"unknown role {role!r}"]
    if not isinstance(content, list) or not content:
        return ["content must not be empty"]
    found = []
    for part in content:
        kind = part.get("type")
        if kind == ("output_text" if role == "assistant" else "input_text"):
            if not _sendable(part.get("text")):
                found.append("bad text")
        elif kind == "input_image" and role == "user":
            if not _IMAGE.match(str(part.get("image_url"))):
                found.append("bad image")
        else:
            found.append(f"a part of type {kind!r} is not permitted for role {role}")
    return found


def _call(item: dict[str, Any]) -> list[str]:
    found = [] if _is_id(item.get("call_id")) else ["function_call: bad call_id"]
    if not _NAME.match(str(item.get("name"))):
        found.append(f"function_call: bad name {item.get('name')!r}")
    try:
        fine = isinstance(json.loads(item.get("arguments", "")), dict) and _sendable(item["arguments"])
    except (ValueError, TypeError, RecursionError):
        fine = False
    return found if fine else [*found, "function_call: arguments are no JSON object"]


def _reasoning(item: dict[str, Any], *, stored: bool) -> list[str]:
    item_id, content = item.get("id"), item.get("encrypted_content")
    if not isinstance(item_id, str) or not isinstance(item.get("summary"), list):
        return ["reasoning: id and summary are required"]
    if not stored and not content:
        return [f"Item with id '{item_id}' not found; items are not persisted when `store` is false"]
    if str(content).startswith(_ENCRYPTED) and content != encrypt(item_id, item["summary"]):
        return ["The encrypted content could not be verified"]
    return []


def _order(items: list[dict[str, Any]]) -> list[str]:
    """Every call has one output after it; reasoning stands before what it was written for; somebody is to answer."""
    found: list[str] = []
    calls: list[str] = []
    for at, item in enumerate(items):
        kind = item["type"]
        following = items[at + 1] if at + 1 < len(items) else {}
        if kind == "reasoning" and not (
            following.get("type") in ("reasoning", "function_call") or following.get("role") == "assistant"
        ):
            found.append(f"Item '{item['id']}' of type 'reasoning' was provided without its required following item")
        if kind == "function_call":
            calls.append(item["call_id"])
        if kind == "function_call_output":
            if item["call_id"] in calls:
                calls.remove(item["call_id"])
            else:
                found.append(f"No tool call found for function call output with call_id {item['call_id']}")
        if kind == "message" and calls:
            found.append(f"No tool output found for function calls {calls}")
            calls = []
    ids = [item["call_id"] for item in items if item["type"] == "function_call"]
    if len(set(ids)) != len(ids):
        found.append("a call_id occurs twice")
    return found + ([f"No tool output found for function calls {calls}"] if calls else [])


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= 64 and value.isascii() and value.isprintable()


def _sendable(text: Any) -> bool:
    return isinstance(text, str) and not any("\ud800" <= char <= "\udfff" for char in text)
