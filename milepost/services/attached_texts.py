"""What a model reads of attached files beside what it was given with a request."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.domain.attachments import AttachmentRef
from milepost.domain.errors import AttachmentNotFound, InvalidInput
from milepost.ledger.attached import contained
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.services.contents import Contents

PAGE = 50
MAX_TURNS = 2_000
"""How far back files are looked for; a model is given fewer turns than that."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Characters `offset` to `end` of `size`; `note` says what is missing of the file's text."""

    name: str
    text: str
    offset: int
    end: int
    size: int
    note: str | None


class AttachmentReader:
    """Finds files in the live turns of a Session, up to the turn that asks."""

    def __init__(self, ledger: Ledger, contents: Contents) -> None:
        self._ledger = ledger
        self._contents = contents

    async def read(self, turn_id: str, name: str, offset: int, limit: int) -> Piece:
        """A part of a file's text. Of files with one name it is the one attached last.

        Raises AttachmentNotFound (names those there are), InvalidInput (no text, or an offset after its end).
        """
        refs = await self._ledger.read(lambda tx: conversation_files(tx, turn_id))
        found = next((ref for ref in refs if name in (ref.name, ref.attachment_id)), None)
        if found is None:
            names = ", ".join(dict.fromkeys(repr(ref.name) for ref in refs[:PAGE])) or "none"
            raise AttachmentNotFound(f"No attached file has the name {name[:255]!r}. Attached files: {names}.")
        if found.text is None:
            why = f" {found.note}" if found.note else ""
            raise InvalidInput(f"The file {found.name!r} has no text that could be read.{why}")
        text = (await self._contents.load_bytes(found.text)).decode("utf-8", "replace")
        if offset >= len(text):
            raise InvalidInput(f"The file {found.name!r} has {len(text)} characters; offset {offset} is after its end.")
        end = min(offset + limit, len(text))
        return Piece(found.name, contained(text[offset:end]), offset, end, len(text), found.note)


def conversation_files(tx: LedgerTx, turn_id: str) -> list[AttachmentRef]:
    """The files that a turn and the turns before it refer to, unless a rewind took those out; the newest first."""
    turn = tx.turns.get(turn_id)
    found = list(reversed(turn.request.attachments))
    before, seen = turn.number, 0
    while seen < MAX_TURNS:
        page = tx.turns.page(turn.session_id, before_number=before, limit=PAGE)
        for earlier in page:
            if not earlier.superseded:
                found += reversed(earlier.request.attachments)
        if len(page) < PAGE:
            break
        before, seen = page[-1].number, seen + len(page)
    # A file that is given with every turn is there once.
    return list({ref.attachment_id: ref for ref in found}.values())
