"""Recorded outputs of tool calls, as a model names and finds them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OutputRef:
    """An agent's tool call by its place in the Session: turn number, model round, call; all count from 1."""

    turn: int
    round: int
    call: int

    def __str__(self) -> str:
        return f"{self.turn}.{self.round}.{self.call}"


@dataclass(frozen=True, slots=True)
class Output:
    """The whole recorded text of a call."""

    ref: OutputRef
    tool: str
    text: str


@dataclass(frozen=True, slots=True)
class OutputMatch:
    """A line with the text that was looked for. `offset` is where the shown piece begins in the output."""

    ref: OutputRef
    tool: str
    offset: int
    line: str


@dataclass(frozen=True, slots=True)
class OutputMatches:
    """Matches, newest call first. `cut`: there are more; `unsearched`: turns before this number were not looked at."""

    matches: tuple[OutputMatch, ...]
    calls: int
    cut: bool = False
    unsearched: int = 0
