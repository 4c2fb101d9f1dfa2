"""Requests of OpenRouter: chat completions with fields of its own.

Signatures of the fake server prove the text they were issued for (`sign`), so that one changed byte is seen.
"""

from __future__ import annotations

import hashlib
from typing import Any

from tests.support.validators import openai_chat

_ROUTING = {
    "order", "only", "ignore", "allow_fallbacks", "require_parameters", "data_collection", "quantizations", "sort",
    "max_price", "zdr",
}  # fmt: skip
_EFFORTS = {"none", "minimal", "low", "medium", "high", "xhigh"}
_SIGNED = "fake-or."


def sign(text: str) -> str:
    """The fake's signature of a reasoning text."""
    return _SIGNED + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def violations(body: Any) -> list[str]:
    """Why the service would answer 400; empty for a valid request."""
    found = openai_chat.violations(body)
    if not isinstance(body, dict):
        return found
    found += [f"provider.{key}: unknown" for key in body.get("provider") or {} if key not in _ROUTING]
    if (body.get("usage") or {"include": True}) not in ({"include": True}, {"include": False}):
        found.append("usage: only `include` is known")
    reasoning = body.get("reasoning") or {}
    if reasoning.get("effort", "low") not in _EFFORTS or ("effort" in reasoning and "max_tokens" in reasoning):
        found.append("reasoning: one of effort and max_tokens")
    if reasoning and "reasoning_effort" in body:
        found.append("reasoning_effort: cannot be sent beside reasoning")
    if not all(isinstance(model, str) and model for model in body.get("models") or []):
        found.append("models: names are wanted")
    for at, message in enumerate(body.get("messages") or []):
        found += [f"messages[{at}]: {problem}" for problem in _details(message)]
    return found


def _details(message: Any) -> list[str]:
    details = message.get("reasoning_details") if isinstance(message, dict) else None
    if details is None:
        return []
    if message.get("role") != "assistant" or not isinstance(details, list) or not details:
        return ["reasoning_details: a list in an answer is wanted"]
    found = []
    for detail in details:
        match detail.get("type"):
            case "reasoning.text":
                signature = detail.get("signature")
                if str(signature).startswith(_SIGNED) and signature != sign(str(detail.get("text"))):
                    found.append("reasoning_details: Invalid `signature`")
            case "reasoning.encrypted":
                if not isinstance(detail.get("data"), str):
                    found.append("reasoning_details: data is missing")
            case "reasoning.summary":
                if not isinstance(detail.get("summary"), str):
                    found.append("reasoning_details: summary is missing")
            case kind:
                found.append(f"reasoning_details: unknown type {kind!r}")
    return found
