"""LoCoMo (Maharana et al. 2024): conversations over months, and questions with the turns that answer them.

The data is not part of this repository (CC BY-NC 4.0): give the path of `locomo10.json`, or of a part of it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from milepost.domain.semantic import MemoryEntry

_EVIDENCE = re.compile(r"D:?(\d+):(\d+)")
CATEGORIES = {1: "several turns", 2: "time", 3: "open", 4: "one turn", 5: "adversarial"}


@dataclass(frozen=True)
class Question:
    text: str
    category: int
    evidence: frozenset[str]


@dataclass(frozen=True)
class Conversation:
    name: str
    entries: list[MemoryEntry]
    questions: list[Question]


def load(path: Path) -> list[Conversation]:
    """The conversations; of evidence what names a turn that there is. Turns of a session are a minute apart."""
    return [_conversation(item) for item in json.loads(path.read_text("utf-8"))]


def _conversation(item: dict[str, object]) -> Conversation:
    spoken: dict[str, object] = item["conversation"]  # type: ignore[assignment]
    entries: list[MemoryEntry] = []
    for number in range(1, 100):
        turns = spoken.get(f"session_{number}")
        if isinstance(turns, list):
            said = f"{spoken[f'session_{number}_date_time']} +0000"
            start = datetime.strptime(said, "%I:%M %p on %d %B, %Y %z")
            for place, turn in enumerate(turns):
                at = start + timedelta(minutes=place)
                entries.append(_entry(turn, at, len(entries) + 1))
    known = {entry.id for entry in entries}
    questions = []
    for asked in item["qa"]:  # type: ignore[attr-defined]
        named = {f"D{int(a)}:{int(b)}" for text in asked["evidence"] for a, b in _EVIDENCE.findall(text)}
        if named & known:
            questions.append(Question(asked["question"], asked["category"], frozenset(named & known)))
    return Conversation(str(item["sample_id"]), entries, questions)


def _entry(turn: dict[str, str], at: datetime, number: int) -> MemoryEntry:
    caption = turn.get("blip_caption", "")
    return MemoryEntry(
        id=turn["dia_id"],
        text=turn["text"],
        kind="request",
        at=int(at.timestamp()) * 1_000_000,
        turn_id=f"turn_{number}",
        turn_number=number,
        speaker=turn["speaker"],
        captions=(caption,) if caption else (),
    )
