"""Running the extraction of one file in a process of its own.

Files come from anywhere, and their parsers are large. The child has no secrets in its environment, limits its own
memory and processor time before it reads anything, and is killed with all that it started when its time is over.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterable
from dataclasses import dataclass
from typing import Any

from milepost.domain.attachments import EXTRACTION_MEMORY, EXTRACTION_SECONDS, MAX_PAGES, AttachmentState
from milepost.extraction.kinds import UNKNOWN
from milepost.ports.extraction import Extracted

PARALLEL = 2
MAX_ANSWER_BYTES = 16 * 1024**2
_PATHS = "/usr/local/bin:/usr/bin:/bin:/opt/homebrew/bin"
_FINAL = {AttachmentState.READY, AttachmentState.PARTIAL, AttachmentState.FAILED, AttachmentState.UNSUPPORTED}
_TIME_SIGNALS = (-signal.SIGXCPU, -signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Limits:
    """`seconds` of one file, in all; `memory` in bytes; `pages` of a PDF document that are read.

    `ocr`: read text from images, in `languages` as tesseract names them, where it is installed.
    """

    seconds: int = EXTRACTION_SECONDS
    memory: int = EXTRACTION_MEMORY
    pages: int = MAX_PAGES
    ocr: bool = True
    languages: str = "eng"


class ProcessExtractor:
    """`ports.extraction.Extractor`. At most two files are read at a time; others wait."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._places = asyncio.Semaphore(PARALLEL)

    async def extract(self, pieces: AsyncIterable[bytes], name: str) -> Extracted:
        async with self._places:
            try:
                return await self._run(pieces, name)
            except OSError as error:
                return _failed(UNKNOWN, f"No process could be started to read it: {error.strerror or error}.")

    async def _run(self, pieces: AsyncIterable[bytes], name: str) -> Extracted:
        process = await self._start(name)
        out = bytearray()
        timed_out = False
        try:
            async with asyncio.timeout(self._limits.seconds):
                await asyncio.gather(_feed(process, pieces), _listen(process, out))
                await process.wait()
        except TimeoutError:
            timed_out = True
        finally:
            # With whatever it started.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        kind, found = _parsed(bytes(out))
        if found is not None and process.returncode == 0:
            return found
        if timed_out or process.returncode in _TIME_SIGNALS:
            return _failed(kind, f"Reading it takes longer than the limit of {self._limits.seconds} s.")
        mib = self._limits.memory // 1024**2
        return _failed(kind, f"It is made to break readers, or needs more memory than the limit of {mib} MiB.")

    async def _start(self, name: str) -> asyncio.subprocess.Process:
        limits = self._limits
        program = shutil.which("tesseract", path=_PATHS) if limits.ocr else None
        told = {
            "seconds": limits.seconds,
            "memory": limits.memory,
            "pages": limits.pages,
            "ocr": program,
            "languages": limits.languages,
        }
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-m",
            "milepost.extraction.child",
            json.dumps(told),
            # Only its end is of use: the name tells one kind of plain text from another.
            name.encode("ascii", "replace").decode("ascii")[-40:].replace("\0", ""),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd="/",
            env={"PATH": _PATHS, "LC_ALL": "C.UTF-8", "OMP_THREAD_LIMIT": "1"},
            start_new_session=True,
        )


async def _feed(process: asyncio.subprocess.Process, pieces: AsyncIterable[bytes]) -> None:
    assert process.stdin is not None  # noqa: S101 - a pipe was asked for
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        async for piece in pieces:
            process.stdin.write(piece)
            await process.stdin.drain()
        process.stdin.close()


async def _listen(process: asyncio.subprocess.Process, out: bytearray) -> None:
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    while (piece := await process.stdout.read(256 * 1024)) and len(out) <= MAX_ANSWER_BYTES:
        out += piece


def _parsed(out: bytes) -> tuple[str, Extracted | None]:
    """The media type, if the child came so far, and the answer if it is one."""
    first, _, rest = out.partition(b"\n")
    kind = str(_object(first).get("media_type") or UNKNOWN)[:100]
    value = _object(rest)
    try:
        state = AttachmentState(value["state"])
        text, note = str(value["text"]), value["note"]
        image = base64.b64decode(value["image"], validate=True) if "image" in value else None
    except (ValueError, KeyError, TypeError, binascii.Error):
        return kind, None
    note = None if note is None else str(note)
    found = Extracted(state, kind, text, note, image, str(value.get("image_type", "")))
    return kind, found if state in _FINAL else None


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _failed(kind: str, note: str) -> Extracted:
    return Extracted(AttachmentState.FAILED, kind, note=note)
