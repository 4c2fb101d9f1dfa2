"""Requests of Ollama's chat, by the types that its server decodes them into."""

from __future__ import annotations

import base64
from typing import Any

_KNOWN = {"model", "messages", "tools", "stream", "format", "options", "keep_alive", "think", "logprobs"}
_OPTIONS = {
    "temperature": float, "top_p": float, "top_k": int, "min_p": float, "num_predict": int, "num_ctx": int, "seed": int,
    "stop": list, "repeat_penalty": float, "num_gpu": int, "num_thread": int,
}  # fmt: skip


def violations(body: Any) -> list[str]:
    """Why the server would answer 400; empty for a valid request."""
    if not isinstance(body, dict):
        return ["the body is not an object"]
    found = [f"{key}: unknown" for key in body if key not in _KNOWN]
    if not isinstance(body.get("model"), str) or not body["model"]:
        found.append("model is required")
    for name, value in (body.get("options") or {}).items():
        wanted = _OPTIONS.get(name)
        if wanted is None or not isinstance(value, (int, float) if wanted is float else wanted):
            found.append(f"option {name!r} must be of type {wanted}")
    if not isinstance(body.get("think", True), bool) and body["think"] not in ("low", "medium", "high", "max"):
        found.append("think must be a boolean or a level")
    if body.get("format", "json") != "json" and not isinstance(body["format"], dict):
        found.append("format must be json or a schema")
    for tool in body.get("tools") or []:
        function = tool.get("function") or {}
        if tool.get("type") != "function" or not function.get("name") or not isinstance(function["parameters"], dict):
            found.append("tools: bad function")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return [*found, "messages: at least one is required"]
    for at, message in enumerate(messages):
        found += [f"messages[{at}]: {problem}" for problem in _message(message)]
    return found or _order(messages)


def _message(message: Any) -> list[str]:
    if not isinstance(message, dict) or message.get("role") not in ("system", "user", "assistant", "tool"):
        return ["unknown role"]
    found = [] if isinstance(message.get("content"), str) else ["content must be a text"]
    if any("\ud800" <= char <= "\udfff" for char in str(message)):
        found.append("a lone surrogate")
    for image in message.get("images") or []:
        try:
            base64.b64decode(image, validate=True)
        except (ValueError, TypeError):
            found.append("images: illegal base64 data")
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        if not function.get("name") or not isinstance(function.get("arguments"), dict):
            found.append("tool_calls: arguments must be an object")
    if message["role"] == "tool" and not message.get("tool_name"):
        found.append("tool_name is missing")
    return found


def _order(messages: list[dict[str, Any]]) -> list[str]:
    """System first; as many results after an answer as it has calls, in their order."""
    found: list[str] = []
    waiting: list[str] = []
    for at, message in enumerate(messages):
        role = message["role"]
        if role == "system" and at:
            found.append(f"messages[{at}]: system is not first")
        if role == "tool":
            if not waiting or waiting.pop(0) != message["tool_name"]:
                found.append(f"messages[{at}]: answers no open call")
            continue
        if waiting:
            found.append(f"messages[{at}]: calls of {waiting} before it have no result")
        waiting = [call["function"]["name"] for call in message.get("tool_calls") or []]
    return found + ([f"the last calls of {waiting} have no result"] if waiting else [])
