"""Requests of Anthropic's messages API.

Signatures of the fake server prove the text they were issued for (`sign`), so that one changed byte is seen.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
_ID = re.compile(r"[A-Za-z0-9_-]+\Z")
_IMAGES = {"image/jpeg", "image/png", "image/gif", "image/webp"}
_KNOWN = {
    "model", "max_tokens", "messages", "system", "tools", "tool_choice", "stream", "temperature", "top_p", "top_k",
    "stop_sequences", "thinking", "output_config", "cache_control", "metadata", "service_tier",
}  # fmt: skip
_SIGNED, _REDACTED = "fake-sig.", "fake-redacted."
MAX_BREAKPOINTS = 4


def sign(thinking: str) -> str:
    """The fake's signature of a thinking text."""
    return _SIGNED + hashlib.sha256(thinking.encode("utf-8", "surrogatepass")).hexdigest()


def redacted(number: int = 0) -> str:
    """Data of a redacted thinking block."""
    inner = f"{number:08d}"
    return f"{_REDACTED}{inner}.{hashlib.sha256(inner.encode()).hexdigest()}"


def violations(body: Any) -> list[str]:
    """Why the service would answer 400; empty for a valid request."""
    if not isinstance(body, dict):
        return ["the body is not an object"]
    found = [f"{key}: Extra inputs are not permitted" for key in body if key not in _KNOWN]
    if not isinstance(body.get("model"), str) or not body["model"]:
        found.append("model: Field required")
    if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] < 1:
        found.append("max_tokens: must be at least 1")
    found += _system(body.get("system")) + _tools(body) + _sampling(body)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return [*found, "messages: at least one message is required"]
    for index, message in enumerate(messages):
        found += [f"messages.{index}: {problem}" for problem in _message(message)]
    if not found:
        found += _order(messages) + _thinking(messages, (body.get("thinking") or {}).get("type", "disabled"))
    marks = str(body).count("'cache_control':")
    if marks > MAX_BREAKPOINTS:
        found.append(f"a maximum of {MAX_BREAKPOINTS} blocks with cache_control may be provided, found {marks}")
    return found


def _system(system: Any) -> list[str]:
    if system is None or (isinstance(system, str) and system):
        return []
    if not isinstance(system, list) or not system:
        return ["system: must be a text or a list of text blocks"]
    return [f"system: {problem}" for block in system for problem in _text(block)]


def _tools(body: dict[str, Any]) -> list[str]:
    found: list[str] = []
    names = [tool.get("name") for tool in body.get("tools") or []]
    if "tools" in body and not names:
        found.append("tools: must not be empty")
    for tool, name in zip(body.get("tools") or [], names, strict=True):
        if not isinstance(name, str) or not _NAME.match(name):
            found.append(f"tools: bad name {name!r}")
        if (tool.get("input_schema") or {}).get("type") != "object":
            found.append("tools: input_schema.type must be object")
    if len(set(names)) != len(names):
        found.append("tools: Tool names must be unique")
    return found


def _sampling(body: dict[str, Any]) -> list[str]:
    found: list[str] = []
    if any(not str(stop).strip() for stop in body.get("stop_sequences") or []):
        found.append("stop_sequences: each stop sequence must contain non-whitespace")
    thinking = body.get("thinking")
    if thinking is None or thinking.get("type") == "disabled":
        return found
    if thinking.get("type") == "enabled":
        budget = thinking.get("budget_tokens")
        if not isinstance(budget, int) or not 1024 <= budget < body.get("max_tokens", 0):
            found.append("thinking.budget_tokens: must be at least 1024 and below max_tokens")
    elif thinking != {"type": "adaptive"}:
        found.append("thinking.type: unknown")
    if body.get("temperature", 1) != 1 or "top_p" in body or "top_k" in body:
        found.append("temperature may only be set to 1, and top_p and top_k not at all, when thinking is enabled")
    return found


def _message(message: Any) -> list[str]:
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant") or len(message) != 2:
        return ["must have role user or assistant, and content"]
    content, role = message.get("content"), message["role"]
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not content:
        return ["content must not be empty"]
    return [f"content.{at}: {problem}" for at, block in enumerate(content) for problem in _block(role, block)]


