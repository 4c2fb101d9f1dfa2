"""Reading the lines of a lossless export; docs/history.md describes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from milepost.services.exporting.lossless import FORMAT, LATER_SECTIONS, SECTIONS, VERSION
from milepost.services.importing.course import check_record
from milepost.services.importing.plan import BadLine

MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_WHOLE_BYTES = 64 * 1024 * 1024
"""Of a document that is not in lines any more (a tool has set it anew), which must be read as a whole."""

_START = b'{"format":'


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a section; `line` is None where the document has no lines."""

    section: str
    line: int | None
    value: dict[str, Any]


class Document:
    """An export that lies in a file. It can be read several times; nothing of it is kept."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._whole: dict[str, Any] | None = None
        self.head = self._read_head()

    def records(self, *wanted: str) -> Iterator[Record]:
        """The records of these sections in the document's order, and `end` last.

        Raises:
            BadLine: the document is not of this format, or breaks off.
        """
        source = self._lines() if self._whole is None else self._parts(self._whole)
        for record in source:
            if record.section in wanted or record.section == "end":
                yield record

    def _read_head(self) -> dict[str, Any]:
        head: Any
        self._file.seek(0)
        lines = [self._file.readline(MAX_LINE_BYTES) for _ in range(3)]
        try:
            head = json.loads(b"".join(lines).rstrip().rstrip(b",") + b"}")
        except ValueError:
            head = None
        if not (isinstance(head, dict) and set(head) == {"format", "version", "source", "session"}):
            self._whole = head = self._read_whole()
        return _checked_head(head)

    def _read_whole(self) -> dict[str, Any]:
        self._file.seek(0)
        data = self._file.read(MAX_WHOLE_BYTES + 1)
        if len(data) > MAX_WHOLE_BYTES:
            raise BadLine(1, f"The document is not in the lines of an export and over {MAX_WHOLE_BYTES} bytes.")
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise BadLine(getattr(error, "lineno", None), "The document is no JSON, or breaks off.") from error
        if not isinstance(value, dict):
            raise BadLine(1, "The document is no JSON object.")
        return value

    def _parts(self, whole: dict[str, Any]) -> Iterator[Record]:
        for section in (*SECTIONS, "end"):
            if section not in whole and section in LATER_SECTIONS:
                continue
            if section not in whole:
                raise BadLine(None, f"The document has no '{section}'.")
            values = [whole[section]] if section == "end" else whole[section]
            if not isinstance(values, list):
                raise BadLine(None, f"'{section}' is no list.")
            for value in values:
                yield Record(section, None, _object(value, None))

    def _lines(self) -> Iterator[Record]:
        self._file.seek(0)
        number, at, inside = 0, 0, False
        while line := self._file.readline(MAX_LINE_BYTES):
            number += 1
            if not line.endswith(b"\n"):
                raise BadLine(number, "The document breaks off, or a line is too long.")
            if number <= 3:
                continue
            text = line[:-1].removesuffix(b",")
            if inside:
                if text == b"]":
                    inside, at = False, at + 1
                else:
                    yield Record(SECTIONS[at], number, _parsed(text, number))
            elif at == len(SECTIONS):
                if not (text.startswith(b'"end":') and text.endswith(b"}")):
                    raise BadLine(number, "Here '\"end\":' is expected.")
                yield Record("end", number, _parsed(text[len(b'"end":') : -1], number))
                if self._file.read(1):
                    raise BadLine(number + 1, "Something follows the document's end.")
                return
            else:
                if SECTIONS[at] in LATER_SECTIONS and not text.startswith(b'"%s":' % SECTIONS[at].encode()):
                    at += 1
                opening = b'"%s":[' % SECTIONS[at].encode()
                if text not in (opening, opening + b"]"):
                    raise BadLine(number, f"Here '\"{SECTIONS[at]}\":[' is expected.")
                inside = text == opening
                at += 0 if inside else 1
        raise BadLine(number, "The document breaks off before its end.")


def is_export(file: BinaryIO) -> bool:
    """Whether a file looks like a lossless export, and not like JSON lines."""
    file.seek(0)
    begin = file.read(4096).lstrip()
    if begin.startswith(_START):
        return True
    line = begin.split(b"\n", 1)[0].strip()
    return line == b"{" or b'"format"' in line


def _checked_head(head: dict[str, Any]) -> dict[str, Any]:
    if head.get("format") != FORMAT:
        raise BadLine(1, f"The document's format is not '{FORMAT}'.")
    version = head.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise BadLine(1, f"The document has version {version!r}; this release reads versions up to {VERSION}.")
    for line, name in ((2, "source"), (3, "session")):
        if not isinstance(head.get(name), dict):
            raise BadLine(line, f"'{name}' is missing or no object.")
        check_record(head[name], line)
    return head


def _parsed(text: bytes, line: int) -> dict[str, Any]:
    try:
        return _object(json.loads(text), line)
    except (ValueError, RecursionError) as error:
        raise BadLine(line, f"This is no JSON ({error}).") from error


def _object(value: Any, line: int | None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadLine(line, "A record must be a JSON object.")
    check_record(value, line)
    return value
