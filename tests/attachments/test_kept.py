"""Files in search, exports, imports, collections and backups."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from milepost.domain.attachments import AttachmentState
from milepost.domain.search import SearchFilter, SearchKind
from milepost.ports.extraction import Extracted
from milepost.services.exporting.service import ExportFormat
from milepost.services.importing.plan import BadLine
from milepost.services.importing.service import ImportOptions
from milepost.services.rewinds import RewindTo
from milepost.services.search import SearchRequest
from tests.attachments.conftest import Files, names

PNG = "image/png"


async def session_of(files: Files) -> str:
    """Two files for the Session, one of them removed, one for a turn, one that waits."""
    session = await files.bench.open()
    files.extractor.answers = {"screen.png": Extracted(AttachmentState.READY, PNG, "quokka on a screen")}
    await files.attach(session, "spec <b>.md", b"wombat \xff spec", "session")
    removed = await files.attach(session, "removed.md", b"numbat", "session")
    await files.attach(session, "screen.png", b"\x89PNG pixels")
    await files.turn(session, "first")
    await files.attachments.remove(removed.ref.attachment_id)
    await files.turn(session, "second")
    await files.attach(session, "waits.txt", b"platypus")
    return session


async def exported(files: Files, session: str, wanted: ExportFormat) -> bytes:
    return b"".join([piece async for piece in await files.exports.export(session, wanted)])


async def found(files: Files, query: str, *, literal: bool = False) -> list[tuple[str, int | None, bool]]:
    where = SearchFilter(kind=SearchKind.ATTACHMENT)
    page = await files.search.search(SearchRequest(query, where, literal))
    return [(hit.found.kind, hit.found.turn_number, hit.found.superseded) for hit in page.hits]


async def test_search_finds_names_and_texts(files: Files) -> None:
    session = await session_of(files)
    hit = (SearchKind.ATTACHMENT, 1, False)
    assert await found(files, "wombat") == [hit] and await found(files, "quokka screen") == [hit]
    assert await found(files, '"screen.png"') == [hit] and await found(files, "spec <b>.md", literal=True) == [hit]
    # What no turn has used is nowhere yet.
    assert await found(files, "platypus") == []
    await files.search.rebuild(lambda _: None)
    assert await found(files, "wombat") == [hit]
    await files.bench.rewinds.rewind(RewindTo(session, "test", 0))
    await files.turn(session, "third")
    assert sorted(await found(files, "wombat"), key=str) == [(hit[0], 1, True), (hit[0], 3, False)]


async def test_exports_for_people(files: Files) -> None:
    session = await session_of(files)
    markdown = (await exported(files, session, ExportFormat.MARKDOWN)).decode()
    assert r"- spec \<b\>.md (text/plain, 13 bytes, SHA-256 `" in markdown
    page = (await exported(files, session, ExportFormat.HTML)).decode()
    assert "<b>spec &lt;b&gt;.md</b> <span>text/plain, 13 bytes</span>" in page
    assert page.count('<img alt="" src="data:image/png;base64,iVBORyBwaXhlbHM=">') == 1
    for path in (files.root / "blobs").glob("??/*"):
        path.unlink()
    page = (await exported(files, session, ExportFormat.HTML)).decode()
    assert "screen.png" in page and "<img" not in page and page.endswith("</html>\n")


async def test_lossless_export_and_import(files: Files, tmp_path: Path) -> None:
    session = await session_of(files)
    document = await exported(files, session, ExportFormat.JSON)
    for path in (files.root / "blobs").glob("??/*"):
        path.unlink()
    done = await files.imports.load(io.BytesIO(document), ImportOptions(str(files.bench.folder)))
    assert done.created and done.missing_blobs == 0
    old, new = [(await files.bench.turns.page(each, limit=10))[::-1] for each in (session, done.session_id)]
    assert [names(view.turn) for view in new] == [names(view.turn) for view in old] != [[], []]
    before, after = [await files.attachments.page(each, limit=10) for each in (session, done.session_id)]
    assert [(item.ref.name, item.scope, item.removed_at, item.created_at) for item in after] == [
        (item.ref.name, item.scope, item.removed_at, item.created_at) for item in before
    ]
    ids = {view.turn.turn_id for view in new} | {None}
    assert {item.used_by for item in after} <= ids and all(item.session_id == done.session_id for item in after)
    assert await files.selected(done.session_id) == ["spec <b>.md", "waits.txt"]
    assert {ref.attachment_id for view in new for ref in view.turn.request.attachments} <= {
        item.ref.attachment_id for item in after
    }
    for item in after:
        assert len(await files.contents.load_bytes(item.ref.blob)) == item.ref.blob.size
    assert {await files.attachments.text(item.ref.attachment_id) for item in after} == {
        "wombat \ufffd spec",
        "numbat",
        "quokka on a screen",
        "platypus",
    }
    assert not (await files.imports.load(io.BytesIO(document))).created
    assert await files.bench.verified() == []
    again = await exported(files, done.session_id, ExportFormat.JSON)
    counts = [json.loads(each)["end"]["counts"]["attachments"] for each in (document, again)]
    assert counts == [4, 4]


async def test_documents_that_are_not_imported(files: Files) -> None:
    session = await session_of(files)
    document = json.loads(await exported(files, session, ExportFormat.JSON))
    first = document["attachments"][0]

    async def refused(problem: str, **changes: object) -> None:
        changed = document | {"attachments": [first | changes, *document["attachments"][1:]]}
        with pytest.raises(BadLine, match=problem):
            await files.imports.load(io.BytesIO(json.dumps(changed).encode()))

    await refused("belongs to another Session", session_id="ses_other")
    await refused("a turn that the document does not have", used_by="trn_other")
    await refused("text has over 262144 bytes", text="x" * 300_000)
    await refused("text is no text", text=7)
    await refused("no attachment", scope="always")
    await refused("no SHA-256 digest", ref=first["ref"] | {"blob": {"digest": "x", "size": 1, "media_type": "a"}})
    await refused("1 to 255 characters", ref=first["ref"] | {"name": ""})
    second = document["attachments"][1]["ref"]["attachment_id"]
    await refused("is there twice", ref=first["ref"] | {"attachment_id": second})
    less = document | {"attachments": document["attachments"][:1]}
    with pytest.raises(BadLine, match="an attachment that the document does not have"):
        await files.imports.load(io.BytesIO(json.dumps(less).encode()))


async def test_a_document_of_an_earlier_release(files: Files) -> None:
    session = await files.bench.open()
    await files.turn(session, "plain")
    lines = (await exported(files, session, ExportFormat.JSON)).splitlines(keepends=True)
    old = [line.replace(b'"attachments":0,', b"") for line in lines if line != b'"attachments":[\n']
    at = next(number for number, line in enumerate(lines) if line == b'"attachments":[\n')
    del old[at]
    document = b"".join(old)
    assert b'"attachments":[\n' not in document and "attachments" not in json.loads(document)
    whole = json.dumps(json.loads(document)).encode()
    made = await files.imports.load(io.BytesIO(document), ImportOptions(str(files.bench.folder)))
    assert made.created and not (await files.imports.load(io.BytesIO(whole))).created
