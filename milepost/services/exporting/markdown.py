"""A Session as Markdown (CommonMark).

Answers stay the Markdown they are, except for what would break out of their place: raw HTML is escaped, headings are
set under those of the document, an open code fence is closed. What still would is indented, as everything else.
"""

from __future__ import annotations

import asyncio
import codecs
import re
from collections.abc import AsyncGenerator, AsyncIterator
from functools import cache
from typing import TYPE_CHECKING

from milepost.domain.content import Content
from milepost.domain.sessions import Session
from milepost.domain.turns import Turn
from milepost.ledger.story import AgentOpens, Block, Calls, Reasons, Remarks, Says, TurnCloses, TurnOpens
from milepost.services.contents import Contents
from milepost.services.exporting.texts import (
    CALL_STATES,
    MAX_OUTPUT_CHARACTERS,
    clean,
    duration,
    moment,
    one_line,
    size_words,
    spent,
)

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_FENCE = re.compile(r"^ {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_HEADING = re.compile(r"^ {0,3}(#{1,6})(?=[ \t]|$)")
_UNDERLINE = re.compile(r"^ {0,3}(?:=+|-+)[ \t]*$")
_CODE_SPAN = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)|[<&]")

MAX_MARKDOWN_CHARACTERS = 64 * 1024
"""A longer answer is indented."""


class MarkdownExport:
    """Writes blocks as Markdown."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    def opening(self, session: Session, at: int) -> str:
        """The head of the document."""
        return (
            f"# {_inline(one_line(session.title, 200))}\n\n"
            f"- Session: `{session.session_id}`\n"
            f"- Folder: {_code(one_line(session.workspace.path, 1000))}\n"
            f"- Agents: {_inline(one_line(', '.join(session.agents), 500))}\n"
            f"- Opened: {moment(session.created_at)}\n"
            f"- Exported: {moment(at)}\n"
        )

    async def block(self, block: Block) -> AsyncGenerator[str, None]:
        """One block, in pieces."""
        match block:
            case TurnOpens():
                yield _turn(block.turn)
                async for piece in self._text(block.turn.request.text, "> "):
                    yield piece
                yield _files(block.turn)
            case AgentOpens():
                yield f"\n### {_inline(one_line(f'{block.agent} ({block.provider} / {block.model})', 300))}\n"
            case Reasons():
                yield f"\n*{block.title}*\n"
                async for piece in self._text(Content(block.text), "> "):
                    yield piece
            case Says():
                async for piece in self._says(block):
                    yield piece
            case Calls():
                yield _call(block)
            case Remarks():
                yield f"\n*{_inline(one_line(block.text, 1000))}*\n"
            case TurnCloses():
                yield _end(block.turn)

    async def _says(self, block: Says) -> AsyncIterator[str]:
        async for piece in self._text(block.text, ""):
            yield piece
        if block.partial:
            yield "\n*The answer was cut short.*\n"

    async def _text(self, content: Content, prefix: str) -> AsyncIterator[str]:
        """Markdown that somebody wrote, or a long text as it is."""
        if content.blob is None:
            made = await asyncio.to_thread(contained, clean(content.text))
            yield f"\n{_prefix(prefix, made) if prefix else made}\n"
            return
        async for piece in self._prefixed(prefix + "    ", content):
            yield piece

    async def _prefixed(self, prefix: str, content: Content) -> AsyncIterator[str]:
        """A whole text of any length with a prefix before each line."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        yield "\n" + prefix
        async for data in self._contents.stream(content):
            yield _continued(prefix, decoder.decode(data))
        yield _continued(prefix, decoder.decode(b"", final=True)) + "\n"


def _continued(prefix: str, text: str) -> str:
    return clean(text.replace("\r\n", "\n").replace("\r", "\n")).replace("\n", "\n" + prefix)


def contained(text: str) -> str:
    """An answer that stays in its place: as Markdown if that is safe, else indented as the text it is."""
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    if len(plain) <= MAX_MARKDOWN_CHARACTERS:
        made = _tamed(plain)
        if _stays(made):
            return made
    return _prefix("    ", plain)


def _tamed(text: str) -> str:
    """Markdown with raw HTML escaped and headings set lower, as far as that shows line by line."""
    lines: list[str] = []
    fence = ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1][0] == fence[0] and len(mark[1]) >= len(fence) and not line[mark.end() :].strip():
                fence = ""
            lines.append(line)
            continue
        if mark:
            fence = mark[1]
            lines.append(line)
            continue
        heading = _HEADING.match(line)
        if heading:
            line = "#" * min(6, len(heading[1]) + 3) + line[heading.end() :]
        elif lines and lines[-1].strip() and _UNDERLINE.match(line):
            lines.append("")  # else the line before becomes a heading
        lines.append(_CODE_SPAN.sub(_escaped, line))
    if fence:
        lines.append(fence)
    return "\n".join(lines)


