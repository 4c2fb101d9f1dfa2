"""Values of other types than the protocol has, made harmless before the library reads an event.

The client takes whatever JSON a server sends. What is beside the answer is dropped, what has one sensible reading is
read so, and only an answer that nobody can read is refused: it has been paid for.
"""

from __future__ import annotations

import json
from typing import Any, cast

from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel

from milepost.providers.faults import malformed

LATEST_SECOND = 32_503_680_000
"""The year 3000."""

USAGE_DROPPED = "The provider reported its token usage in an unknown form."
TEXT_DROPPED = "A piece of the answer's text was no text and was left out."


def tidy(chunk: ChatCompletionChunk, provider: str) -> list[str]:
    """Repair an event in place; return what was dropped that mattered.

    Raises:
        ModelAnswerMalformed: a part of the answer is of a type that cannot be read.
        TypeError: this is no event of a chat completion at all.
    """
    # The types say what the protocol promises; here they are in question.
    event = cast(Any, chunk)
    notes: list[str] = []
    for name in ("id", "model"):
        if not isinstance(getattr(event, name, None), str):
            setattr(event, name, "")
    created = event.created
    if not isinstance(created, int | float) or not 0 <= created <= LATEST_SECOND:
        event.created = 0
    if not isinstance(event.service_tier, str):
        event.service_tier = None
    # Not asked for, not kept.
    event.moderation = None
    if event.usage is not None and not isinstance(event.usage, BaseModel):
        event.usage = None
        notes.append(USAGE_DROPPED)
    if event.choices is not None and not isinstance(event.choices, list):
        raise TypeError(f"the choices of an event are a JSON {type(event.choices).__name__}, not a list")
    if event.choices:
        _tidy_choice(event.choices[0], provider, notes)
    return notes


def _tidy_choice(choice: Any, provider: str, notes: list[str]) -> None:
    _require_object(choice, "a choice", provider)
    choice.logprobs = None
    finish = choice.finish_reason
    if finish is not None and not isinstance(finish, str):
        choice.finish_reason = json.dumps(finish, default=str) if finish else None
    delta = choice.delta
    if delta is None:
        return
    _require_object(delta, "a delta", provider)
    if not isinstance(delta.refusal, str):
        delta.refusal = None
    if delta.content is not None and not isinstance(delta.content, str | list):
        delta.content = None
        notes.append(TEXT_DROPPED)
    if delta.tool_calls is not None and not isinstance(delta.tool_calls, list):
        raise malformed(provider, delta.tool_calls, "the tool calls", "a list")
    for piece in delta.tool_calls or []:
        _tidy_call(piece, provider)


def _tidy_call(piece: Any, provider: str) -> None:
    _require_object(piece, "a tool call", provider)
    if not isinstance(piece.id, str):
        piece.id = None  # the assembler makes one
    if piece.function is not None:
        _require_object(piece.function, "the function of a tool call", provider)
        piece.function.name = _name(piece.function.name, provider)


def _name(value: object, provider: str) -> str | None:
    """A number stands for its digits: the model can be told that there is no such tool."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18:
        return str(value)
    raise malformed(provider, value, "the name of a tool", "a text")


def _require_object(value: object, what: str, provider: str) -> None:
    if not isinstance(value, BaseModel):
        raise malformed(provider, value, what, "an object")
