"""Where text goes: results to standard output, progress and errors to standard error."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

from cli.failures import as_json
from milepost.domain.errors import MilepostError

if TYPE_CHECKING:
    from rich.console import Console

_BIDI = "\u202a-\u202e\u2066-\u2069"
"""Marks that change the order in which a terminal shows text: what is read is then not what is there."""

_UNPRINTABLE = re.compile(f"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff{_BIDI}]")
_ESCAPED = re.compile(f"[\x7f-\x9f\ud800-\udfff{_BIDI}]")


def printable(text: str) -> str:
    """Text of a model, tool or file without what would steer the terminal."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n").replace("\r", "\n"))


def short(text: str, limit: int = 100) -> str:
    """One line of at most `limit` characters."""
    line = " ".join(printable(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def counted(number: int, one: str) -> str:
    """A number with its noun: 1 call, 2 calls."""
    return f"{number} {one}" if number == 1 else f"{number} {one}s"


def _json(value: Any, indent: int | None = None) -> str:
    """JSON that a terminal shows and does not obey; every reader gets the same value."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    return _ESCAPED.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


class Output:
    """Standard output and error of one command."""

    def __init__(self, *, as_json: bool) -> None:
        self.json = as_json
        self._consoles: dict[str, Console] = {}

    def document(self, value: Any) -> None:
        """One JSON document on standard output."""
        self.write(_json(value, indent=2) + "\n")

    def record(self, value: Any) -> None:
        """One line of JSON lines on standard output."""
        self.write(_json(value) + "\n")

    def write(self, text: str) -> None:
        """Raw text on standard output, at once."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def line(self, text: str = "") -> None:
        """A line of a result for people; styles in rich markup."""
        self._console("stdout").print(printable(text), highlight=False, soft_wrap=True)

    def table(self, columns: list[str], rows: list[list[str]]) -> None:
        """A table for people; cells are taken as they are, each on one line.

        Nothing is cut or broken, so that ids can be copied and a pipe gets one line for each row; a terminal folds
        lines that are longer than it is wide.
        """
        from rich.cells import cell_len, set_cell_size
        from rich.text import Text

        lines = [[" ".join(printable(cell).split()) for cell in row] for row in rows]
        if any(columns):
            lines.insert(0, columns)
        widths = [max((cell_len(line[index]) for line in lines), default=0) for index in range(len(columns))]
        for number, line in enumerate(lines):
            padded = [set_cell_size(cell, width) for cell, width in zip(line, widths, strict=True)]
            style = "bold" if number == 0 and any(columns) else ""
            self._console("stdout").print(Text("  ".join(padded).rstrip(), style), highlight=False, soft_wrap=True)

    def note(self, text: str, style: str = "dim") -> None:
        """Progress for people on standard error; never part of the result."""
        self._console("stderr").print(printable(text), style=style, highlight=False, markup=False, soft_wrap=True)

    def aside(self, text: str) -> None:
        """A piece of what another program puts out, on standard error, as it comes."""
        sys.stderr.write(printable(text))
        sys.stderr.flush()

    def error(self, error: MilepostError) -> None:
        """A failure: one sentence, or one JSON object."""
        if self.json:
            sys.stderr.write(json.dumps(as_json(error), ensure_ascii=True) + "\n")
            sys.stderr.flush()
        else:
            self.note(f"Error: {error}", style="bold red")

    def _console(self, stream: str) -> Console:
        if stream not in self._consoles:
            from rich.console import Console

            self._consoles[stream] = Console(stderr=stream == "stderr")
        return self._consoles[stream]
