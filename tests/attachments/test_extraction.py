"""Text out of files, in real processes: every kind, and files that were made to break readers."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from milepost.domain.attachments import MAX_TEXT_BYTES, AttachmentState
from milepost.extraction import Limits, ProcessExtractor
from milepost.extraction.kinds import DOCX, OLE, PDF, XLSX
from milepost.extraction.readers import Reading, read
from milepost.ports.extraction import Extracted
from tests.attachments import files
from tests.support.needs import unavailable

READY, PARTIAL, FAILED = AttachmentState.READY, AttachmentState.PARTIAL, AttachmentState.FAILED


async def pieces(data: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(data), 64 * 1024):
        yield data[start : start + 64 * 1024]


async def extract(data: bytes, name: str, limits: Limits | None = None) -> Extracted:
    return await ProcessExtractor(limits or Limits(ocr=False)).extract(pieces(data), name)


async def test_every_kind_of_document() -> None:
    page = b"<html><head><title>T</title><script>bad()</script></head><body><p>Gr\xfc\xdfe</p><p>b</p></body></html>"
    given = {
        "page.html": page.replace(b"<head>", b'<head><meta charset="iso-8859-1">'),
        "paper.pdf": files.pdf(["First page", "Second page"]),
        "letter.docx": files.docx("Hello", "World", rows=[["a", "b"], ["c", "d"]]),
        "prices.xlsx": files.xlsx(One=[[1, "x", None, 2.5], [], ["last"]], Two=[["z"]]),
    }
    found = await asyncio.gather(*(extract(data, name) for name, data in given.items()))
    html, paper, letter, prices = found
    assert [item.state for item in found] == [READY] * 4 and [item.note for item in found] == [None] * 4
    assert (html.media_type, html.text) == ("text/html", "T\n\nGrüße\nb")
    assert paper.media_type == PDF and paper.text == "[Page 1]\nFirst page\n\n[Page 2]\nSecond page\n\n"
    assert letter.media_type == DOCX and letter.text == "Hello\nWorld\na\tb\nc\td\n\n"
    assert prices.media_type == XLSX and prices.text == "[Sheet One]\n1\tx\t\t2.5\nlast\n\n[Sheet Two]\nz\n\n"


async def test_plain_texts_by_their_bytes() -> None:
    # The name says what it likes; the bytes decide, and tell encodings apart.
    for data, name, kind, text in (
        ("größer\n".encode(), "a.pdf", "text/plain", "größer\n"),
        ("größer".encode("utf-16"), "a.txt", "text/plain", "größer"),
        ("größer".encode("cp1252"), "a.csv", "text/csv", "größer"),
    ):
        found = await extract(data, name)
        assert (found.state, found.media_type, found.text) == (READY, kind, text)


async def test_a_text_is_cut_at_a_character() -> None:
    found = await extract(("ä" * MAX_TEXT_BYTES).encode(), "long.txt")
    assert found.state is PARTIAL and found.text == "ä" * (MAX_TEXT_BYTES // 2)
    assert found.note == "Only its first 256 KiB of text are used, which is the limit."


async def test_an_image_of_too_many_pixels_and_a_broken_one() -> None:
    huge, broken = await asyncio.gather(
        extract(files.huge_png(60_000, 60_000), "huge.png"), extract(files.picture()[:-40], "cut.png")
    )
    assert huge.state is FAILED and huge.media_type == "image/png" and huge.image is None
    assert huge.note == "The image has 60,000 x 60,000 pixels; the limit is 50 million."
    assert broken.state is FAILED and broken.note is not None and broken.note.startswith("The image is damaged")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="no other kernel keeps the limit")
async def test_a_file_that_needs_too_much_memory() -> None:
    data = files.picture(7_000, 7_000)
    found = await extract(data, "big.png", Limits(memory=260 * 1024**2, ocr=False))
    assert found.state is FAILED and found.note is not None and "limit of 260 MiB" in found.note


@pytest.mark.slow
async def test_images_become_what_models_take() -> None:
    names = {"BMP": "image/bmp", "TIFF": "image/tiff", "WEBP": "image/webp", "GIF": "image/gif", "JPEG": "image/jpeg"}
    for form, kind in names.items():
        found = await extract(files.picture(form=form), f"a.{form}")
        assert (found.state, found.media_type) == (READY, kind)
        copied = form in ("BMP", "TIFF")
        assert (found.image is not None, found.image_type) == (copied, "image/png" if copied else "")
    large = await extract(files.noise(5_000_000), "noise.png")
    assert large.state is READY and large.image is not None and len(large.image) < 3_500_000


@pytest.mark.slow
async def test_text_is_read_from_images() -> None:
    if shutil.which("tesseract") is None:
        unavailable("tesseract", "apt install tesseract-ocr")
    picture = files.picture(900, 300, text="Milepost 42")
    found = await extract(picture, "sign.png", Limits())
    assert found.state is READY and found.text == "Milepost 42" and found.note is None
    unknown = await extract(picture, "sign.png", Limits(languages="tlh"))
    assert unknown.state is READY and unknown.note is not None and "tlh" in unknown.note


@pytest.mark.slow
async def test_archives_and_entities_that_unpack_to_too_much() -> None:
    entities = "".join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 20}">' for n in range(8))
    document = (
        f'<?xml version="1.0"?><!DOCTYPE w [<!ENTITY a "{"a" * 30}">{entities}]>'
        '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body><w:p><w:r>'
        "<w:t>&h;</w:t></w:r></w:p></w:body></w:document>"
    ).encode()
    sheet = (
        f'<?xml version="1.0"?><!DOCTYPE w [<!ENTITY a "{"a" * 30}">{entities}]>'
        '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData><row r="1">'
        '<c r="A1" t="inlineStr"><is><t>&h;</t></is></c></row></sheetData></worksheet>'
    ).encode()
    outside = document.replace(b'"%s"' % (b"a" * 30), b'SYSTEM "file:///etc/passwd"').replace(b"&h;", b"&a;")
    given = {
        "entities.docx": files.changed_package(files.docx("x"), word__document_xml=document),
        "outside.docx": files.changed_package(files.docx("x"), word__document_xml=outside),
        "zeros.docx": files.changed_package(files.docx("x"), word__media__big_bin=b"\0" * 300_000_000),
        "sheet.xlsx": files.changed_package(files.xlsx(One=[["x"]]), xl__worksheets__sheet1_xml=sheet),
    }
    found = dict(zip(given, await asyncio.gather(*(extract(data, name) for name, data in given.items())), strict=True))
    for name, item in found.items():
        assert "root:" not in item.text and len(item.text) < 1000, name
        if name != "outside.docx":
            assert item.state is FAILED and item.note, (name, item)
    assert found["zeros.docx"].note == "The document unpacks to more than the limit of 256 MiB."


@pytest.mark.slow
async def test_documents_without_end() -> None:
    stream = b"BT /F1 12 Tf " + b"(a) Tj " * 2_000_000 + b"ET"
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    shown = b"/Contents 5 0 R /Resources << /Font << /F1 3 0 R >> >>"
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] " + shown + b" >>"
    endless = {
        1: b"<< /Type /Catalog /Pages 2 0 R >>",
        2: b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
        3: font,
        4: page,
        5: b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
    }
    circle = {**endless, 4: b"<< /Type /Pages /Kids [2 0 R] /Count 1000000 >>"}
    limits = Limits(seconds=4, ocr=False)
    slow, round_, many = await asyncio.gather(
        extract(files.assembled(endless), "slow.pdf", limits),
        extract(files.assembled(circle), "circle.pdf", limits),
        extract(files.pdf([f"page {n}" for n in range(40)]), "many.pdf", Limits(pages=30, ocr=False)),
    )
    assert slow.state is FAILED and slow.media_type == PDF
    assert slow.note == "Reading it takes longer than the limit of 4 s."
    assert round_.state in (FAILED, READY) and not round_.text
    assert many.state is PARTIAL and "[Page 30]" in many.text and "[Page 31]" not in many.text
    assert many.note == "Only its first 30 pages were read, which is the limit."


def test_what_was_read_within_the_time_is_kept() -> None:
    reading = Reading(seconds=10, began=time.monotonic() - 8, pages=100, ocr=None, languages="")
    found = read(files.pdf(["one", "two", "three"]), PDF, reading)
    assert (found.state, found.text) == (PARTIAL, "[Page 1]\none\n\n")
    assert found.note == "Only its beginning was read, within the time limit of 10 s."


@pytest.mark.slow
async def test_other_files_that_are_not_read() -> None:
    macros = files.changed_package(files.xlsx(One=[["x"]]), xl__vbaProject_bin=b"macro")
    found = await extract(macros, "macros.xlsm")
    assert found.state is READY and found.text.startswith("[Sheet One]\nx")
    assert found.note == "It has macros, which were neither run nor read."
    old = await extract(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(1000), "old.doc")
    assert (old.state, old.media_type) == (AttachmentState.UNSUPPORTED, OLE) and old.note is not None
    binary = await extract(bytes(range(256)) * 10, "x.txt")
    assert (binary.state, binary.media_type) == (AttachmentState.UNSUPPORTED, "application/octet-stream")
    garbage = await extract(b"%PDF-1.7 and nothing else", "x.pdf")
    assert garbage.state is FAILED and garbage.note is not None


async def test_an_answer_of_another_form_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "nothing": "",
        "another state": '{"media_type": "text/plain"}\\n{"state": "pending", "text": "x", "note": null}',
        "no JSON": "{",
        "a list": "[]\\n[]",
        "no end": "x" * 100,
    }
    for what, answer in answers.items():
        fake = tmp_path / f"python-{len(what)}"
        fake.write_text(f"#!/bin/sh\ncat >/dev/null\nprintf '%b' '{answer}'\n")
        fake.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(fake))
        found = await extract(b"text", "a.txt")
        assert found.state is FAILED and found.note and not found.text, what


async def test_the_process_has_nothing_of_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEPOST_TEST_SECRET", "do not tell")
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\nenv > "{tmp_path}/env"\npwd > "{tmp_path}/pwd"\ncat > /dev/null\n')
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    await extract(b"text", "a.txt")
    seen = (tmp_path / "env").read_text()
    assert "do not tell" not in seen and "HOME=" not in seen
    assert (tmp_path / "pwd").read_text().strip() == "/"


async def test_a_reader_that_is_given_up_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop of whoever waits, and a time that is over, end the process and what it started."""
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\nsleep 300 &\necho $! > "{tmp_path}/pid"\nwait\n')
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    found = await extract(b"text", "a.txt", Limits(seconds=1))
    assert found.state is FAILED and found.note == "Reading it takes longer than the limit of 1 s."
    await _gone(int((tmp_path / "pid").read_text()))
    (tmp_path / "pid").unlink()
    work = asyncio.create_task(extract(b"text", "a.txt", Limits(seconds=60)))
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        await asyncio.sleep(0.02)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await _gone(int((tmp_path / "pid").read_text()))


def _is_zombie(pid: int) -> bool:
    """Whether it has ended, and nobody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return False


async def _gone(pid: int) -> None:
    for _ in range(500):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if _is_zombie(pid):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"process {pid} lives on")
