"""A Session as one HTML page that needs nothing else: no network, and to be read no script either.

What a person, a model or a tool wrote is only ever text: escaped, or Markdown rendered with raw HTML switched off. The
page forbids itself everything but its own style and script, by their digests.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import hashlib
import html
from collections.abc import AsyncGenerator, AsyncIterator
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from milepost.domain.content import Content
from milepost.domain.effects import EffectState
from milepost.domain.sessions import Session
from milepost.domain.turns import Turn
from milepost.domain.usage import Usage
from milepost.ledger.story import AgentOpens, Block, Calls, Reasons, Remarks, Says, TurnCloses, TurnOpens
from milepost.services.contents import Contents
from milepost.services.exporting.files import AttachedFiles
from milepost.services.exporting.texts import (
    CALL_STATES,
    MAX_OUTPUT_CHARACTERS,
    clean,
    duration,
    moment,
    one_line,
    spent,
)

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

MAX_RENDERED_CHARACTERS = 64 * 1024
"""A longer answer is shown as the plain text it is."""

SHORT = 2_000

_BAD_CALLS = (EffectState.FAILED, EffectState.UNCERTAIN, EffectState.DENIED)


_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="generator" content="Milepost">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<div class="bar"><strong>{title}</strong><span class="script">
<output id="told" for="find" aria-live="polite"></output>
<input id="find" type="search" placeholder="Search this page ( / )" aria-label="Search this page">
<button id="fold" type="button">Expand all</button></span></div>
<div class="page">
"""


