"""Text out of one file, whatever its kind. Runs in the limited process only."""

from __future__ import annotations

import io
import re
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from milepost.domain.attachments import MAX_TEXT_BYTES, AttachmentState
from milepost.extraction.images import read_image, recognized
from milepost.extraction.kinds import DOCX, OLE, PDF, UNKNOWN, XLSX, decoded
from milepost.ports.extraction import Extracted

MAX_UNPACKED_BYTES = 256 * 1024**2
MAX_PACKED_FILES = 20_000
SOFT_SHARE = 0.7
"""Of the time, after which what was read so far is the result."""

_BLANK = re.compile(r"\n[ \t]*\n(?:[ \t]*\n)+")
_SURROGATE = re.compile("[\ud800-\udfff]")
Pieces = Iterator[str]


class Unreadable(Exception):
    """A file that cannot be read; the text is for a person."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Limits, when the process began (`time.monotonic`), and the program that reads text from images, if any."""

    seconds: float
    began: float
    pages: int
    ocr: str | None
    languages: str


def read(data: bytes, kind: str, reading: Reading) -> Extracted:
    """The file's text up to the limits. Raises MemoryError."""
    if kind.startswith("image/"):
        return _image(data, kind, reading)
    reader = _READERS.get(kind, _plain if kind.startswith("text/") else None)
    if reader is None:
        return Extracted(AttachmentState.UNSUPPORTED, kind, note=_UNREAD.get(kind, _UNREAD[UNKNOWN]))
    notes: list[str] = []
    try:
        text, cut = _bounded(reader(data, reading, notes), reading)
    except Unreadable as error:
        return Extracted(AttachmentState.FAILED, kind, note=str(error))
    except MemoryError:
        raise
    except Exception as error:  # whatever parsers raise for broken files
        return Extracted(AttachmentState.FAILED, kind, note=_problem(error))
    if cut is not None:
        return Extracted(AttachmentState.PARTIAL, kind, text, " ".join([cut, *notes]))
    if not text.strip():
        notes.append("It has no text (it may be a scan).")
    partial = any(note.startswith("Only") for note in notes)
    state = AttachmentState.PARTIAL if partial else AttachmentState.READY
    return Extracted(state, kind, text, " ".join(notes) or None)


def _problem(error: Exception) -> str:
    name = type(error).__name__
    if name == "LimitReachedError":
        return "A part of it is larger than the limits of the PDF reader."
    return f"The file is damaged ({name})."


def _bounded(pieces: Pieces, reading: Reading) -> tuple[str, str | None]:
    """The text of at most 256 KiB, and why that is not all."""
    parts: list[str] = []
    size, until = 0, reading.began + SOFT_SHARE * reading.seconds
    for piece in pieces:
        clean = _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", piece.replace("\0", ""))
        data = clean.encode("utf-8")
        if size + len(data) > MAX_TEXT_BYTES:
            parts.append(data[: MAX_TEXT_BYTES - size].decode("utf-8", "ignore"))
            return "".join(parts), f"Only its first {MAX_TEXT_BYTES // 1024} KiB of text are used, which is the limit."
        parts.append(clean)
        size += len(data)
        if time.monotonic() > until:
            return "".join(parts), f"Only its beginning was read, within the time limit of {reading.seconds:.0f} s."
    return "".join(parts), None


def _plain(data: bytes, _reading: Reading, _notes: list[str]) -> Pieces:
    yield decoded(data) or ""


def _html(data: bytes, _reading: Reading, _notes: list[str]) -> Pieces:
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(data, "lxml")
    for hidden in soup(["script", "style", "noscript", "template", "svg"]):
        hidden.decompose()
    title = soup.title.get_text(" ", strip=True) if soup.title else ""
    text = (soup.body or soup).get_text("\n", strip=True)
    yield _BLANK.sub("\n\n", f"{title}\n\n{text}" if title and not text.startswith(title) else text)


def _pdf(data: bytes, reading: Reading, notes: list[str]) -> Pieces:
    import pypdf

    reader = pypdf.PdfReader(io.BytesIO(data))
    if reader.is_encrypted:
        try:
            opened = bool(reader.decrypt(""))
        except Exception:
            opened = False
        if not opened:
            raise Unreadable("The PDF is encrypted.")
    for number, page in enumerate(reader.pages, 1):
        if number > reading.pages:
            notes.append(f"Only its first {reading.pages:,} pages were read, which is the limit.")
            return
        text = page.extract_text()
        # A page without text, too: time is looked at after each.
        yield f"[Page {number}]\n{text.strip()}\n\n" if text.strip() else ""


def _docx(data: bytes, _reading: Reading, notes: list[str]) -> Pieces:
    import docx
    from docx.table import Table

    _check_package(data, notes)
    for item in docx.Document(io.BytesIO(data)).iter_inner_content():
        if isinstance(item, Table):
            for row in item.rows:
                # A cell that spans columns is there once for each.
                cells = {id(cell._tc): cell.text.replace("\n", " ") for cell in row.cells}
                yield "\t".join(cells.values()) + "\n"
            yield "\n"
        else:
            yield item.text + "\n"


def _xlsx(data: bytes, _reading: Reading, notes: list[str]) -> Pieces:
    import openpyxl

    _check_package(data, notes)
    book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True, keep_links=False)
    for sheet in book.worksheets:
        yield f"[Sheet {sheet.title}]\n"
        # What the file says of its size is not to be relied on.
        sheet.reset_dimensions()
        for row in sheet.iter_rows(values_only=True):
            cells = ["" if value is None else str(value).replace("\n", " ") for value in row]
            yield "\t".join(cells).rstrip("\t") + "\n" if any(cells) else ""
        yield "\n"


def _check_package(data: bytes, notes: list[str]) -> None:
    """Refuse an archive that unpacks to far more than a document needs, before anything of it is unpacked."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = archive.infolist()
    if len(infos) > MAX_PACKED_FILES:
        raise Unreadable(f"The document has {len(infos):,} parts; the limit is {MAX_PACKED_FILES:,}.")
    if any(info.flag_bits & 1 for info in infos):
        raise Unreadable("The document is encrypted.")
    if sum(info.file_size for info in infos) > MAX_UNPACKED_BYTES:
        raise Unreadable(f"The document unpacks to more than the limit of {MAX_UNPACKED_BYTES // 1024**2} MiB.")
    if any(info.filename.lower().endswith("vbaproject.bin") for info in infos):
        notes.append("It has macros, which were neither run nor read.")


def _image(data: bytes, kind: str, reading: Reading) -> Extracted:
    found, picture = read_image(data, kind)
    if picture is None:
        return found
    if reading.ocr is None:
        return replace(found, note="No text was read from the image (tesseract is not installed, or not to be used).")
    text, problem = recognized(picture, reading.ocr, reading.languages, SOFT_SHARE * reading.seconds)
    if problem is not None:
        return replace(found, note=problem)
    text, cut = _bounded(iter([text]), reading)
    return replace(found, state=AttachmentState.PARTIAL if cut else found.state, text=text, note=cut)


_UNREAD = {
    OLE: "Office files of old formats, and encrypted ones, are not read; save it as .docx or .xlsx without a password.",
    UNKNOWN: "No text is taken out of files of this kind.",
}
_READERS: dict[str, Callable[[bytes, Reading, list[str]], Pieces]] = {
    "text/html": _html,
    PDF: _pdf,
    DOCX: _docx,
    XLSX: _xlsx,
}
