"""From what a model wrote to a plan that can be carried out. Pure; never fails: what cannot be read is one subtask."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from milepost.domain.teams import MAX_DESCRIPTION_CHARACTERS, MAX_NAME_CHARACTERS, MAX_SUBTASKS, Subtask

MAX_TEXT = 1024 * 1024
MAX_WRAPPED = 3
"""How deep a list of subtasks may lie in objects around it."""
MAX_STARTS = 64
"""Places where a plan is looked for in prose."""

_REASONING = re.compile(r"<(think|thinking|reasoning)>.*?(</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_UNOPENED = re.compile(r"\A.*</(think|thinking|reasoning)>", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"</?(?:think|thinking|reasoning)>", re.IGNORECASE)
_START = re.compile(r"[\[{]")
_LISTS = ("subtasks", "tasks", "plan", "steps")

PLAN_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "subtasks": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "description": {"type": "string"},
                    "tools": {"type": "array", "items": {"type": "string"}},
                    "depends_on": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["name", "description", "tools", "depends_on"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["subtasks"],
    "additionalProperties": False,
}
"""JSON Schema of a plan; `depends_on` holds names of other subtasks."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Subtasks without cycles, each after those that it depends on can end; what was changed on the way."""

    subtasks: tuple[Subtask, ...]
    notes: tuple[str, ...] = ()


def one_task(goal: str, note: str) -> Plan:
    """The whole goal as one subtask."""
    return Plan((Subtask(1, "the whole goal", goal[:MAX_DESCRIPTION_CHARACTERS]),), (note,))


def read_plan(text: str, goal: str, tools: frozenset[str]) -> Plan:
    """The plan in a model's answer, also between reasoning tags, fences or prose. `tools` are those there are."""
    bare = _REASONING.sub(" ", text[:MAX_TEXT])
    # Some chat templates open the tag in the prompt: then only its end is in the answer, and drafts stand before it.
    values = chain(_values(_UNOPENED.sub("", bare)), _values(bare))
    items = next((found for value in values if (found := _items(value))), None)
    if items is None:
        # Reasoning that never ended may hold the plan; what was written last counts, since drafts come before it.
        drafts = [found for value in _values(_TAG.sub(" ", text[-MAX_TEXT:])) if (found := _items(value))]
        items = drafts[-1] if drafts else None
    if items is None:
        return one_task(goal, "The model's answer holds no plan; the goal is worked on as one subtask.")
    if len(items) > MAX_SUBTASKS:
        return one_task(
            goal, f"The plan has {len(items)} subtasks, over {MAX_SUBTASKS}; it is worked on as one subtask."
        )
    notes: list[str] = []
    named = _named(items, tools, notes)
    if not named:
        return one_task(goal, "The plan has no subtask with a description; the goal is worked on as one subtask.")
    return Plan(tuple(_without_cycles(_linked(items, named, notes), notes)), tuple(notes))


def _values(text: str) -> Iterator[Any]:
    """JSON values in a text, from the left, longest first; of a JSON string those in it."""
    decoder = json.JSONDecoder()
    if text.lstrip().startswith('"'):
        with contextlib.suppress(ValueError, RecursionError):
            quoted = decoder.raw_decode(text.lstrip())[0]
            text = quoted if isinstance(quoted, str) else text
    position, starts = 0, 0
    while starts < MAX_STARTS and (found := _START.search(text, position)):
        starts += 1
        try:
            value, position = decoder.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            position = found.end()
            continue
        yield value


def _items(value: Any) -> list[Mapping[str, Any]] | None:
    """The list of subtasks in a value, if it is one."""
    for _ in range(MAX_WRAPPED):
        if isinstance(value, dict):
            value = next((value[key] for key in _LISTS if isinstance(value.get(key), list | dict)), None)
    if not isinstance(value, list) or not value:
        return None
    items: list[Mapping[str, Any]] = [
        item for item in value if isinstance(item, dict) and _text(item, "description", "name")
    ]
    return items or None


def _text(item: Mapping[str, Any], *keys: str) -> str:
    return next((item[key].strip() for key in keys if isinstance(item.get(key), str) and item[key].strip()), "")


def _strings(item: Mapping[str, Any], key: str) -> list[str]:
    value = item.get(key)
    given = value if isinstance(value, list) else []
    return [str(each).strip() for each in given if isinstance(each, str | int) and not isinstance(each, bool)]


def _named(items: Sequence[Mapping[str, Any]], tools: frozenset[str], notes: list[str]) -> list[Subtask]:
    subtasks: list[Subtask] = []
    taken: set[str] = set()
    for number, item in enumerate(items, 1):
        description = _text(item, "description", "name")[:MAX_DESCRIPTION_CHARACTERS]
        name = " ".join((_text(item, "name") or f"subtask {number}").split())[:MAX_NAME_CHARACTERS]
        if name in taken:
            name = f"{name[: MAX_NAME_CHARACTERS - 6]} ({number})"
        taken.add(name)
        wanted = list(dict.fromkeys(_strings(item, "tools")))
        unknown = [tool for tool in wanted if tool not in tools]
        if unknown:
            notes.append(f"'{name}' asked for tools that there are not: {', '.join(unknown)[:200]}.")
        subtasks.append(Subtask(number, name, description, tuple(tool for tool in wanted if tool in tools)))
    return subtasks


def _linked(items: Sequence[Mapping[str, Any]], subtasks: list[Subtask], notes: list[str]) -> list[Subtask]:
    """With what each depends on, given by name or by number."""
    numbers = {str(subtask.number): subtask.number for subtask in subtasks}
    numbers |= {_text(item, "name"): subtask.number for item, subtask in zip(items, subtasks, strict=True)}
    numbers |= {subtask.name: subtask.number for subtask in subtasks}
    linked: list[Subtask] = []
    for item, subtask in zip(items, subtasks, strict=True):
        wanted = _strings(item, "depends_on")
        unknown = [name for name in wanted if name not in numbers]
        if unknown:
            notes.append(f"'{subtask.name}' depends on what is not in the plan: {', '.join(unknown)[:200]}.")
        found = dict.fromkeys(numbers[name] for name in wanted if name in numbers)
        linked.append(replace(subtask, depends_on=tuple(number for number in found if number != subtask.number)))
    return linked


def _without_cycles(subtasks: Sequence[Subtask], notes: list[str]) -> list[Subtask]:
    """Without the dependencies that close a circle, later subtasks giving way to earlier ones."""
    kept: dict[int, tuple[int, ...]] = {}
    result: list[Subtask] = []
    for subtask in subtasks:
        good = tuple(number for number in subtask.depends_on if not _reaches(number, subtask.number, kept))
        for number in subtask.depends_on:
            if number not in good:
                other = subtasks[number - 1].name
                notes.append(f"'{subtask.name}' and '{other}' depend on one another; '{subtask.name}' does not wait.")
        kept[subtask.number] = good
        result.append(replace(subtask, depends_on=good))
    return result


def _reaches(start: int, goal: int, edges: Mapping[int, tuple[int, ...]]) -> bool:
    seen: set[int] = set()
    stack = [start]
    while stack:
        number = stack.pop()
        if number == goal:
            return True
        if number not in seen:
            seen.add(number)
            stack.extend(edges.get(number, ()))
    return False
