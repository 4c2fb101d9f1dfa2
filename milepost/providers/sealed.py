"""What a provider wants back unchanged: kept beside the conversation's own texts, used whole or not at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from milepost.domain.content import Content
from milepost.domain.messages import (
    AssistantMessage,
    AssistantPart,
    ProviderState,
    ReasoningPart,
    TextPart,
    ToolCallPart,
)
from milepost.providers.wire import wire_text


@dataclass(frozen=True, slots=True)
class Block:
    """One piece of an answer: the part that the conversation holds, and what the provider put beside it.

    `extra` holds JSON values (a signature, an id). A block without a part is for the provider alone (redacted
    thinking).
    """

    part: AssistantPart | None
    extra: dict[str, Any] = field(default_factory=dict)


MIN_REPEATED = 16
"""Characters of a signature from which on a longer piece that begins with them is taken as the whole one."""


def joined_signature(before: str, piece: str) -> str:
    """A signature and what comes of it next: one more piece, or all of it once more."""
    again = len(before) >= MIN_REPEATED and piece.startswith(before)
    return piece if again else before + piece


def parts_of(blocks: Iterable[Block]) -> tuple[AssistantPart, ...]:
    """What the conversation holds of an answer."""
    return tuple(block.part for block in blocks if block.part is not None)


def seal(blocks: Sequence[Block], wire: str, provider: str, model: str) -> ProviderState | None:
    """State to keep with an answer, or None when its parts alone say all there is.

    The texts stay in the conversation; the state has the digest of both. `wire` names the wire format.
    """
    if not any(block.extra for block in blocks):
        return None
    kept = [[_kind(block.part), block.extra] for block in blocks]
    data = {"wire": wire, "blocks": kept, "digest": _digest(wire, blocks)}
    return ProviderState(provider, model, Content(json.dumps(data, sort_keys=True, separators=(",", ":"))))


def unseal(message: AssistantMessage, wire: str, provider: str, model: str) -> list[Block] | None:
    """The blocks as they were received, or None: no state, another route or format, or anything that changed since."""
    state = message.provider_state
    if state is None or (state.provider, state.model) != (provider, model):
        return None
    try:
        data = json.loads(state.data.text)
        blocks = _rejoined(message.parts, data["blocks"])
        same = data["wire"] == wire and data["digest"] == _digest(wire, blocks)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    # What cannot be sent as it is would be sent changed.
    sendable = all(wire_text(text) == text for block in blocks for text in _texts(block))
    return blocks if same and sendable else None


def _texts(block: Block) -> list[str]:
    """The texts that a signature may cover."""
    held = [block.part.text] if isinstance(block.part, ReasoningPart | TextPart) else []
    return [*held, *(value for value in block.extra.values() if isinstance(value, str))]


def _rejoined(parts: Sequence[AssistantPart], kept: Any) -> list[Block]:
    remaining = iter(parts)
    blocks = [Block(next(remaining, None) if kind else None, dict(extra)) for kind, extra in kept]
    if next(remaining, None) is not None or any(
        _kind(block.part) != kind for block, (kind, _) in zip(blocks, kept, strict=True)
    ):
        raise ValueError("the state is of another message")
    return blocks


def _kind(part: AssistantPart | None) -> str:
    return "" if part is None else part.kind


def _digest(wire: str, blocks: Sequence[Block]) -> str:
    held = [wire, *([_kind(block.part), _held(block.part), block.extra] for block in blocks)]
    return hashlib.sha256(json.dumps(held, sort_keys=True).encode("ascii")).hexdigest()


def _held(part: AssistantPart | None) -> list[str]:
    match part:
        case TextPart() | ReasoningPart():
            return [part.text]
        case ToolCallPart():
            return [part.call_id, part.tool, part.arguments.text]
        case None:
            return []
