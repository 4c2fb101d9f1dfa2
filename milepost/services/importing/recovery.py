"""A Session without turns gets those of a checkpoint of before 1.0: the ledger first, then a newer checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from milepost.domain.errors import InvalidInput, LegacyUnusable, MilepostError
from milepost.domain.events import StreamKind
from milepost.domain.memory import Scope
from milepost.domain.sessions import Session, SessionMode
from milepost.domain.usage import UNKNOWN_USAGE, Usage
from milepost.engine.budgets import session_scope
from milepost.ledger.legacy import LegacyConversation, LegacyMessage, conversation
from milepost.observability.logging import get_logger
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.ports.legacy import LegacyCheckpoints
from milepost.ports.system import Clock
from milepost.services.contents import Contents
from milepost.services.importing.conversation import plan_of
from milepost.services.importing.plan import Plan
from milepost.services.importing.transcript import Asked, Message, Parsed
from milepost.services.memory_tasks import rebuild_memory
from milepost.services.sessions import require_active

FORMAT = "legacy_checkpoint"
BATCH_EVENTS = 100

WriteCheckpoint = Callable[[str], Awaitable[object]]
"""Makes a checkpoint of a Session's conversation."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """`created` is False if it had been recovered before, and nothing was changed. `notes` say what was passed over."""

    session_id: str
    created: bool
    name: str
    version: int
    turns: int
    interrupted: int
    notes: tuple[str, ...]


class RecoveryService:
    """Reads old checkpoints, which stay as they are."""

    def __init__(
        self,
        ledger: Ledger,
        contents: Contents,
        clock: Clock,
        legacy: LegacyCheckpoints,
        write_checkpoint: WriteCheckpoint,
    ) -> None:
        self._ledger = ledger
        self._contents = contents
        self._clock = clock
        self._legacy = legacy
        self._write_checkpoint = write_checkpoint

    async def recover(self, session_id: str, name: str | None = None) -> Recovered:
        """Give a Session of one agent the turns of the newest readable checkpoint in `checkpoints/NAME/`.

        Without a name it is the agent's key, `SESSION:AGENT`. A turn without a finished answer is interrupted. Doing it
        again changes nothing; a kill between the ledger and the new checkpoint costs no more than that checkpoint.

        Raises:
            SessionNotFound, SessionClosed.
            InvalidInput: the Session has turns, or is not one of a single agent.
            LegacyUnusable: there is no such folder, or no checkpoint in it that can be read.
        """
        session = await self._ledger.read(lambda tx: _single(tx, session_id))
        folder = name or Scope.agent(session_id, session.agents[0]).key
        version, found, notes = await asyncio.to_thread(self._newest, folder)
        parsed = _parsed(found, session)
        plan = await plan_of(
            parsed, self._contents, self._ledger.instance_id, self._clock.now(), session=session, format_=FORMAT
        )
        now = self._clock.now()
        created = await self._ledger.write(lambda tx: _write(tx, session_id, plan, now))
        if created:
            try:
                await self._write_checkpoint(session_id)
            except MilepostError as error:
                _log.warning("checkpoint.unwritten", session_id=session_id, error=error.code, detail=error.message)
        done = plan.completed
        return Recovered(session_id, created, folder, version, done.turns, done.interrupted, tuple(notes))

    def _newest(self, name: str) -> tuple[int, LegacyConversation, list[str]]:
        notes: list[str] = []
        for version in self._legacy.checkpoints(name):
            file = self._legacy.checkpoint(name, version)
            if file is None:
                notes.append(f"Version {version} was passed over: it is no plain file of this user, or too large.")
                continue
            try:
                found = conversation(file.data)
            except LegacyUnusable as error:
                notes.append(f"Version {version} was passed over: {error.message}")
                continue
            if any(message.role == "user" and message.text.strip() for message in found.messages):
                return version, found, notes
            notes.append(f"Version {version} was passed over: nobody asked anything in it.")
        said = f" {notes[0]}" if notes else ""
        raise LegacyUnusable(
            f"There is no checkpoint in checkpoints/{name} that can be read.{said}",
            field="name",
            fix="See docs/legacy.md for the layout.",
        )


def _single(tx: LedgerTx, session_id: str) -> Session:
    session = tx.sessions.get(session_id)
    require_active(session)
    if session.mode is not SessionMode.SINGLE or len(session.agents) != 1:
        raise InvalidInput("Only a Session of a single agent can be recovered from a checkpoint.", field="session_id")
    return session


def _write(tx: LedgerTx, session_id: str, plan: Plan, now: int) -> bool:
    number = tx.turns.lock_session(session_id)
    key = f"import.completed/{plan.completed.digest}"
    if tx.events.find(session_id, key) is not None:
        return False
    if number != 1:
        raise InvalidInput(
            "The Session has turns already; only one without any can be recovered.",
            field="session_id",
            fix="Open a new Session on the folder and recover that one.",
        )
    events = list(plan.source.events())
    for first in range(0, len(events), BATCH_EVENTS):
        tx.events.append(session_id, StreamKind.SESSION, events[first : first + BATCH_EVENTS], now)
    for turn in plan.source.turns():
        tx.turns.restore(turn)
    for effect in plan.source.effects():
        tx.effects.restore(effect)
    scope = session_scope(session_id)
    spent = tx.budgets.lock([scope], now)[scope]
    more = plan.spending
    state = replace(
        spent,
        usage=spent.usage + more.usage,
        model_calls=spent.model_calls + more.model_calls,
        tool_calls=spent.tool_calls + more.tool_calls,
    )
    tx.budgets.save({scope: state}, now)
    rebuild_memory(tx, session_id, now)
    tx.events.append(session_id, StreamKind.SESSION, [NewEvent(key, plan.completed)], now)
    tx.notify(session_id)
    return True


def _parsed(found: LegacyConversation, session: Session) -> Parsed:
    """As a transcript. What no turn can have (an answer before any request, a result without its call) is left out."""
    parsed = Parsed(found.digest, session.title, None)
    open_calls: dict[str, Asked] = {}
    system = ""
    for index, item in enumerate(found.messages):
        if item.role == "system":
            system = item.text
        elif item.role == "user" and item.text.strip():
            open_calls.clear()
            parsed.systems[len(parsed.turns)] = system
            parsed.turns.append([_message(item, index, session.agents[0], found)])
        elif item.role == "tool":
            call = open_calls.pop(item.call_id, None)
            if call is not None:
                call.result = _message(item, index, session.agents[0], found)
        elif item.role == "assistant" and parsed.turns:
            message = _message(item, index, session.agents[0], found)
            open_calls.update({call.call_id: call for call in message.calls})
            parsed.turns[-1].append(message)
    _share_usage(parsed, found.usage)
    return parsed


def _message(item: LegacyMessage, index: int, agent: str, found: LegacyConversation) -> Message:
    return Message(
        line=index,
        role=item.role,
        text=item.text,
        at=item.at,
        agent=agent,
        provider=found.provider,
        model=found.model,
        calls=[Asked(call.call_id, call.tool, call.arguments) for call in item.calls],
        usage=UNKNOWN_USAGE,
        is_error=item.is_error,
    )


def _share_usage(parsed: Parsed, usage: Usage) -> None:
    """The checkpoint knows the sum alone: the last answer has it, so that the Session's total is right."""
    answers = [message for turn in parsed.turns for message in turn[1:]]
    if answers and usage.total_tokens:
        for message in answers:
            message.usage = Usage()
        answers[-1].usage = usage
