"""What an agent is reminded of in a turn, and the texts a model gets of it. Pure.

The core blocks follow the system prompt as they were when this **base** was made; it stays the same, byte for byte, as
long as the turn that made it is part of the conversation. A block that changes since is told again with the request of
the first turn that sees it, together with what was recalled. Both are sent ever after as they were sent then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from milepost.domain.memory import MILLIONTHS, BlockSpec, MemorySettings, Recalled
from milepost.domain.memory_events import BlockSeen, MemoryRecalled

ITEM_CHARACTERS = 1000
"""Of a recalled text, what is put before a request; recall_search shows more."""

EDITING = " Edit it with core_memory_append, core_memory_replace and core_memory_set."
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class BlockNow:
    """A block with its value at a turn's start."""

    spec: BlockSpec
    seen: BlockSeen
    value: str


def shape_of(settings: MemorySettings, *, editable: bool) -> str:
    """SHA-256 of how an agent's blocks are declared: a base is only good for one shape."""
    specs = [
        [spec.label, spec.description, spec.limit, spec.shared, spec.read_only, spec.value] for spec in settings.blocks
    ]
    return hashlib.sha256(json.dumps([specs, editable]).encode("ascii")).hexdigest()


def changed_blocks(blocks: Sequence[BlockNow], before: MemoryRecalled) -> list[BlockNow]:
    """Those whose value is not the one that the agent has seen last."""
    known = {seen.label: seen.digest for seen in before.blocks}
    return [block for block in blocks if known.get(block.spec.label) != block.seen.digest]


def base_text(blocks: Sequence[BlockNow], *, editable: bool) -> str:
    """What follows the system prompt; empty for an agent without blocks."""
    if not blocks:
        return ""
    intro = "Your core memory: what you keep in mind in every turn."
    lines = [f"{intro}{EDITING if editable else ''}", *(_block(block, about=True) for block in blocks)]
    return "\n\n<core_memory>\n" + "\n".join(lines) + "\n</core_memory>"


def request_text(changed: Sequence[BlockNow], items: Sequence[Recalled]) -> str:
    """What precedes a request; empty for nothing."""
    parts = []
    if changed:
        told = "\n".join(_block(block, about=False) for block in changed)
        parts.append(f"<core_memory_changed>\n{told}\n</core_memory_changed>")
    if items:
        told = "\n".join(item_line(item, ITEM_CHARACTERS) for item in items)
        parts.append(f"<recalled>\nFrom earlier in this Session, for this request:\n{told}\n</recalled>")
    return "\n".join(parts)


def before_request(text: str, request: str) -> str:
    """A request with what precedes it."""
    return f"{text}\n\n{request}" if text else request


def _block(block: BlockNow, *, about: bool) -> str:
    spec = block.spec
    notes = [f'about="{spec.description}"'] if about and spec.description else []
    notes.append(f'characters="{len(block.value)}/{spec.limit}"')
    notes += [word for word, holds in (("shared", spec.shared), ("read_only", spec.read_only)) if holds]
    head = f"{spec.label} {' '.join(notes)}"
    return f"<{head}>\n{block.value}\n</{spec.label}>" if block.value else f"<{head}/>"


def item_line(item: Recalled, characters: int) -> str:
    """A recalled record with its reasons: where it comes from, when it was said, how well it fits."""
    where = f"turn {item.turn_number}, " if item.turn_number else ""
    who = f"{item.speaker}: " if item.speaker else ""
    text = item.text if len(item.text) <= characters else f"{item.text[:characters]}… [cut]"
    return f"- [{item.id}: {where}{day_and_time(item.at)}, score {score_text(item.score)}] {who}{text}"


def score_text(millionths: int) -> str:
    """A score from 0 to 1 with two decimals."""
    return f"{millionths / MILLIONTHS:.2f}"


def day_and_time(at: int) -> str:
    """A time in UTC, to the minute."""
    return f"{_EPOCH + timedelta(microseconds=at):%Y-%m-%d %H:%M}"
