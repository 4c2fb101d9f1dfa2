"""How many tokens a text is likely to be, without any vocabulary and without a network. Pure.

The weights are a rounded least-squares fit to OpenAI's o200k vocabulary over English prose, source code, JSON, Chinese,
Japanese, Korean, Russian and German (`python -m benchmarks.tokens` repeats the measurement). What another model's
vocabulary makes of the same texts is learnt per model from the usage that its provider reports (`learnt`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from milepost.domain.messages import AssistantMessage, Message, ReasoningPart, TextPart, ToolMessage, UserMessage
from milepost.domain.tools import ToolDefinition

_LETTERS = bytes(range(ord("A"), ord("Z") + 1)) + bytes(range(ord("a"), ord("z") + 1))
_DIGITS = b"0123456789"

PER_LETTER, PER_DIGIT, PER_SIGN, PER_LINE, PER_WORD = 0.186, 1.1, 0.51, 0.94, 0.237
PER_TWO_BYTE, PER_THREE_BYTE, PER_FOUR_BYTE = 0.265, 0.67, 2.0
"""By the length of a character in UTF-8: Latin with marks, Greek, Cyrillic, Arabic; CJK and Indic scripts; emoji."""
PER_MESSAGE = 4.0
PER_TOOL = 8.0
PER_IMAGE = 1_000.0

FACTOR_MIN, FACTOR_MAX = 0.5, 3.0
LEARN_RATE = 0.2
LEARN_MIN_TOKENS = 50
"""A request with fewer tokens says more about its frame than about the vocabulary."""
SAMPLES_MAX = 1_000_000
MARGIN = 1.1
"""Of a reservation over the estimate."""


def text_tokens(text: str) -> float:
    """The estimated tokens of a text."""
    if not text:
        return 0.0
    ascii_ = text.encode("ascii", "ignore")
    plain = len(ascii_)
    letters = plain - len(ascii_.translate(None, _LETTERS))
    digits = plain - len(ascii_.translate(None, _DIGITS))
    lines, spaces = ascii_.count(b"\n"), ascii_.count(b" ")
    signs = plain - letters - digits - lines - spaces
    found = PER_LETTER * letters + PER_DIGIT * digits + PER_SIGN * signs + PER_LINE * lines
    found += PER_WORD * len(ascii_.split())
    if plain == len(text):
        return found
    # Characters by length in UTF-8, from two lengths that C code counts.
    utf8 = len(text.encode("utf-8", "surrogatepass"))
    four = len(text.encode("utf-16-le", "surrogatepass")) // 2 - len(text)
    others = len(text) - plain - four
    three = utf8 - plain - 4 * four - 2 * others
    return found + PER_TWO_BYTE * (others - three) + PER_THREE_BYTE * three + PER_FOUR_BYTE * four


@dataclass(frozen=True, slots=True)
class Item:
    """A part of a request with its estimated tokens."""

    name: str
    tokens: float


def request_items(
    system_prompt: str,
    messages: Iterable[Message],
    tools: Iterable[ToolDefinition],
    count: Callable[[str], float] = text_tokens,
) -> list[Item]:
    """The parts of a request, in order: prompt, tool definitions, messages (counted from 1).

    `count` gives the tokens of a text; what frames them on the wire is estimated in any case.
    """
    items = [Item("the system prompt", PER_MESSAGE + count(system_prompt))]
    for tool in tools:
        schema = json.dumps(tool.parameters, ensure_ascii=False)
        items.append(Item(f"the definition of tool {tool.name}", PER_TOOL + count(tool.description) + count(schema)))
    for number, message in enumerate(messages, 1):
        items.append(Item(_name(number, message), PER_MESSAGE + _message(message, count)))
    return items


def _name(number: int, message: Message) -> str:
    match message:
        case UserMessage():
            return f"message {number} (request)"
        case AssistantMessage():
            return f"message {number} (answer)"
        case ToolMessage():
            return f"message {number} (result of {message.tool[:64]})"


def _message(message: Message, count: Callable[[str], float]) -> float:
    match message:
        case UserMessage():
            return count(message.before) + count(message.text.text) + PER_IMAGE * len(message.images)
        case ToolMessage():
            return count(message.text.text)
        case AssistantMessage():
            texts = [part.text for part in message.parts if isinstance(part, TextPart | ReasoningPart)]
            for call in message.calls:
                texts += [call.tool, call.arguments.text]
            return sum(count(text) for text in texts)


def total(items: Iterable[Item], factor: float = 1.0) -> int:
    """Whole tokens of a request."""
    return math.ceil(sum(item.tokens for item in items) * factor)


def learnt(factor: float, samples: int, estimate: float, reported: int) -> tuple[float, int]:
    """(factor, samples) after a call of `reported` input tokens that was estimated at `estimate` with factor 1.

    The mean of the first calls, then an exponential average, so that it follows a model that changes; one odd report
    moves it by a fifth at most.
    """
    if estimate < LEARN_MIN_TOKENS or reported < LEARN_MIN_TOKENS:
        return factor, samples
    seen = min(max(reported / estimate, FACTOR_MIN), FACTOR_MAX)
    rate = max(1 / (samples + 1), LEARN_RATE)
    return factor + (seen - factor) * rate, min(samples + 1, SAMPLES_MAX)
