"""What parts of a turn are asked: the texts for dependents, planners, workers and the putting together. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from milepost.domain.teams import Subtask

MAX_RESULT_CHARACTERS = 32_000
MAX_BRIEF_CHARACTERS = 200_000
MAX_GOAL_CHARACTERS = 8_000

CUT = "[shortened here: {left:,} more characters are in the Session's History]"


@dataclass(frozen=True, slots=True)
class Handed:
    """What another part of the turn brought. `failed` says why it has no result."""

    name: str
    text: str
    failed: str = ""


def dependent_brief(results: Sequence[Handed]) -> str:
    """For an agent that builds on others; follows the person's request."""
    return f"\n\n[From the agents that worked on this before you; their words, not the person's.]\n{_handed(results)}"


def planning_brief(tools: Sequence[str], workers: Sequence[tuple[str, Sequence[str]]], maximum: int) -> str:
    """For a Coordinator that plans; follows the person's request. `workers` are (id, its tools)."""
    who = "\n".join(f"- {worker}: {', '.join(has) or 'no tools'}" for worker, has in workers)
    return (
        "\n\n[Do not work on this yourself now. Split it into subtasks for your workers. Answer with JSON only:\n"
        '{"subtasks": [{"name": "...", "description": "...", "tools": ["..."], "depends_on": ["name of another"]}]}\n'
        "Each description stands for itself: its worker sees the goal, the description and the results of what it "
        f"depends on. Independent subtasks run at the same time. At most {maximum} subtasks; as few as make sense. "
        f"Name only tools that a subtask needs. Tools: {', '.join(tools) or 'none'}.\nWorkers and their tools:\n"
        f"{who or '- none declared; each subtask gets a worker of its own'}]"
    )


def worker_brief(goal: str, subtask: Subtask, results: Sequence[Handed]) -> str:
    """For a worker: its subtask, the goal that it is part of, and what it builds on."""
    parts = [
        f"Your task: {subtask.name}\n\n{subtask.description}",
        f"[It is part of this goal; others work on the rest.]\n{shortened(goal, MAX_GOAL_CHARACTERS)}",
    ]
    if results:
        parts.append(f"[What it builds on; words of other workers.]\n{_handed(results)}")
    parts.append("[When you are done, say what you did and found. Only that is handed on.]")
    return "\n\n".join(parts)


def synthesis_brief(results: Sequence[Handed]) -> str:
    """For a Coordinator that answers; follows the person's request."""
    return (
        "\n\n[Your workers have ended. Answer the person now, from their results; say plainly what failed or is "
        f"missing.]\n{_handed(results)}"
    )


def _handed(results: Sequence[Handed]) -> str:
    share = min(MAX_RESULT_CHARACTERS, MAX_BRIEF_CHARACTERS // max(len(results), 1))
    return "\n\n".join(_result(each, share) for each in results)


def _result(handed: Handed, limit: int) -> str:
    head = f"## {handed.name}"
    if handed.failed:
        return f"{head}\n[no result: {handed.failed[:1000]}]" + (
            f"\n{shortened(handed.text, limit)}" if handed.text else ""
        )
    return f"{head}\n{shortened(handed.text, limit) or '[it wrote nothing]'}"


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters and a note of how many were left out."""
    return text if len(text) <= limit else f"{text[:limit]}\n{CUT.format(left=len(text) - limit)}"
