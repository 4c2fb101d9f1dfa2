"""Whether a service refused a request since it is longer than the model takes.

There is no common code. Where a service has one of its own it counts; the others say it in their message alone, and
these are the only words of a provider that anything depends on: a refusal that is not known here is a plain one.

| Service | How it says so |
|---|---|
| OpenAI, and what speaks like it | code `context_length_exceeded`, or "maximum context length" (vLLM, OpenRouter) |
| llama.cpp's server | type `exceed_context_size_error` |
| Anthropic | "prompt is too long", "input length and `max_tokens` exceed context limit"; type `request_too_large` |
| Gemini | "input token count ... exceeds the maximum number of tokens allowed" |
| Mistral | "too large for model with ... maximum context length" |
| Ollama | "exceeds the context length" or "context size" |
| xAI | "maximum prompt length" |
"""

from __future__ import annotations

import re
from typing import Any

CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "request_too_large"})

STATUSES = frozenset({400, 413, 422, 500})
"""Others mean something else whatever they say: a limit of tokens in a minute (429) is not one of the model."""

MAX_LOOKED_AT = 20_000

_WORDS = re.compile(
    r"maximum (?:context|prompt) length|reduce the length of the (?:messages|prompt|input)"
    r"|(?:prompt|input|request) is too long|exceeds? (?:the |your )?(?:model's )?context (?:limit|length|window)"
    r"|exceeds the (?:available |maximum )?context (?:size|length|window)"
    r"|token count[^.]{0,40} exceeds the maximum|too large for model with|context the overflows",
    re.IGNORECASE,
)


def too_long(status: int | None, body: Any, said: str) -> bool:
    """Whether a refusal with this HTTP status (None inside a stream), JSON body and message says so."""
    if status is not None and status not in STATUSES:
        return False
    return status == 413 or not CODES.isdisjoint(_codes(body)) or _WORDS.search(said[:MAX_LOOKED_AT]) is not None


def _codes(body: Any) -> set[str]:
    """Texts under `code` and `type` of the error in a body, wherever the service puts it."""
    found: set[str] = set()
    for _ in range(4):
        if isinstance(body, list) and len(body) == 1:
            body = body[0]
        if not isinstance(body, dict):
            break
        found.update(value for key in ("code", "type") if isinstance(value := body.get(key), str))
        body = body.get("error")
    return found
