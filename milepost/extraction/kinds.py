"""What a file is, from its bytes. The name only tells one kind of plain text from another."""

from __future__ import annotations

import io
import zipfile
from pathlib import PurePosixPath

PDF = "application/pdf"
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
OLE = "application/x-ole-storage"
UNKNOWN = "application/octet-stream"

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"II*\0", "image/tiff"),
    (b"MM\0*", "image/tiff"),
    (b"BM", "image/bmp"),
)
_TEXTS = {
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".csv": "text/csv",
    ".tsv": "text/tab-separated-values",
    ".html": "text/html",
    ".htm": "text/html",
}
_SNIFFED = 1024


def media_type_of(data: bytes, name: str) -> str:
    """The media type of a whole file."""
    image = image_type(data)
    if image is not None:
        return image
    if b"%PDF-" in data[:_SNIFFED]:
        return PDF
    if data.startswith(b"PK\x03\x04"):
        return _office(data)
    if data.startswith(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"):
        return OLE
    text = decoded(data[: 64 * 1024], whole=len(data) <= 64 * 1024)
    if text is None:
        return UNKNOWN
    start = text[:_SNIFFED].lstrip("\ufeff \t\r\n").lower()
    if start.startswith(("<!doctype html", "<html")):
        return "text/html"
    return _TEXTS.get(PurePosixPath(name.lower()).suffix, "text/plain")


def image_type(start: bytes) -> str | None:
    """The media type of an image, from its first bytes."""
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "image/webp"
    found = next((kind for magic, kind in _MAGIC if start.startswith(magic)), None)
    # Two letters alone are also the beginning of texts; a bitmap says its size, which has zeros.
    return None if found == "image/bmp" and b"\0" not in start[:16] else found


def _office(data: bytes) -> str:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = set(archive.namelist())
    except (zipfile.BadZipFile, ValueError, OSError):
        return "application/zip"
    if "word/document.xml" in names:
        return DOCX
    return XLSX if "xl/workbook.xml" in names else "application/zip"


def decoded(data: bytes, *, whole: bool = True) -> str | None:
    """Text in UTF-8, or in UTF-16 with its mark; else in Windows-1252 if nothing speaks against text; else None."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if not whole and error.start >= len(data) - 3:
            return data[: error.start].decode("utf-8-sig")
    controls = sum(byte < 32 and byte not in (9, 10, 12, 13, 27) for byte in data)
    return None if controls * 100 > len(data) else data.decode("cp1252", "replace")