def _block(role: str, block: Any) -> list[str]:
    match role, block.get("type"):
        case _, "text":
            return _text(block)
        case "user", "image":
            return _image(block.get("source") or {})
        case "user", "tool_result":
            content = block.get("content", "")
            return [] if isinstance(content, str) and _sendable(content) else ["tool_result: bad content"]
        case "assistant", "tool_use":
            bad = not _ID.match(str(block.get("id"))) or not _NAME.match(str(block.get("name")))
            found = [f"tool_use: bad id or name {block.get('id')!r}"] if bad else []
            if not isinstance(block.get("input"), dict):
                found.append("tool_use.input: Input should be a valid dictionary")
            return found if _sendable(str(block.get("input"))) else [*found, "tool_use.input: lone surrogate"]
        case "assistant", "thinking":
            signature = block.get("signature")
            if not isinstance(signature, str) or not signature:
                return ["thinking.signature: Field required"]
            if signature.startswith(_SIGNED) and signature != sign(str(block.get("thinking"))):
                return ["Invalid `signature` in `thinking` block"]
            return []
        case "assistant", "redacted_thinking":
            data = str(block.get("data"))
            inner = data.removeprefix(_REDACTED)
            return [] if not data.startswith(_REDACTED) or data == redacted(int(inner[:8])) else ["Invalid `data`"]
    return [f"block type {block.get('type')!r} is not permitted for role {role}"]


def _text(block: Any) -> list[str]:
    text = block.get("text")
    if block.get("type") != "text" or not isinstance(text, str):
        return ["text: must be a text"]
    if not text.strip():
        return ["text content blocks must contain non-whitespace text"]
    return [] if _sendable(text) else ["text: lone surrogate"]


def _image(source: dict[str, Any]) -> list[str]:
    if source.get("type") != "base64" or source.get("media_type") not in _IMAGES:
        return ["image.source: bad type or media_type"]
    try:
        return [] if base64.b64decode(source["data"], validate=True) else ["image.source: empty"]
    except (ValueError, KeyError):
        return ["image.source.base64: invalid base64 data"]


def _order(messages: list[dict[str, Any]]) -> list[str]:
    """Roles alternate, the user begins and ends; results stand first in the message after their calls, one for each."""
    found: list[str] = []
    if messages[0]["role"] != "user":
        found.append("messages: first message must use the user role")
    if messages[-1]["role"] != "user":
        found.append("messages: the conversation must end with a user message")
    calls: list[str] = []
    used: set[str] = set()
    for index, message in enumerate(messages):
        blocks = message["content"] if isinstance(message["content"], list) else []
        if index and message["role"] == messages[index - 1]["role"]:
            found.append(f"messages.{index}: roles must alternate")
        if message["role"] == "assistant":
            calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
            if len(set(calls)) != len(calls) or used & set(calls):
                found.append(f"messages.{index}: `tool_use` ids must be unique")
            used |= set(calls)
            continue
        results = [block.get("tool_use_id") for block in blocks if block["type"] == "tool_result"]
        if sorted(map(str, results)) != sorted(calls):
            found.append(f"messages.{index}: results {results} do not answer the calls {calls} before them")
        if any(block["type"] != "tool_result" for block in blocks[: len(results)]):
            found.append(f"messages.{index}: tool results must come first")
        calls = []
    return found


def _thinking(messages: list[dict[str, Any]], mode: str) -> list[str]:
    """An answer whose calls are being answered begins with thinking if thinking is on; without, none is sent at all."""
    kinds = [[block["type"] for block in m["content"]] if isinstance(m["content"], list) else [] for m in messages]
    if mode == "disabled":
        return (
            ["thinking is disabled, but a message has some"] if any("thinking" in k for ks in kinds for k in ks) else []
        )
    for message, types in zip(reversed(messages), reversed(kinds), strict=True):
        if message["role"] == "user" and types[:1] != ["tool_result"]:
            return []
        if message["role"] == "assistant" and "thinking" not in types[0]:
            return [f"Expected `thinking` or `redacted_thinking`, but found `{types[0]}`"]
    return []


def _sendable(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)
