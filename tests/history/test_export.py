"""Exports: Markdown and HTML that stay in their place, whatever was written; documents of any length."""

from __future__ import annotations

import base64
import json
import tracemalloc
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from milepost.bootstrap.system import SystemClock
from milepost.domain.content import BlobRef, Content
from milepost.domain.errors import SessionNotFound
from milepost.domain.turns import TurnState
from milepost.ledger.chain import verify_chain
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.services.contents import Contents
from milepost.services.exporting.html import rendered
from milepost.services.exporting.markdown import contained
from milepost.services.exporting.service import ExportFormat, ExportService
from milepost.services.exporting.texts import clean
from milepost.services.finishing import Ending
from milepost.storage import FileBlobStore
from milepost.storage.tables import turns as turns_table
from tests.history.build import Builder, Call, Said
from tests.ledger.samples import NASTY, connection

ATTACKS = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "</pre></div></section><svg onload=window.hacked=1>",
    "</style></script><script>window.hacked = 1</script><!--",
    "[x](javascript:window.hacked=1) [y](JaVaScRiPt:window.hacked=1) [z](&#106;avascript:window.hacked=1)",
    "[x](data:text/html,<script>window.hacked=1</script>) <javascript:window.hacked=1>",
    "![x](http://127.0.0.1:9/pixel.png) ![y](javascript:window.hacked=1 \"onload='window.hacked=1'\")",
    '[x](http://a.b/" onclick="window.hacked=1) <http://a.b/"onmouseover="window.hacked=1>',
    "[ref]\n\n[ref]: javascript:window.hacked=1\n\n[ref2]: http://127.0.0.1:9/x",
    '```html" onclick="window.hacked=1\n<b>x</b>\n```',
    "`<b>` <b>bold</b> <iframe src=//127.0.0.1:9></iframe><base href=//127.0.0.1:9>",
    "<meta http-equiv=refresh content=0;url=http://127.0.0.1:9>",
    "<link rel=stylesheet href=http://127.0.0.1:9/x.css><style>@import 'http://127.0.0.1:9/y.css'</style>",
    "<!-- --!> <![CDATA[ <?php ?> <plaintext> <noscript> <template>",
    "# Heading\n## Turn 99: completed\n\n---\n\n> quote\n<details open>",
    "\u202e\u2066reversed \x1b[31mred\x1b[0m \x00 \ud800 \x85",
]
TAGS = {
    *("html", "head", "meta", "link", "title", "style", "body", "div", "strong", "span", "output", "input", "button"),
    *("nav", "h1", "h2", "h3", "h4", "h5", "h6", "ol", "ul", "li", "a", "b", "main", "header", "dl", "dt", "dd"),
    *("section", "time", "pre", "p", "details", "summary", "code", "footer", "script", "em", "s", "blockquote", "hr"),
    *("table", "thead", "tbody", "tr", "th", "td", "br"),
}
VOID = {"meta", "link", "input", "br", "hr"}
ATTRIBUTES = {
    *("lang", "charset", "http-equiv", "content", "name", "rel", "href", "class", "id", "for", "aria-live", "type"),
    *("placeholder", "aria-label", "aria-labelledby", "tabindex", "style", "title", "start"),
}


