"""Files as people attach them, and files that were made to break readers."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont


def pdf(pages: Sequence[str], *, between: bytes = b"") -> bytes:
    """A PDF document with a line of text on each page. `between` are further objects, numbered from 900."""
    objects: dict[int, bytes] = {3: b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"}
    kids = []
    for number, text in enumerate(pages):
        page, content = 10 + 2 * number, 11 + 2 * number
        kids.append(f"{page} 0 R")
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode("latin-1")
        objects[content] = b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream)
        objects[page] = (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {content} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>"
        ).encode()
    objects[1] = b"<< /Type /Catalog /Pages 2 0 R >>"
    objects[2] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>".encode()
    return assembled(objects, between)


def assembled(objects: dict[int, bytes], between: bytes = b"") -> bytes:
    """A PDF file of these objects with a cross-reference table."""
    out = io.BytesIO()
    out.write(b"%PDF-1.4\n" + between)
    places: dict[int, int] = {}
    for number in sorted(objects):
        places[number] = out.tell()
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, objects[number]))
    start = out.tell()
    size = max(objects) + 1
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % size)
    for number in range(1, size):
        at = places.get(number)
        out.write(b"0000000000 65535 f \n" if at is None else b"%010d 00000 n \n" % at)
    out.write(b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (size, start))
    return out.getvalue()


def docx(*paragraphs: str, rows: Sequence[Sequence[str]] = ()) -> bytes:
    import docx as library

    document = library.Document()
    for paragraph in paragraphs:
        document.add_paragraph(paragraph)
    if rows:
        table = document.add_table(rows=len(rows), cols=len(rows[0]))
        for row, values in enumerate(rows):
            for column, value in enumerate(values):
                table.cell(row, column).text = value
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def xlsx(**sheets: Sequence[Sequence[object]]) -> bytes:
    import openpyxl

    book = openpyxl.Workbook()
    book.remove(book.active)
    for title, rows in sheets.items():
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(list(row))
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def changed_package(data: bytes, **parts: bytes) -> bytes:
    """An Office file with parts replaced or added; `__` in a name stands for `/` and a single `_` for a dot."""
    out = io.BytesIO()
    named = {name.replace("__", "/").replace("_", "."): value for name, value in parts.items()}
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
        for info in source.infolist():
            if info.filename not in named:
                target.writestr(info.filename, source.read(info.filename))
        for name, value in named.items():
            target.writestr(name, value)
    return out.getvalue()


def picture(width: int = 64, height: int = 64, form: str = "PNG", text: str = "", **options: object) -> bytes:
    """An image, with large black text on white if there is any."""
    image = Image.new("RGB", (width, height), "white" if text else "teal")
    if text:
        ImageDraw.Draw(image).text((40, height // 3), text, fill="black", font=ImageFont.load_default(72))
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def noise(size: int, form: str = "PNG") -> bytes:
    """An image that cannot be compressed, of at least `size` bytes as PNG."""
    import random

    side = int((size / 3) ** 0.5) + 1
    image = Image.frombytes("RGB", (side, side), random.Random(1).randbytes(3 * side * side))
    out = io.BytesIO()
    image.save(out, form)
    return out.getvalue()


def huge_png(width: int, height: int) -> bytes:
    """A small PNG file that says it has this many pixels, and has them: all of one color."""
    row = b"\0" + b"\0" * ((width + 7) // 8)
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(row) for _ in range(min(height, 20_000))) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, body)
        for kind, body in (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)),
            (b"IDAT", data),
            (b"IEND", b""),
        )
    )


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