def _stays(text: str) -> bool:
    """Whether a reader of CommonMark finds no raw HTML and no heading of the document's own levels in it.

    What follows must be read as what it is, too: nothing may be left open.
    """
    tokens = _reader().parse(f"{text}\n\n# End\n")
    if [token.type for token in tokens[-3:]] != ["heading_open", "inline", "heading_close"] or tokens[-3].level:
        return False
    for token in tokens[:-3]:
        if token.type == "html_block" or any(child.type == "html_inline" for child in token.children or ()):
            return False
        if token.type == "heading_open" and token.level == 0 and token.tag in ("h1", "h2", "h3"):
            return False
    return True


@cache
def _reader() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark")


def _escaped(found: re.Match[str]) -> str:
    # An ampersand stays: entities cannot make a tag.
    return "&lt;" if found.group() == "<" else found.group()


def _turn(turn: Turn) -> str:
    old = ", superseded by a rewind" if turn.superseded else ""
    ended = "" if turn.ended_at is None else f" · {duration(turn.ended_at - turn.created_at)}"
    return f"\n## Turn {turn.number}: {turn.state.value}{old}\n\n{moment(turn.created_at)}{ended} · `{turn.turn_id}`\n"


def _files(turn: Turn) -> str:
    if not turn.request.attachments:
        return ""
    lines = [
        f"- {_inline(one_line(ref.name, 300))} ({_inline(one_line(ref.blob.media_type, 100))}, "
        f"{size_words(ref.blob.size)}, SHA-256 `{ref.blob.digest}`)"
        for ref in turn.request.attachments
    ]
    return "\nAttached:\n\n" + "\n".join(lines) + "\n"


def _end(turn: Turn) -> str:
    why = f"\n\n**{turn.state.value.capitalize()}:** {_inline(one_line(turn.error_message or '', 2000))}"
    return f"{why if turn.error_message else ''}\n\n*{spent(turn.usage)}*\n"


def _call(call: Calls) -> str:
    state = CALL_STATES[call.state] + (", error" if call.is_error and call.state.value == "succeeded" else "")
    output, arguments = clean(call.output.text), clean(call.arguments.text)
    cut = len(output) > MAX_OUTPUT_CHARACTERS or call.output.blob is not None
    parts = [f"\n**{_inline(one_line(call.tool, 300))}** ({state})\n"]
    if arguments:
        parts.append(f"\n{_prefix('    ', arguments[:MAX_OUTPUT_CHARACTERS])}\n")
    if output:
        parts.append(f"\nResult:\n\n{_prefix('    ', output[:MAX_OUTPUT_CHARACTERS])}\n")
    if cut:
        parts.append("\n*The result is longer; the JSON export has all of it.*\n")
    return "".join(parts)


def _prefix(prefix: str, text: str) -> str:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(prefix + line for line in lines)


def _inline(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", text)


def _code(text: str) -> str:
    ticks = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    space = " " if "`" in text else ""
    return f"{ticks}{space}{text}{space}{ticks}"