class Tags(HTMLParser):
    """What a page is made of."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.styles: set[str] = set()
        self.links: set[str] = set()
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        if tag not in VOID:
            self.open.append(tag)
        self.scripts += tag == "script"
        for name, value in attrs:
            assert name in ATTRIBUTES, (tag, name)
            if name == "href":
                self.links.add(value or "")
            if name == "style":
                self.styles.add(value or "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag, tag


def _checked(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    tags.close()
    assert tags.open == []
    assert tags.scripts <= 1
    assert tags.styles <= {"text-align:left", "text-align:center", "text-align:right"}
    for link in tags.links:
        assert link.startswith(("#", "http://", "https://", "mailto:", "data:,")), link
        assert link != "data:," or page.count("data:,") == 1
    return tags


def _service(ledger: Ledger, root: Path) -> ExportService:
    return ExportService(ledger, Contents(FileBlobStore(root / "blobs")), SystemClock(), "0.1.0")


async def _export(ledger: Ledger, root: Path, session: str, wanted: str, *, superseded: bool = False) -> str:
    pieces = await _service(ledger, root).export(session, ExportFormat(wanted), superseded=superseded)
    return b"".join([piece async for piece in pieces]).decode("utf-8")


async def _attacked(ledger: Ledger) -> str:
    builder = Builder(ledger)
    session = await builder.session(ATTACKS[0] + ATTACKS[2] + ATTACKS[3], "/tmp/<b>&\"'")
    for attack in ATTACKS:
        call = Call(f"tool {attack}", json.dumps({"x": attack}), attack, is_error=True)
        await builder.turn(
            session,
            Said(attack, attack, [call], reasoning=attack, agent=attack[:30].replace("\ud800", "").replace("\0", "")),
        )
    failing = Ending(TurnState.FAILED, ATTACKS[1], "model_unauthorized")
    await builder.turn(session, Said("x", None, ending=failing))
    await builder.turn(session, Said("x", "half", [Call("bash", "{}", lost=True)], ending=None))
    return session


async def test_nothing_that_was_written_becomes_markup(sqlite_ledger: Ledger, tmp_path: Path) -> None:
    session = await _attacked(sqlite_ledger)
    page = await _export(sqlite_ledger, tmp_path, session, "html")
    tags = _checked(page)
    assert tags.scripts == 1
    assert {f"#turn-{number}" for number in range(1, len(ATTACKS) + 3)} <= tags.links
    markdown = await _export(sqlite_ledger, tmp_path, session, "md")
    tokens = MarkdownIt("commonmark").parse(markdown)
    kinds = {token.type for token in tokens} | {c.type for token in tokens for c in token.children or ()}
    assert not kinds & {"html_block", "html_inline"}
    turns = [
        tokens[n + 1].content for n, token in enumerate(tokens) if token.type == "heading_open" and token.tag == "h2"
    ]
    assert [turn.split(":")[0] for turn in turns] == [f"Turn {number}" for number in range(1, len(ATTACKS) + 3)]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(st.sampled_from(ATTACKS), st.text(max_size=40), st.sampled_from("<>&\"'`*_[]()#!\\|~\n ")), max_size=8
    )
)
def test_rendered_markdown_has_only_harmless_tags(pieces: list[str]) -> None:
    text = "".join(pieces)
    _checked(f"<div>{rendered(text)}</div>")
    end = "\n\n# The end\n"
    made = MarkdownIt("commonmark").parse(contained(clean(text)) + end)
    for token in made:
        assert token.type != "html_block"
        assert all(child.type != "html_inline" for child in token.children or ())
    tops = [token.tag for token in made if token.type == "heading_open" and token.level == 0]
    assert tops[-1] == "h1" and not {"h1", "h2", "h3"} & set(tops[:-1])


async def test_formats_tell_the_same_story(sqlite_ledger: Ledger, tmp_path: Path) -> None:
    builder = Builder(sqlite_ledger)
    session = await builder.session("Repair", "/srv/shop")
    whole = "long answer " * 40_000
    content = await Contents(FileBlobStore(tmp_path / "blobs")).store(whole)
    assert content.blob is not None
    old = await builder.turn(session, Said("superseded request", "superseded answer"))
    await builder.turn(session, Said(content, "**done**", [Call("bash", '{"command": "ls"}', "a.txt")], reasoning="hm"))

    def supersede(tx: LedgerTx) -> None:
        connection(tx).execute(turns_table.update().where(turns_table.c.turn_id == old).values(superseded=True))

    await sqlite_ledger.write(supersede)
    for wanted in ("md", "html"):
        text = await _export(sqlite_ledger, tmp_path, session, wanted)
        assert "superseded" not in text.replace(".superseded", "")
        assert whole.strip() in text
        for word in ("Repair", "/srv/shop", "a.txt", "hm", "400 tokens"):
            assert word in text, (wanted, word)
        every = await _export(sqlite_ledger, tmp_path, session, wanted, superseded=True)
        assert "superseded request" in every and "superseded answer" in every
    with pytest.raises(SessionNotFound):
        await _service(sqlite_ledger, tmp_path).export("ses_none", ExportFormat.HTML)


async def test_the_json_is_one_document_of_lines(ledger: Ledger, tmp_path: Path) -> None:
    builder = Builder(ledger)
    session = await builder.session(NASTY, "/x")
    big = bytes(range(256)) * 2_000
    blobs = FileBlobStore(tmp_path / "blobs")
    ref = await blobs.put(big, "text/plain")
    lost = BlobRef("0" * 64, 300_000, "text/plain")
    calls = [Call("bash", NASTY, Content("preview", ref)), Call("bash", "{}", Content("gone", lost))]
    await builder.turn(session, Said(NASTY, NASTY, calls))
    await builder.turn(session, Said("again", None, ending=None))
    text = await _export(ledger, tmp_path, session, "json")
    document = json.loads(text)
    assert (document["format"], document["version"]) == ("milepost.session", 1)
    assert document["end"]["counts"] == {name: len(document[name]) for name in document["end"]["counts"]}
    assert [turn["state"] for turn in document["turns"]] == ["completed", "running"]
    stored = await ledger.read(lambda tx: tx.events.read(session))
    assert [event["key"] for event in document["events"]] == [event.key for event in stored]
    assert document["end"]["head_hash"] == verify_chain(stored)[1].hex()
    pieces = [piece for piece in document["blobs"] if piece["digest"] == ref.digest]
    assert b"".join(base64.b64decode(piece["data"]) for piece in pieces) == big
    assert [piece for piece in document["blobs"] if piece["digest"] == lost.digest] == [
        {"digest": lost.digest, "size": lost.size, "media_type": lost.media_type, "missing": True}
    ]
    for line in text.split("\n"):
        if line.startswith('{"') and not line.startswith('{"format'):
            json.loads(line.rstrip(","))


async def test_an_export_ends_at_the_event_at_which_it_began(sqlite_ledger: Ledger, tmp_path: Path) -> None:
    builder = Builder(sqlite_ledger)
    session = await builder.session()
    for number in range(3):
        await builder.turn(session, Said(f"request {number}"))
    pieces = await _service(sqlite_ledger, tmp_path).export(session, ExportFormat.JSON)
    await builder.turn(session, Said("too late"))
    document = json.loads(b"".join([piece async for piece in pieces]))
    assert len(document["turns"]) == 3
    assert "too late" not in str(document["events"])


@pytest.mark.slow
@pytest.mark.parametrize("wanted", ["json", "md", "html"])
async def test_memory_does_not_grow_with_the_session(sqlite_ledger: Ledger, tmp_path: Path, wanted: str) -> None:
    """300 MB of texts as JSON, 100 MB for people, made of few blobs and many events."""
    builder = Builder(sqlite_ledger)
    session = await builder.session()
    blobs = FileBlobStore(tmp_path / "blobs")
    size = (64 if wanted == "json" else 16) * 1024 * 1024
    for number in range(4):
        ref = await blobs.put((b"line %d of a long text\n" % number * (size // 20))[:size], "text/plain")
        await builder.turn(session, Said(Content("a preview", ref), "y" * 250_000))
    for _ in range(100):
        call = Call("bash", "{}", "z" * 200_000)
        await builder.turn(session, Said("x" * 200_000, None, [call]))
    total = 0
    tracemalloc.start()
    try:
        async for piece in await _service(sqlite_ledger, tmp_path).export(session, ExportFormat(wanted)):
            total += len(piece)
            assert len(piece) < 2 * 1024 * 1024
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total > (300 if wanted == "json" else 80) * 1024 * 1024
    assert peak < 40 * 1024 * 1024
