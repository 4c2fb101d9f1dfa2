"""A sandbox without a container, for tests of what stands above the port. It runs nothing on the host."""

from __future__ import annotations

import asyncio
import json
import posixpath
from dataclasses import dataclass, field, replace

from milepost.domain.errors import SandboxLost, SandboxUnavailable, SandboxUnsupported
from milepost.ports.sandbox import (
    Exec,
    Holding,
    ListDir,
    OnOutput,
    Operation,
    Outcome,
    ReadFile,
    Sandbox,
    SandboxHealth,
    SandboxSpec,
    WriteFile,
)
from tests.support.processes import MemoryProcess, MemoryProcesses


@dataclass
class MemorySandbox(MemoryProcesses):
    """Keeps files and a journal of every operation that really began, by effect id."""

    files: dict[str, bytes] = field(default_factory=dict)
    journal: list[tuple[str, Operation]] = field(default_factory=list)
    outcomes: dict[str, asyncio.Future[Outcome]] = field(default_factory=dict)
    killed: set[str] = field(default_factory=set)
    said: dict[str, list[tuple[str, bytes]]] = field(default_factory=dict)
    listeners: dict[str, list[OnOutput]] = field(default_factory=dict)
    lost: bool = False
    boot: str = "memory-1"
    ports: dict[int, str] = field(default_factory=dict)
    placement: None = None
    hangs: bool = False
    """Whether every operation runs until it is killed, not only commands that begin with `hang`."""
    spawned: dict[str, MemoryProcess] = field(default_factory=dict)

    async def perform(
        self, effect_id: str, operation: Operation, on_output: OnOutput | None = None, *, boot: str | None = None
    ) -> Outcome:
        if effect_id in self.outcomes:
            return replace(await self._followed(effect_id, on_output), attached=True)
        if boot not in (None, self.boot):
            raise SandboxUnavailable("The sandbox was restarted.")
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.outcomes[effect_id] = future
        self.journal.append((effect_id, operation))
        if effect_id in self.killed:
            future.set_result(Outcome(killed=True))
        elif not (self.hangs or (isinstance(operation, Exec) and operation.command.startswith("hang"))):
            future.set_result(self._run(operation))
        return await self._followed(effect_id, on_output)

    async def _followed(self, effect_id: str, on_output: OnOutput | None) -> Outcome:
        """The outcome; meanwhile the listener is given all that was and is said."""
        for stream, data in self.said.get(effect_id, ()) if on_output else ():
            on_output(stream, data)  # type: ignore[misc]
        listeners = self.listeners.setdefault(effect_id, [])
        listeners += [on_output] if on_output else []
        try:
            return await asyncio.shield(self.outcomes[effect_id])
        finally:
            if on_output:
                listeners.remove(on_output)

    def says(self, effect_id: str, stream: str, data: bytes) -> None:
        """A command that runs puts something out."""
        self.said.setdefault(effect_id, []).append((stream, data))
        for listener in self.listeners.get(effect_id, ()):
            listener(stream, data)

    def _run(self, operation: Operation) -> Outcome:
        match operation:
            case Exec(command=command) if command.startswith("exit "):
                return Outcome(exit_code=int(command.removeprefix("exit ")), stderr=b"failed\n")
            case Exec(command=command) if command.startswith("big "):
                return Outcome(exit_code=0, stdout=b"x" * int(command.removeprefix("big ")))
            case Exec(command=command, keep_cwd=True) if command.startswith("cd "):
                return Outcome(exit_code=0, detail=_place(command.removeprefix("cd "), operation.cwd))
            case Exec(command=command):
                return Outcome(exit_code=0, stdout=f"ran {command}\n".encode())
            case WriteFile(path=path, data=data):
                self.files[path] = data
                return Outcome(detail={"bytes": len(data)})
            case ReadFile(path=path):
                if path not in self.files:
                    return Outcome(error_code="not_found", error=f"{path} does not exist.")
                return Outcome(stdout=self.files[path], detail={"size": len(self.files[path])})
            case ListDir():
                lines = [
                    json.dumps({"name": name, "kind": "file", "size": len(self.files[name])}) for name in self.files
                ]
                return Outcome(stdout="\n".join(sorted(lines)).encode(), detail={"entries": len(lines)})
            case _:
                text = f"A sandbox in memory has no folder for {type(operation).__name__} to work on."
                return Outcome(error_code=SandboxUnsupported.code, error=text)

    async def attach(
        self,
        effect_id: str,
        on_output: OnOutput | None = None,
        *,
        operation: Operation | None = None,
        boot: str | None = None,
    ) -> Outcome:
        if self.lost or effect_id not in self.outcomes:
            if operation is not None and boot == self.boot and not self.lost:
                return await self.perform(effect_id, operation, on_output)
            raise SandboxLost("The container is gone.")
        return replace(await self._followed(effect_id, on_output), attached=True)

    async def kill(self, effect_id: str) -> None:
        self.killed.add(effect_id)
        future = self.outcomes.get(effect_id)
        if future is not None and not future.done():
            future.set_result(Outcome(stdout=b"partial\n", killed=True))

    def commands(self) -> list[str]:
        return [operation.command for _, operation in self.journal if isinstance(operation, Exec)]


def _place(path: str, cwd: str) -> dict[str, int | str]:
    """Where `cd` leads, as the port says it."""
    place = posixpath.normpath(posixpath.join("/workspace", cwd, path))
    if place != "/workspace" and not place.startswith("/workspace/"):
        return {"cwd_outside": place}
    return {"cwd": posixpath.relpath(place, "/workspace")}


class MemorySandboxes:
    """One `MemorySandbox` per Session; a removed one is kept to look at, and the next `open` makes a new one."""

    def __init__(self) -> None:
        self.by_session: dict[str, MemorySandbox] = {}
        self.hang = False
        """Whether sandboxes that are opened from now on hang in every operation."""
        self.removed: set[str] = set()
        self.health = SandboxHealth(ok=True, detail="in memory")

    async def check(self) -> SandboxHealth:
        return self.health

    async def open(self, spec: SandboxSpec) -> Sandbox:
        if spec.session_id not in self.by_session or spec.session_id in self.removed:
            self.by_session[spec.session_id] = MemorySandbox(hangs=self.hang)
            self.removed.discard(spec.session_id)
        return self.by_session[spec.session_id]

    async def sessions(self) -> frozenset[str]:
        return frozenset(self.by_session) - self.removed

    async def remove(self, session_id: str) -> None:
        self.removed.add(session_id)

    async def destroy(self, session_id: str) -> None:
        self.removed.add(session_id)

    async def holdings(self) -> tuple[Holding, ...]:
        return tuple(Holding("container", name, name, 1, "") for name in sorted(await self.sessions()))

    async def discard(self, holding: Holding) -> None:
        await self.remove(holding.session_id)

    async def close(self) -> None:
        return
