"""Requests of Mistral's chat completions.

Signatures of the fake server prove the text they were issued for (`sign`), so that one changed byte is seen.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_ID = re.compile(r"[A-Za-z0-9]{9}\Z")
_IMAGE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,(.+)\Z")
_KNOWN = {
    "model", "messages", "temperature", "top_p", "max_tokens", "stream", "stop", "random_seed", "response_format",
    "tools", "tool_choice", "presence_penalty", "frequency_penalty", "n", "prediction", "parallel_tool_calls",
    "prompt_mode", "reasoning_effort", "safe_prompt", "metadata", "prompt_cache_key",
}  # fmt: skip
_AFTER = {
    None: {"system", "user"},
    "system": {"user"},
    "user": {"assistant"},
    "assistant": {"user", "tool"},
    "tool": {"assistant", "tool"},
}
_SIGNED = "fake-sig."


def sign(thinking: str) -> str:
    """The fake's signature of a thinking text."""
    return _SIGNED + hashlib.sha256(thinking.encode("utf-8", "surrogatepass")).hexdigest()


def violations(body: Any) -> list[str]:
    """Why the service would answer 400 or 422; empty for a valid request."""
    if not isinstance(body, dict):
        return ["the body is not an object"]
    found = [f"{key}: Extra inputs are not permitted" for key in body if key not in _KNOWN]
    if not isinstance(body.get("model"), str) or not body["model"]:
        found.append("model: Field required")
    names = [tool.get("function", {}).get("name") for tool in body.get("tools") or []]
    if len(set(names)) != len(names) or any(not _NAME.match(str(name)) for name in names):
        found.append("tools: a name is bad or occurs twice")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return [*found, "messages: Conversation must have at least one message"]
    for index, message in enumerate(messages):
        found += [f"messages[{index}]: {problem}" for problem in _message(message)]
    return found or _order(messages)


def _message(message: dict[str, Any]) -> list[str]:
    content = message.get("content")
    match message.get("role"):
        case "system":
            return _text(content)
        case "user":
            return _chunks(content, {"text", "image_url"}) if isinstance(content, list) else _text(content)
        case "tool":
            known = _NAME.match(str(message.get("name"))) and _ID.match(str(message.get("tool_call_id")))
            return [*([] if known else ["bad name or tool_call_id"]), *_text(content, empty=True)]
        case "assistant":
            return _assistant(message, content)
    return ["unknown role"]


def _assistant(message: dict[str, Any], content: Any) -> list[str]:
    if not content and not message.get("tool_calls"):
        return ["Assistant message must have either content or tool_calls, but not none."]
    found: list[str] = []
    if isinstance(content, list):
        found += _chunks(content, {"text", "thinking"})
    elif content is not None:
        found += _text(content)
    for call in message.get("tool_calls") or []:
        function = call.get("function", {})
        if not _ID.match(str(call.get("id"))):
            found.append(f"Tool call id was {call.get('id')!r} but must be a-z, A-Z, 0-9, with a length of 9.")
        if not _NAME.match(str(function.get("name"))):
            found.append(f"Function name was {function.get('name')!r} but must be a-z, A-Z, 0-9, or contain _ and -")
        found += _arguments(function.get("arguments"))
    return found


def _arguments(arguments: Any) -> list[str]:
    try:
        parsed = json.loads(arguments, parse_constant=lambda name: [name])
    except (ValueError, TypeError):
        return ["arguments are not JSON"]
    return [] if isinstance(parsed, dict) else ["arguments are no object"]


def _chunks(chunks: list[Any], allowed: set[str]) -> list[str]:
    if not chunks:
        return ["content must not be empty"]
    found: list[str] = []
    for chunk in chunks:
        kind = chunk.get("type")
        if kind not in allowed:
            found.append(f"a chunk of type {kind!r} is not permitted here")
        elif kind == "text":
            found += _text(chunk.get("text"), empty=True)
        elif kind == "image_url":
            found += _image(str(chunk.get("image_url")))
        else:
            thought = "".join(inner.get("text", "") for inner in chunk.get("thinking", []))
            signature = chunk.get("signature")
            if isinstance(signature, str) and signature.startswith(_SIGNED) and signature != sign(thought):
                found.append("invalid signature")
            found += _text(thought)
    return found


def _image(url: str) -> list[str]:
    matched = _IMAGE.match(url)
    try:
        return [] if matched and base64.b64decode(matched.group(2), validate=True) else ["image_url: not an image"]
    except ValueError:
        return ["image_url: invalid base64"]


def _text(text: Any, *, empty: bool = False) -> list[str]:
    if not isinstance(text, str) or (not text.strip() and not empty):
        return ["content must be a text that is not empty"]
    return ["content: lone surrogate"] if any("\ud800" <= char <= "\udfff" for char in text) else []


def _order(messages: list[dict[str, Any]]) -> list[str]:
    """The order of roles that the service checks; each call answered once, directly after."""
    found: list[str] = []
    previous: str | None = None
    calls: list[str] = []
    used: set[str] = set()
    for index, message in enumerate(messages):
        role = message["role"]
        if role not in _AFTER[previous]:
            found.append(f"messages[{index}]: Unexpected role '{role}' after role '{previous}'")
        if role == "tool":
            if message["tool_call_id"] not in calls:
                found.append(f"messages[{index}]: Unexpected tool call id in tool results")
            else:
                calls.remove(message["tool_call_id"])
        elif calls:
            found.append(f"messages[{index}]: Not the same number of function calls and responses")
        if role == "assistant":
            calls = [call["id"] for call in message.get("tool_calls") or []]
            if len(set(calls)) != len(calls) or used & set(calls):
                found.append(f"messages[{index}]: Duplicate tool call id")
            used |= set(calls)
        previous = role
    if calls or previous not in ("user", "tool"):
        found.append(f"Expected last role User or Tool for serving but got {previous}, open calls {calls}")
    return found
