"""Core blocks: their value, edits that lose nobody's words, history and revert."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from milepost.domain.errors import BlockConflict, BlockNotFound, BlockTooLong, InvalidInput
from milepost.domain.memory import BlockSpec, BlockVersion, Scope
from milepost.domain.memory_events import BlockSeen
from milepost.ports.ledger import Ledger
from milepost.ports.memory import CoreBlocks

MAX_TRIES = 50
"""Of an edit that others were faster than."""

PAUSE_SECONDS = 0.01
MAX_PAUSE_SECONDS = 0.5

Change = Callable[[str], str]
"""From the value as it is now to the new one; raises if it does not fit any more."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block as it is now. `current` is the version that counts, None for one that was never written to.

    `newest` is the number of the last version, which may belong to a turn that a rewind took out.
    """

    spec: BlockSpec
    current: BlockVersion | None
    newest: int

    @property
    def value(self) -> str:
        return self.spec.value if self.current is None else self.current.value

    @property
    def number(self) -> int:
        return 0 if self.current is None else self.current.number

    @property
    def seen(self) -> BlockSeen:
        """What a turn records of it."""
        digest = hashlib.sha256(self.value.encode("utf-8", "surrogatepass")).hexdigest()
        return BlockSeen(self.spec.label, self.number, digest, len(self.value), self.spec.shared)


@dataclass(frozen=True, slots=True)
class Author:
    """Who edits, and in what: a turn's tool call (`key` is its effect), or a person (`key` is new)."""

    by: str
    key: str
    at: int
    turn_id: str = ""
    turn_number: int = 0
    note: str = ""


class BlockService:
    """Reads and edits blocks. A private block has the newest value that no superseded turn has written."""

    def __init__(self, ledger: Ledger, store: CoreBlocks) -> None:
        self._ledger = ledger
        self._store = store

    async def all(self, owner: Scope, specs: tuple[BlockSpec, ...]) -> list[Block]:
        """The blocks of an agent, in the order of their declaration. Raises MemoryUnavailable, MemoryDamaged."""
        hidden = await self._superseded(owner)
        own = await self._store.all(owner) if any(not spec.shared for spec in specs) else {}
        found = []
        for spec in specs:
            versions = own.get(spec.label, ())
            if spec.shared:
                versions = await self._store.versions(spec.scope(owner), spec.label)
            found.append(_block(spec, versions, frozenset() if spec.shared else hidden))
        return found

    async def one(self, owner: Scope, spec: BlockSpec) -> Block:
        """Raises MemoryUnavailable, MemoryDamaged."""
        return (await self.all(owner, (spec,)))[0]

    async def history(self, owner: Scope, spec: BlockSpec) -> list[tuple[BlockVersion, bool]]:
        """The kept versions, newest first, each with whether a rewind took its turn out."""
        versions = await self._store.versions(spec.scope(owner), spec.label)
        hidden = frozenset() if spec.shared else await self._superseded(owner)
        return [(version, version.turn_id in hidden) for version in reversed(versions)]

    async def edit(
        self, owner: Scope, spec: BlockSpec, author: Author, change: Change, *, expected: int | None = None
    ) -> BlockVersion:
        """Apply a change to the value as it is, on the newer one if somebody was faster; twice the same key is once.

        With `expected` the edit is only made if that is the number of the version that counts.

        Raises:
            BlockConflict: it is not; or others were faster 50 times.
            BlockTooLong: names the limit.
            InvalidInput: the change does not fit the value. MemoryUnavailable, MemoryDamaged.
        """
        scope = spec.scope(owner)
        for number in range(MAX_TRIES):
            versions = await self._store.versions(scope, spec.label)
            for version in versions:
                if version.key == author.key:
                    return version
            hidden = frozenset() if spec.shared else await self._superseded(owner)
            block = _block(spec, versions, hidden)
            if expected is not None and block.number != expected:
                raise BlockConflict(
                    f"The block '{spec.label}' is at version {block.number}, not {expected}.",
                    fix="Read it and decide again.",
                )
            value = change(block.value)
            check_value(spec, value)
            try:
                return await self._store.write(scope, spec.label, _version(author, block.newest + 1, value))
            except BlockConflict:
                pause = min(PAUSE_SECONDS * 2**number, MAX_PAUSE_SECONDS)
                await asyncio.sleep(pause * random.random())  # noqa: S311 - jitter, not a secret
        raise BlockConflict(f"Others wrote the block '{spec.label}' {MAX_TRIES} times meanwhile.", fix="Try again.")

    async def revert(self, owner: Scope, spec: BlockSpec, author: Author, to: int) -> BlockVersion:
        """Make the value of an earlier version the newest one; 0 is the value of the configuration.

        Raises BlockNotFound, and what `edit` does.
        """
        value = spec.value
        if to:
            versions = await self._store.versions(spec.scope(owner), spec.label)
            found = next((version for version in versions if version.number == to), None)
            if found is None:
                kept = f"{versions[0].number} to {versions[-1].number}" if versions else "none"
                raise BlockNotFound(f"The block '{spec.label}' has no version {to}; kept are {kept}.", field="to")
            value = found.value
        noted = replace(author, note=author.note or f"reverted to version {to}")
        return await self.edit(owner, spec, noted, lambda _: value)

    async def _superseded(self, owner: Scope) -> frozenset[str]:
        session = owner.session_id
        if session is None:
            return frozenset()
        return await self._ledger.read(lambda tx: tx.turns.superseded(session))


def _block(spec: BlockSpec, versions: tuple[BlockVersion, ...], hidden: frozenset[str]) -> Block:
    counting = [version for version in versions if version.turn_id not in hidden]
    return Block(spec, counting[-1] if counting else None, versions[-1].number if versions else 0)


def _version(author: Author, number: int, value: str) -> BlockVersion:
    return BlockVersion(
        number=number,
        value=value,
        at=author.at,
        by=author.by,
        key=author.key,
        turn_id=author.turn_id,
        turn_number=author.turn_number,
        note=author.note,
    )


def check_value(spec: BlockSpec, value: str) -> None:
    """Raises BlockTooLong."""
    if len(value) > spec.limit:
        raise BlockTooLong(
            f"The block '{spec.label}' would have {len(value)} characters; its limit is {spec.limit}.",
            field="value",
            fix="Shorten it: keep what matters, in fewer words.",
        )


def appended(text: str) -> Change:
    """Add a text on a line of its own."""
    return lambda value: f"{value}\n{text}" if value else text


def replaced(old: str, new: str, label: str) -> Change:
    """Replace the one place of a text. The change raises InvalidInput if there is none, or more than one."""

    def change(value: str) -> str:
        places = value.count(old) if old else 0
        if places != 1:
            what = f"{places} times" if places else "not"
            raise InvalidInput(
                f"'old' is {what} in the block '{label}'.",
                field="old",
                fix="Copy it exactly from the block, with enough around it to be the only such place.",
            )
        return value.replace(old, new)

    return change


def set_to(text: str) -> Change:
    """Give the block a new value, whatever it was."""
    return lambda _: text
