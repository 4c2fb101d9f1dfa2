"""Terminals and background commands: recorded first, then run in the Session's sandbox; their ends are found out."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace

from milepost.domain.errors import (
    InvalidInput,
    MilepostError,
    ProcessLimit,
    ProcessNotFound,
    SandboxLost,
    SandboxUnavailable,
    SessionClosed,
    SessionNotFound,
    StorageUnavailable,
)
from milepost.domain.events import StreamKind
from milepost.domain.processes import (
    ProcessEnded,
    ProcessEnding,
    ProcessEvent,
    ProcessKind,
    ProcessRecord,
    ProcessStarted,
)
from milepost.domain.sessions import Session, SessionStatus
from milepost.observability.logging import get_logger
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.ports.sandbox import ProcessEnd, ProcessInfo, ProcessOutput, Sandbox, Spawn, TerminalSize
from milepost.ports.system import Clock
from milepost.services.hosts import LIVE_WORKER_US, reachable
from milepost.services.workbench import Workbench

MAX_COMMAND_CHARACTERS = 65_536
SHOWN_COMMAND = 4_000
"""Characters of a command that the record keeps. An agent's whole one is in its tool call."""
GONE = "Its sandbox was removed, or started anew."
_REFUSED = (InvalidInput, ProcessLimit, ProcessNotFound)
_log = get_logger(__name__)


def new_process_id() -> str:
    return f"prc_{secrets.token_hex(16)}"


@dataclass(frozen=True, slots=True)
class NewProcess:
    """What is to be started. `by` is `agent:NAME`, or a person."""

    process_id: str
    spec: Spawn
    by: str
    turn_id: str | None = None

    @property
    def kind(self) -> ProcessKind:
        return ProcessKind.BACKGROUND if self.spec.terminal is None else ProcessKind.TERMINAL


