"""Long-term memory in JSON files: an example of `milepost.ports.longterm.LongTermStore`.

Each namespace is a file that is replaced as a whole by every change (a new file, synced, then renamed), so a crash
leaves the old or the new state. One process at a time may use a folder.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from milepost.ports.longterm import (
    Change,
    EmbeddingSpace,
    LongTermStore,
    Namespace,
    StorageUnavailable,
    Stored,
    Vector,
    VersionConflict,
    Write,
)

T = TypeVar("T")
Data = dict[str, Any]


async def open_store(settings: Mapping[str, Any], folder: Path) -> LongTermStore:
    """The entry point."""
    return JsonStore(folder, pretty=bool(settings.get("pretty", False)))


class JsonStore:
    """`LongTermStore`: work is done in a thread, one call after another."""

    def __init__(self, folder: Path, *, pretty: bool = False) -> None:
        self._folder = folder
        self._indent = 1 if pretty else None
        self._lock = asyncio.Lock()

    async def namespaces(self, after: str, limit: int) -> list[Namespace]:
        def work() -> list[Namespace]:
            found = sorted((_namespace(data) for data in self._all()), key=lambda place: place.name)
            return [place for place in found if place.name > after][:limit]

        return await self._run(work)

    async def namespace(self, name: str) -> Namespace | None:
        return await self._read(name, None, _namespace)

    async def get(self, namespace: str, keys: Sequence[str]) -> dict[str, Stored]:
        return await self._read(
            namespace, {}, lambda data: {key: _stored(data, key) for key in keys if _live(data, key)}
        )

    async def page(self, namespace: str, after: str, limit: int) -> list[Stored]:
        return await self._read(
            namespace, [], lambda data: [_stored(data, key) for key in _keys(data) if key > after][:limit]
        )

    async def put(self, namespace: str, writes: Sequence[Write]) -> list[Stored]:
        def change(data: Data) -> list[Stored]:
            fresh = [write for write in writes if not _made(data, write)]
            for write in fresh:
                _put(data, write)
            return [_stored(data, write.key) for write in writes]

        return await self._change(namespace, change, at=writes[0].at) if writes else []

    async def delete(self, namespace: str, key: str, expected: int | None, at: int) -> bool:
        def change(data: Data) -> bool:
            _expect(data, key, expected)
            if not _live(data, key):
                return False
            record = data["records"][key]
            version, data["changes"] = record["version"] + 1, data["changes"] + 1
            data["records"][key] = {"version": version, "change": data["changes"], "updated_at": at}
            return True

        if await self.namespace(namespace) is None:
            _expect({"records": {}}, key, expected)
            return False
        return await self._change(namespace, change)

    async def changes(self, namespace: str, after: int, limit: int) -> list[Change]:
        def read(data: Data) -> list[Change]:
            newer = [(record["change"], key) for key, record in data["records"].items() if record["change"] > after]
            return [_change(data, key) for _, key in sorted(newer)[:limit]]

        return await self._read(namespace, [], read)

    async def vectors(self, namespace: str, keys: Sequence[str]) -> dict[str, Vector]:
        def read(data: Data) -> dict[str, Vector]:
            found = {key: _vector(data, key) for key in keys if _live(data, key)}
            return {key: vector for key, vector in found.items() if vector is not None}

        return await self._read(namespace, {}, read)

    async def put_vectors(self, namespace: str, vectors: Sequence[tuple[str, int, Vector]]) -> int:
        def change(data: Data) -> int:
            kept = [item for item in vectors if _live(data, item[0]) and data["records"][item[0]]["change"] == item[1]]
            for key, _, vector in kept:
                data["space"] = data["space"] or _name(vector.space)
                data["records"][key]["vectors"][_name(vector.space)] = _packed(vector)
                if data["space"] == _name(vector.space):
                    data["changes"] += 1
                    data["records"][key]["change"] = data["changes"]
            return len(kept)

        return await self._change(namespace, change) if await self.namespace(namespace) is not None else 0

    async def lacking(self, namespace: str, space: EmbeddingSpace, after: str, limit: int) -> list[Stored]:
        def read(data: Data) -> list[Stored]:
            keys = [key for key in _keys(data) if key > after]
            return [_stored(data, key) for key in keys if _name(space) not in data["records"][key]["vectors"]][:limit]

        return await self._read(namespace, [], read)

    async def switch(self, namespace: str, space: EmbeddingSpace, changes: int) -> bool:
        def change(data: Data) -> bool:
            if data["changes"] != changes:
                return False
            data["space"] = _name(space)
            return True

        return await self._change(namespace, change) if await self.namespace(namespace) is not None else False

    async def drop_others(self, namespace: str, limit: int) -> int:
        def change(data: Data) -> int:
            others = [
                (record["vectors"], space)
                for record in data["records"].values()
                for space in record.get("vectors", {})
                if space != data["space"]
            ]
            for vectors, space in others[:limit]:
                del vectors[space]
            return len(others[:limit])

        return await self._change(namespace, change) if await self.namespace(namespace) is not None else 0

    async def expired(self, now: int, limit: int) -> list[tuple[str, str]]:
        def work() -> list[tuple[str, str]]:
            return [
                (data["name"], key)
                for data in self._all()
                for key in _keys(data)
                if (at := data["records"][key]["expires_at"]) is not None and at <= now
            ][:limit]

        return await self._run(work)

    async def forget(self, before: int, limit: int) -> int:
        def change(data: Data) -> int:
            gone = [
                key
                for key, record in data["records"].items()
                if "document" not in record and record["updated_at"] < before
            ]
            for key in gone[:limit]:
                data["forgotten"] = max(data["forgotten"], data["records"].pop(key)["change"])
            return len(gone[:limit])

        names = await self._run(lambda: [data["name"] for data in self._all()])
        return sum([await self._change(name, change) for name in names])

    async def close(self) -> None:
        """Nothing stays open between calls."""

    # --- files --------------------------------------------------------------------------------------------------

    async def _run(self, work: Callable[[], T]) -> T:
        async with self._lock:
            try:
                return await asyncio.to_thread(work)
            except (OSError, ValueError) as error:
                raise StorageUnavailable(f"The memory files in {self._folder} cannot be used: {error}") from error

    async def _read(self, namespace: str, nothing: T, look: Callable[[Data], T]) -> T:
        def work() -> T:
            data = self._load(namespace)
            return nothing if data is None else look(data)

        return await self._run(work)

    async def _change(self, namespace: str, change: Callable[[Data], T], at: int = 0) -> T:
        def work() -> T:
            empty = {"name": namespace, "space": None, "changes": 0, "forgotten": 0, "created_at": at, "records": {}}
            data = self._load(namespace) or empty
            result = change(data)
            self._save(namespace, data)
            return result

        return await self._run(work)

    def _path(self, namespace: str) -> Path:
        return self._folder / f"{hashlib.sha256(namespace.encode()).hexdigest()}.json"

    def _load(self, namespace: str) -> Data | None:
        try:
            found: Data = json.loads(self._path(namespace).read_bytes())
            return found
        except FileNotFoundError:
            return None

    def _all(self) -> Iterator[Data]:
        for path in sorted(self._folder.glob("*.json")):
            yield json.loads(path.read_bytes())

    def _save(self, namespace: str, data: Data) -> None:
        path = self._path(namespace)
        handle = os.open(path.with_suffix(".new"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=self._indent)
            file.flush()
            os.fsync(file.fileno())
        path.with_suffix(".new").replace(path)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


# --- a namespace as a JSON object -------------------------------------------------------------------------------


def _live(data: Data, key: str) -> bool:
    return "document" in data["records"].get(key, {})


def _keys(data: Data) -> list[str]:
    return sorted(key for key in data["records"] if _live(data, key))


def _name(space: EmbeddingSpace) -> str:
    return f"{space.dimensions} {space.embedder}"


def _space(name: str | None) -> EmbeddingSpace | None:
    if name is None:
        return None
    dimensions, _, embedder = name.partition(" ")
    return EmbeddingSpace(embedder, int(dimensions))


def _namespace(data: Data) -> Namespace:
    space = _space(data["space"])
    return Namespace(data["name"], space, data["changes"], data["forgotten"], len(_keys(data)), data["created_at"])


def _packed(vector: Vector) -> list[Any]:
    return [base64.b64encode(vector.data).decode(), vector.checksum]


def _vector(data: Data, key: str) -> Vector | None:
    space = _space(data["space"])
    found = data["records"][key]["vectors"].get(data["space"])
    return None if found is None or space is None else Vector(space, base64.b64decode(found[0]), found[1])


def _stored(data: Data, key: str) -> Stored:
    record = data["records"][key]
    texts = {name: base64.b64decode(record[name]) for name in ("document", "facts")}
    same = ("version", "change", "created_at", "updated_at", "expires_at", "by", "run_id", "effect_id")
    return Stored(
        key=key, **texts, **{name: record[name] for name in same}, embedded=data["space"] in record["vectors"]
    )


def _change(data: Data, key: str) -> Change:
    record = data["records"][key]
    if not _live(data, key):
        return Change(record["change"], key, None, None, None)
    return Change(record["change"], key, record["expires_at"], base64.b64decode(record["facts"]), _vector(data, key))


def _expect(data: Data, key: str, expected: int | None) -> None:
    version = data["records"][key]["version"] if _live(data, key) else 0
    if expected is not None and expected != version:
        raise VersionConflict(f"The record '{key}' is not of version {expected}.", field="expected_version")


def _made(data: Data, write: Write) -> bool:
    if write.effect_id is not None and data["records"].get(write.key, {}).get("effect_id") == write.effect_id:
        return True
    if not _over(data, write):
        _expect(data, write.key, write.expected)
    elif write.expected not in (None, 0):
        raise VersionConflict(f"The record '{write.key}' is there no more.", field="expected_version")
    return False


def _over(data: Data, write: Write) -> bool:
    """Whether the time of the record in its place is over: no reader finds it any more."""
    ends = data["records"].get(write.key, {}).get("expires_at")
    return ends is not None and ends <= write.at


def _put(data: Data, write: Write) -> None:
    known, over = data["records"].get(write.key, {}), _over(data, write)
    data["changes"] += 1
    vectors = {}
    if write.vector is not None:
        data["space"] = data["space"] or _name(write.vector.space)
        if data["space"] == _name(write.vector.space):
            vectors[data["space"]] = _packed(write.vector)
    data["records"][write.key] = {
        "version": known.get("version", 0) + 1,
        "change": data["changes"],
        "document": base64.b64encode(write.document).decode(),
        "facts": base64.b64encode(write.facts).decode(),
        "created_at": write.at if over else known.get("created_at", write.at),
        "updated_at": write.at,
        "expires_at": write.expires_at,
        "by": write.by,
        "run_id": write.run_id,
        "effect_id": write.effect_id,
        "vectors": vectors,
    }
