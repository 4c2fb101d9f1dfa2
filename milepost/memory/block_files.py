"""Core blocks as files: one for each owner, one for each shared block.

Format: JSON in UTF-8, `{"format": "milepost.core", "version": 1, "owner": KEY, "blocks": {LABEL: [VERSION, ...]}}`
with the fields of `BlockVersion`. It is replaced as a whole, under a lock that all processes of the host respect.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from milepost.domain.errors import BlockConflict, MemoryDamaged
from milepost.domain.memory import MAX_BLOCK_VERSIONS, BlockVersion, Scope
from milepost.memory.places import Places, alone, replace_file, storage_errors

FORMAT = "milepost.core"
VERSION = 1

Blocks = dict[str, tuple[BlockVersion, ...]]


class FileBlocks:
    """`ports.memory.CoreBlocks` below the data root."""

    def __init__(self, root: Path) -> None:
        self._places = Places(root)

    async def versions(self, scope: Scope, label: str) -> tuple[BlockVersion, ...]:
        return (await self.all(scope)).get(label, ())

    async def all(self, scope: Scope) -> Blocks:
        return await asyncio.to_thread(_read, self._places.core(scope), scope)

    async def write(self, scope: Scope, label: str, version: BlockVersion) -> BlockVersion:
        return await asyncio.to_thread(_write, self._places.core(scope), scope, label, version)

    async def drop(self, scope: Scope) -> None:
        await asyncio.to_thread(_drop, self._places.core(scope))


def _read(path: Path, scope: Scope) -> Blocks:
    with storage_errors(path):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return {}
    try:
        found = json.loads(data)
        if (found["format"], found["owner"]) != (FORMAT, scope.key) or found["version"] > VERSION:
            raise ValueError("it is of another owner, or of a later release")
        return {
            label: tuple(BlockVersion(**version) for version in versions) for label, versions in found["blocks"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise MemoryDamaged(
            f"The core blocks in {path} cannot be read ({str(error)[:200]}).",
            fix="Restore the file, or move it away and run 'milepost memory rebuild SESSION'.",
        ) from error


def _write(path: Path, scope: Scope, label: str, version: BlockVersion) -> BlockVersion:
    with storage_errors(path), alone(path):
        blocks = _read(path, scope)
        versions = blocks.get(label, ())
        for known in versions:
            if known.key == version.key:
                return known
        newest = versions[-1].number if versions else 0
        if version.number != newest + 1:
            raise BlockConflict(f"The block '{label}' is at version {newest} by now.", fix="Read it and try again.")
        blocks[label] = (*versions, version)[-MAX_BLOCK_VERSIONS:]
        replace_file(path, _encoded(scope, blocks))
        return version


def _encoded(scope: Scope, blocks: Blocks) -> bytes:
    value: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "owner": scope.key,
        "blocks": {label: [asdict(version) for version in versions] for label, versions in sorted(blocks.items())},
    }
    # Escapes, since a text may have half a surrogate pair, which UTF-8 does not.
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"


def _drop(path: Path) -> None:
    with storage_errors(path), alone(path):
        path.unlink(missing_ok=True)