class ProcessService:
    """Processes of all Sessions, as far as their containers are on this host. `host` is its name."""

    def __init__(self, ledger: Ledger, clock: Clock, workbench: Workbench, host: str) -> None:
        self._ledger = ledger
        self._clock = clock
        self._workbench = workbench
        self.host = host

    async def open(self, session_id: str, spec: Spawn, by: str) -> ProcessRecord:
        """Start one for a person. Raises as `start` does, and SessionNotFound."""
        session = await reachable(self._ledger, self._clock, self.host, session_id)
        return await self.start(session, NewProcess(new_process_id(), spec, by))

    async def start(self, session: Session, new: NewProcess) -> ProcessRecord:
        """Start it. With an id that is known nothing is started twice, also after a worker was lost.

        Raises:
            EnvironmentNotReady, SandboxUnavailable, InvalidInput, ProcessLimit.
            SandboxLost: it was started before, in a container that is gone.
        """
        if new.spec.command is not None and len(new.spec.command) > MAX_COMMAND_CHARACTERS:
            raise InvalidInput(f"A command has at most {MAX_COMMAND_CHARACTERS} characters.", field="command")
        sandbox = await self._workbench.open(session)
        record = await self._ledger.write(lambda tx: self._begin(tx, session, new, sandbox.boot))
        if record.running and record.boot != sandbox.boot:
            await self._ended(record, ProcessEnding.LOST, reason=GONE)
            raise SandboxLost("The process was started before, in a sandbox that is gone.")
        if not record.running:
            return record
        try:
            info = await sandbox.spawn(record.process_id, new.spec)
        except _REFUSED as error:
            await self._ended(record, ProcessEnding.REFUSED, reason=error.message)
            raise
        return await self._seen(record, info)

    def _begin(self, tx: LedgerTx, session: Session, new: NewProcess, boot: str) -> ProcessRecord:
        session_id = session.session_id
        known = tx.processes.get(new.process_id)
        if known is not None:
            return known
        if tx.sessions.get(session_id).status is SessionStatus.CLOSED:
            raise SessionClosed(
                f"Session {session_id} is closed.", fix=f"Reopen it: milepost session reopen {session_id}"
            )
        environment = tx.environments.current(session_id)
        command = new.spec.command if new.spec.command is None else new.spec.command[:SHOWN_COMMAND]
        record = ProcessRecord(
            process_id=new.process_id,
            session_id=session_id,
            kind=new.kind,
            command=command,
            cwd=new.spec.cwd,
            host=self.host,
            generation=1 if environment is None else environment.generation,
            by=new.by,
            lifetime=new.spec.lifetime,
            started_at=self._clock.now(),
            turn_id=new.turn_id,
            boot=boot,
        )
        tx.processes.add(record)
        event = ProcessStarted(
            record.process_id,
            record.kind,
            command,
            record.cwd,
            record.by,
            record.host,
            record.generation,
            record.lifetime,
        )
        _append(tx, record, "started", event, record.started_at)
        return record

    async def of_session(self, session_id: str, limit: int = 200) -> list[ProcessRecord]:
        """Newest first, as they are now; those of another host as the ledger knows them. Raises SessionNotFound."""
        session = await self._ledger.read(lambda tx: tx.sessions.get(session_id))
        await self.refresh(session)
        return await self._ledger.read(lambda tx: tx.processes.of_session(session_id, limit=limit))

    async def get(self, session_id: str, process_id: str) -> ProcessRecord:
        """As the ledger knows it. Raises ProcessNotFound."""
        found = await self._ledger.read(lambda tx: tx.processes.get(process_id))
        if found is None or found.session_id != session_id:
            raise ProcessNotFound(
                f"The Session has no terminal or background command {process_id!r}.",
                fix=f"List them: milepost terminal list {session_id}",
            )
        return found

    async def read(self, session_id: str, process_id: str, offset: int, limit: int, wait: float = 0.0) -> ProcessOutput:
        """See `Sandbox.read`. Raises ProcessNotFound, SandboxUnavailable, EnvironmentNotReady."""
        record = await self.get(session_id, process_id)
        found = await (await self._sandbox(record)).read(process_id, offset, limit, wait)
        if not found.running and record.running:
            await self._ended(record, _ending(found.ended_by), found.exit_code)
        return found

    async def write(self, session_id: str, process_id: str, data: bytes) -> None:
        """See `Sandbox.write`."""
        await (await self._sandbox(await self.get(session_id, process_id))).write(process_id, data)

    async def resize(self, session_id: str, process_id: str, size: TerminalSize) -> None:
        """See `Sandbox.resize`."""
        await (await self._sandbox(await self.get(session_id, process_id))).resize(process_id, size)

    async def end(self, session_id: str, process_id: str, by: str) -> ProcessRecord:
        """End its whole tree; one that has ended stays as it is. Raises ProcessNotFound, SandboxUnavailable."""
        record = await self.get(session_id, process_id)
        if not record.running:
            return record
        sandbox = await self._sandbox(record)
        try:
            await sandbox.end(process_id)
        except ProcessNotFound:
            return await self._ended(record, ProcessEnding.LOST, reason=GONE)
        info = next((each for each in await sandbox.processes() if each.process_id == process_id), None)
        if info is not None and info.ended_by is ProcessEnd.EXIT:
            return await self._seen(record, info)
        return await self._ended(record, ProcessEnding.ENDED, by=by)

    async def _sandbox(self, record: ProcessRecord) -> Sandbox:
        """The sandbox that has it, which is opened, never made. Raises as `read` does."""
        if record.host != self.host:
            raise SandboxUnavailable(
                f"It runs in a sandbox of host {record.host}, and this is {self.host}.",
                fix=f"Use the API of that host, or start milepost api there: {record.host}",
            )
        session = await self._ledger.read(lambda tx: tx.sessions.get(record.session_id))
        sandbox = await self._present(session)
        if sandbox is None or sandbox.boot != record.boot:
            await self._ended(record, ProcessEnding.LOST, reason=GONE)
            raise ProcessNotFound(f"The process is gone. {GONE}")
        return sandbox

    async def _present(self, session: Session) -> Sandbox | None:
        if not await self._workbench.has(session.session_id):
            return None
        return await self._workbench.peek(session)

    # --- ends that nobody has asked about -----------------------------------------------------------------------

    async def refresh(self, session: Session) -> None:
        """Record the ends of processes of this host; what cannot be asked stays as it is. Raises StorageUnavailable."""
        running = await self._ledger.read(lambda tx: tx.processes.of_session(session.session_id, running=True))
        await self._look(session, [each for each in running if each.host == self.host])
        await self._expire(each for each in running if each.host != self.host)

    async def refresh_all(self) -> None:
        """The same for all Sessions of this host."""
        running = await self._ledger.read(lambda tx: tx.processes.running_on(self.host))
        for session_id in {each.session_id for each in running}:
            try:
                session = await self._ledger.read(lambda tx, wanted=session_id: tx.sessions.get(wanted))  # type: ignore[misc]
            except SessionNotFound:
                continue
            await self._look(session, [each for each in running if each.session_id == session_id])

    async def _look(self, session: Session, records: Iterable[ProcessRecord]) -> None:
        records = list(records)
        if not records:
            return
        try:
            sandbox = await self._present(session)
            infos = {} if sandbox is None else {each.process_id: each for each in await sandbox.processes()}
        except StorageUnavailable:
            raise
        except MilepostError as error:
            _log.info("processes.not_asked", session_id=session.session_id, error=error.code)
            await self._expire(records)
            return
        for record in records:
            info = infos.get(record.process_id)
            if sandbox is None or record.boot != sandbox.boot:
                await self._ended(record, ProcessEnding.LOST, reason=GONE)
            elif info is not None:
                await self._seen(record, info)
            elif self._clock.now() - record.started_at > LIVE_WORKER_US:
                # Younger ones may be between their record and their start.
                await self._ended(record, ProcessEnding.LOST, reason="The sandbox does not know it.")

    async def _expire(self, records: Iterable[ProcessRecord]) -> None:
        """Those that nobody can be asked about, once they cannot run any more."""
        now = self._clock.now()
        for record in records:
            if now > record.started_at + int(record.lifetime * 1_000_000) + LIVE_WORKER_US:
                reason = "Its lifetime is over, and its sandbox cannot be asked how it ended."
                await self._ended(record, ProcessEnding.LOST, reason=reason)

    async def _seen(self, record: ProcessRecord, info: ProcessInfo) -> ProcessRecord:
        if info.running:
            return record
        return await self._ended(record, _ending(info.ended_by), info.exit_code)

    async def _ended(
        self,
        record: ProcessRecord,
        ended_by: ProcessEnding,
        exit_code: int | None = None,
        *,
        by: str | None = None,
        reason: str | None = None,
    ) -> ProcessRecord:
        now = self._clock.now()
        ended = replace(record, ended_by=ended_by, exit_code=exit_code, ended_at=now, reason=reason)

        def body(tx: LedgerTx) -> ProcessRecord:
            if not tx.processes.save(ended):
                return tx.processes.get(record.process_id) or ended
            event = ProcessEnded(record.process_id, ended_by, exit_code, by, reason)
            _append(tx, record, "ended", event, now)
            return ended

        return await self._ledger.write(body)


def _append(tx: LedgerTx, record: ProcessRecord, name: str, event: ProcessEvent, now: int) -> None:
    key = f"process/{record.process_id}/{name}"
    tx.events.append(record.session_id, StreamKind.SESSION, [NewEvent(key, event)], now)
    tx.notify(record.session_id)


def _ending(found: ProcessEnd | None) -> ProcessEnding:
    return ProcessEnding.EXIT if found is None else ProcessEnding(found.value)