class HtmlExport:
    """Writes the page: `opening`, `link` for each turn, `facts`, blocks, `closing`."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._files = AttachedFiles(contents)

    def opening(self, session: Session) -> str:
        """The page up to its list of turns."""
        title = _escape(one_line(session.title, 200))
        head = _HEAD.format(policy=policy(), title=title, style=_asset("page.css"))
        return head + '<nav aria-label="Turns"><h2>Turns</h2><ol>\n'

    def link(self, turn: Turn) -> str:
        """A turn in the list of turns."""
        old = ' class="old"' if turn.superseded else ""
        text = _escape(one_line(turn.request.text.text, 80))
        return f'<li><a href="#turn-{turn.number}"{old}><b>{turn.number}</b> <span>{text}</span></a></li>\n'

    def facts(self, session: Session, at: int, turns: int, usage: Usage) -> str:
        """What the page is about."""
        facts = {
            "Folder": session.workspace.path,
            "Agents": ", ".join(session.agents),
            "Turns": f"{turns:,}",
            "Spent": spent(usage),
            "Opened": moment(session.created_at),
            "Exported": moment(at),
            "Session": session.session_id,
        }
        rows = "".join(f"<dt>{name}</dt><dd>{_escape(one_line(value, 1000))}</dd>\n" for name, value in facts.items())
        title = _escape(one_line(session.title, 200))
        return f'</ol></nav>\n<main>\n<header class="facts"><h1>{title}</h1>\n<dl>{rows}</dl></header>\n'

    def closing(self) -> str:
        """The end of the page."""
        return f"</main>\n</div>\n<script>{_asset('page.js')}</script>\n</body>\n</html>\n"

    async def block(self, block: Block) -> AsyncGenerator[str, None]:
        """One block, in pieces."""
        match block:
            case TurnOpens():
                yield _turn(block.turn)
                async for piece in self._whole(block.turn.request.text):
                    yield piece
                async for piece in self._files.of(block.turn):
                    yield piece
                yield "</div>\n"
            case AgentOpens():
                route = _escape(one_line(f"{block.provider} / {block.model}", 300))
                yield f'<p class="agent"><b>{_escape(one_line(block.agent, 200))}</b> · {route}</p>\n'
            case Reasons():
                yield _details(block.title, "", "", f'<pre class="plain note">{_escape(block.text)}</pre>')
            case Says():
                async for piece in self._says(block):
                    yield piece
            case Calls():
                yield _call(block)
            case Remarks():
                kind = "note" if block.turn_id else "note between"
                yield f'<p class="{kind}">{_escape(one_line(block.text, 2000))}</p>\n'
            case TurnCloses():
                yield _end(block.turn)

    async def _says(self, block: Says) -> AsyncIterator[str]:
        content = block.text
        if content.blob is None and len(content.text) <= MAX_RENDERED_CHARACTERS:
            # Rendering a long text takes a while, which nothing else should wait for.
            made = (
                await asyncio.to_thread(rendered, content.text) if len(content.text) > SHORT else rendered(content.text)
            )
            yield f'<div class="say">{made}</div>\n'
        else:
            yield '<div class="say">'
            async for piece in self._whole(content):
                yield piece
            yield "</div>\n"
        if block.partial:
            yield '<p class="note">The answer was cut short.</p>\n'

    async def _whole(self, content: Content) -> AsyncIterator[str]:
        """A whole text of any length, as it is."""
        yield '<pre class="plain">'
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        async for data in self._contents.stream(content):
            yield _escape(decoder.decode(data))
        yield f"{_escape(decoder.decode(b'', final=True))}</pre>"


def policy() -> str:
    """What the page may do: have its own style and script, and nothing else."""
    style, script = (_digest(_asset(name)) for name in ("page.css", "page.js"))
    return (
        f"default-src 'none'; style-src '{style}'; script-src '{script}'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def rendered(markdown: str) -> str:
    """Markdown as HTML. Raw HTML in it is text, images are links, and links lead to web addresses alone."""
    found: str = _markdown().render(clean(markdown))
    return found


@cache
def _markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt

    made = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    made.validateLink = _is_web_link  # type: ignore[method-assign]
    made.add_render_rule("link_open", _link_open)
    made.add_render_rule("image", _image)
    return made


def _is_web_link(url: str) -> bool:
    return url.strip().lower().startswith(("https://", "http://", "mailto:", "#"))


def _link_open(renderer: Any, tokens: Any, index: int, options: Any, _env: Any) -> str:
    tokens[index].attrSet("rel", "noopener noreferrer nofollow")
    text: str = renderer.renderToken(tokens, index, options, _env)
    return text


def _image(_renderer: Any, tokens: Any, index: int, _options: Any, _env: Any) -> str:
    """An image would be fetched; its address is shown instead."""
    token = tokens[index]
    address = _escape(str(token.attrGet("src") or ""))
    return f'<a href="{address}" rel="noopener noreferrer nofollow">{_escape(token.content or "image")}</a>'


@cache
def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _escape(text: str) -> str:
    return html.escape(clean(text), quote=True)


def _turn(turn: Turn) -> str:
    state = turn.state.value
    old = " old" if turn.superseded else ""
    badges = f'<span class="badge {state}">{state}</span>'
    if turn.superseded:
        badges += '<span class="badge superseded">superseded</span>'
    number = turn.number
    return (
        f'<section class="turn{old}" id="turn-{number}" aria-labelledby="turn-{number}-title">\n<header>'
        f'<h2 id="turn-{number}-title"><a href="#turn-{number}">Turn {number}</a></h2>{badges}'
        f"<time>{moment(turn.created_at)}</time></header>\n"
        '<div class="ask">'
    )


def _end(turn: Turn) -> str:
    why = ""
    if turn.error_message:
        why = f'<p class="why">{_escape(turn.error_message)}</p>\n'
    took = "" if turn.ended_at is None else f"<span>{duration(turn.ended_at - turn.created_at)}</span>"
    return f"{why}<footer><span>{_escape(spent(turn.usage))}</span>{took}</footer>\n</section>\n"


def _call(call: Calls) -> str:
    state = CALL_STATES[call.state]
    bad = call.is_error or call.state in _BAD_CALLS
    if call.is_error and call.state is EffectState.SUCCEEDED:
        state = "error"
    inside = ""
    for name, content in (("Arguments", call.arguments), ("Result", call.output)):
        if content.text:
            shown = _escape(content.text[:MAX_OUTPUT_CHARACTERS])
            inside += f'<h3>{name}</h3><pre class="out" tabindex="0">{shown}</pre>'
        if len(content.text) > MAX_OUTPUT_CHARACTERS or content.blob is not None:
            inside += '<p class="note">There is more; the JSON export has all of it.</p>'
    return _details(call.tool, one_line(call.arguments.text, 160), state, inside, bad=bad)


def _details(name: str, line: str, state: str, inside: str, *, bad: bool = False) -> str:
    kind = "state bad" if bad else "state"
    return (
        f"<details><summary><b>{_escape(one_line(name, 200))}</b><code>{_escape(line)}</code>"
        f'<span class="{kind}">{_escape(state)}</span></summary>\n<div class="in">{inside}</div></details>\n'
    )
