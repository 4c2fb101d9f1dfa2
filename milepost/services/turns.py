"""Turns: durable begin, reading with derived status, stop."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from milepost.contracts.naming import turn_workflow_id
from milepost.domain.agents import AgentConfig
from milepost.domain.budgets import Limits
from milepost.domain.errors import (
    AgentUnknown,
    IdempotencyMismatch,
    InvalidInput,
    PayloadTooLarge,
    TurnNotFound,
    TurnNotRunning,
    TurnRunning,
)
from milepost.domain.events import StopRequested, StreamKind, TurnBegun, TurnStopped
from milepost.domain.sessions import Session
from milepost.domain.suggestions import nearest
from milepost.domain.turns import Overrides, Turn, TurnOptions, TurnRequest, TurnState, TurnStatus
from milepost.domain.usage import Usage
from milepost.engine.casting import cast
from milepost.engine.overrides import overridden, with_skills
from milepost.ledger.codec import canonical_bytes, to_json
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent, OutboxKind
from milepost.ports.notifier import OUTBOX_TOPIC, stop_topic
from milepost.ports.system import Clock, IdSource
from milepost.services.contents import Contents, text_bytes
from milepost.services.lives import require_started
from milepost.services.selecting import select_attachments
from milepost.services.sessions import MAX_PAGE, require_active
from milepost.services.statuses import status_at

MAX_REQUEST_BYTES = 4 * 1024 * 1024
MAX_SCRIPT_BYTES = 4 * 1024 * 1024
_CLIENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,200}")


class ValidateRoute(Protocol):
    """Raises ProviderUnknown, SecretMissing or InvalidInput if no call could ever be made; no network."""

    def __call__(self, provider: str, model: str, script: str | None = None) -> None: ...


FilesRead = Callable[[str], Awaitable[None]]
"""Waits until the files that a Session's next turn refers to have been read, for a bounded time."""


async def nothing_to_read(session_id: str) -> None:
    """`FilesRead` where there are no files."""


@dataclass(frozen=True, slots=True)
class BeginTurn:
    """A request for a turn. `turn_id` and `idempotency_key` make sending it again harmless."""

    session_id: str
    text: str
    agent: str | None = None
    provider: str | None = None
    model: str | None = None
    script: str | None = None
    budget: Limits | None = None
    overrides: Overrides | None = None
    turn_id: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class RetryTurn:
    """A turn to do again. `new_turn_id` and `idempotency_key` make sending it again harmless."""

    turn_id: str
    new_turn_id: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn with its derived status and whether this call created it."""

    turn: Turn
    status: TurnStatus
    created: bool = False


@dataclass(frozen=True, slots=True)
class _Keys:
    """How a turn that may be sent again is recognized, and the turn it does again."""

    turn_id: str | None
    idempotency_key: str | None
    retry_of: str | None = None


class TurnService:
    """Use cases of turns. `begin` and `stop` are one transaction each and talk to nobody but the ledger."""

    def __init__(
        self,
        ledger: Ledger,
        contents: Contents,
        clock: Clock,
        ids: IdSource,
        agents: Mapping[str, AgentConfig],
        validate_route: ValidateRoute,
        files_read: FilesRead = nothing_to_read,
    ) -> None:
        self._ledger = ledger
        self._contents = contents
        self._clock = clock
        self._ids = ids
        self._agents = agents
        self._validate_route = validate_route
        self._files_read = files_read

    async def begin(self, request: BeginTurn) -> TurnView:
        """Accept a turn durably: turn row, `turn.begun` and outbox row in one transaction.

        The same key (or turn id) with the same content returns the existing turn.

        Raises:
            SessionNotFound, SessionClosed, AgentUnknown, AgentIsStopped, ProviderUnknown, SecretMissing,
            PayloadTooLarge, InvalidInput, TurnRunning (names the running turn), IdempotencyMismatch,
            StorageUnavailable.
        """
        _check_request(request)
        await self._check_script(request)
        await self._files_read(request.session_id)
        accepted = TurnRequest(
            await self._contents.store(request.text),
            TurnOptions(
                agent=request.agent,
                provider=request.provider,
                model=request.model,
                script=None if request.script is None else await self._contents.store(request.script),
                budget=request.budget,
                overrides=request.overrides,
            ),
        )
        return await self._accept(request.session_id, accepted, _Keys(request.turn_id, request.idempotency_key))

    async def retry(self, request: RetryTurn, *, dry_run: bool = False) -> TurnView:
        """Send the request of an ended turn once more, as a new turn linked to it; the old one stays as it is.

        With `dry_run` everything is checked, nothing is written, and the old turn is returned.

        Raises:
            TurnNotFound, TurnRunning, SessionClosed, AgentUnknown, AgentIsStopped, ProviderUnknown, SecretMissing,
            IdempotencyMismatch, StorageUnavailable.
        """
        keys = _Keys(request.new_turn_id, request.idempotency_key, request.turn_id)
        _check_keys(keys)
        old = (await self.get(request.turn_id)).turn
        if not dry_run:
            await self._files_read(old.session_id)
            return await self._accept(old.session_id, replace(old.request, attachments=()), keys)

        def body(tx: LedgerTx) -> TurnView:
            session = tx.sessions.get(old.session_id)
            require_active(session)
            self._check_routes(old.request.options, session)
            self._check_lives(tx, old.request.options, session)
            running = tx.turns.running(old.session_id)
            if running is not None:
                raise turn_running(running)
            return TurnView(old, TurnStatus.ENDED)

        return await self._ledger.read(body)

    async def _accept(self, session_id: str, accepted: TurnRequest, keys: _Keys) -> TurnView:
        digest = _content_digest(accepted)
        turn_id = keys.turn_id or self._ids.new("trn")
        now = self._clock.now()

        def body(tx: LedgerTx) -> TurnView:
            number = tx.turns.lock_session(session_id)
            existing = _existing(tx, session_id, keys, digest)
            if existing is not None:
                return self._view(tx, existing, now)
            session = tx.sessions.get(session_id)
            require_active(session)
            self._check_routes(accepted.options, session)
            self._check_lives(tx, accepted.options, session)
            running = tx.turns.running(session_id)
            if running is not None:
                raise turn_running(running)
            files = select_attachments(tx, session_id, turn_id, once=keys.retry_of is None)
            turn = Turn(
                turn_id=turn_id,
                session_id=session_id,
                number=number,
                state=TurnState.RUNNING,
                request=replace(accepted, attachments=files.refs),
                content_digest=digest,
                idempotency_key=keys.idempotency_key,
                workflow_id=turn_workflow_id(self._ledger.instance_id, turn_id),
                claimed_run=None,
                generation=0,
                created_at=now,
                dispatched_at=None,
                stop_requested_at=None,
                ended_at=None,
                error_code=None,
                error_message=None,
                usage=Usage(),
                superseded=False,
                retry_of=keys.retry_of,
            )
            tx.turns.add(turn)
            begun = TurnBegun(turn_id, number, turn.request, turn.workflow_id, keys.idempotency_key, keys.retry_of)
            event = NewEvent(f"{turn_id}/begun", begun, turn_id)
            tx.events.append(session_id, StreamKind.SESSION, [event, *files.consumed], now)
            tx.outbox.add(OutboxKind.START_TURN, turn_id, now)
            tx.notify(session_id)
            tx.notify(OUTBOX_TOPIC)
            return TurnView(turn, TurnStatus.WAITING, created=True)

        return await self._ledger.write(body)

    async def _check_script(self, request: BeginTurn) -> None:
        """Refuse a bad script before anything is written. Parsing a long one takes time, so not in the transaction."""
        if request.script is None:
            return
        keys = _Keys(request.turn_id, request.idempotency_key)

        def body(tx: LedgerTx) -> tuple[Session, Turn | None]:
            return tx.sessions.get(request.session_id), _by_keys(tx, request.session_id, keys)

        session, existing = await self._ledger.read(body)
        if existing is not None:
            # Sent again: it was checked when it was accepted, by the configuration of that time.
            return
        options = TurnOptions(request.agent, request.provider, request.model)
        for provider, model in self._routes(options, session.agents):
            await asyncio.to_thread(self._validate_route, provider, model, request.script)

    def _check_lives(self, tx: LedgerTx, options: TurnOptions, session: Session) -> None:
        for role in cast(self._agents, session.agents if options.agent is None else (options.agent,)):
            require_started(tx, role.config.agent_id)

    def _check_routes(self, options: TurnOptions, session: Session) -> None:
        for provider, model in self._routes(options, session.agents):
            self._validate_route(provider, model)
        for agent in (options.agent,) if options.agent else session.agents:
            overridden(with_skills(self._agents[agent], session.skills), options.overrides)

    def _routes(self, options: TurnOptions, agents: Sequence[str]) -> list[tuple[str, str]]:
        """What every part of the turn will ask. Raises AgentUnknown, ConfigInvalid."""
        named = (options.agent,) if options.agent else agents
        for agent_id in named:
            if agent_id not in self._agents:
                known, meant = ", ".join(sorted(self._agents)), nearest(agent_id, self._agents)
                raise AgentUnknown(
                    f"There is no agent '{agent_id}'.", field="agent", fix=f"{meant}Known agents: {known}."
                )
        configs = [role.config for role in cast(self._agents, named)]
        routes = [(options.provider or each.provider, options.model or each.model) for each in configs]
        return list(dict.fromkeys(routes))

    async def get(self, turn_id: str) -> TurnView:
        """Raises TurnNotFound."""
        now = self._clock.now()
        return await self._ledger.read(lambda tx: self._view(tx, tx.turns.get(turn_id), now))

    async def active(self, session_id: str) -> TurnView | None:
        """The Session's running turn. Raises SessionNotFound."""
        now = self._clock.now()

        def body(tx: LedgerTx) -> TurnView | None:
            tx.sessions.get(session_id)
            running = tx.turns.running(session_id)
            return None if running is None else self._view(tx, running, now)

        return await self._ledger.read(body)

    async def page(self, session_id: str, *, before_number: int | None = None, limit: int = 50) -> list[TurnView]:
        """Newest first. Raises SessionNotFound."""
        now = self._clock.now()
        bounded = max(1, min(limit, MAX_PAGE))

        def body(tx: LedgerTx) -> list[TurnView]:
            tx.sessions.get(session_id)
            turns = tx.turns.page(session_id, before_number=before_number, limit=bounded)
            return [self._view(tx, turn, now) for turn in turns]

        return await self._ledger.read(body)

    async def stop(self, turn_id: str, *, actor: str, reason: str | None = None) -> TurnView:
        """Ask one turn to stop; asking again changes nothing.

        A turn that no workflow has claimed yet ends at once. Raises TurnNotFound, TurnNotRunning.
        """
        now = self._clock.now()
        session_id = (await self.get(turn_id)).turn.session_id

        def body(tx: LedgerTx) -> TurnView:
            tx.turns.lock_session(session_id)
            turn = tx.turns.get(turn_id)
            if turn.state.terminal:
                raise TurnNotRunning(f"Turn {turn_id} is not running; it is {turn.state}.")
            requested = StopRequested(turn_id, actor, reason)
            events = [NewEvent(f"{turn_id}/stop_requested", requested, turn_id)]
            tx.turns.request_stop(turn_id, now)
            if turn.claimed_run is None:
                stopped = TurnStopped(turn_id, Usage(), "Stopped before any work began.")
                events.append(NewEvent(f"{turn_id}/ended", stopped, turn_id))
            tx.events.append(turn.session_id, StreamKind.SESSION, events, now)
            if turn.claimed_run is None:
                tx.turns.finish(turn_id, TurnState.STOPPED, now, Usage())
                tx.outbox.drop(turn_id)
            else:
                tx.outbox.add(OutboxKind.CANCEL_TURN, turn_id, now)
                tx.notify(OUTBOX_TOPIC)
            tx.notify(turn.session_id)
            tx.notify(stop_topic(turn_id))
            return self._view(tx, tx.turns.get(turn_id), now)

        return await self._ledger.write(body)

    def _view(self, tx: LedgerTx, turn: Turn, now: int) -> TurnView:
        return TurnView(turn, status_at(tx, turn, now))


def _content_digest(accepted: TurnRequest) -> str:
    """Of what a client sends. Files are not a part of it: a request that is sent again finds none selected any more."""
    content = {key: value for key, value in to_json(accepted).items() if key != "attachments"}
    return hashlib.sha256(canonical_bytes(content)).hexdigest()


def _by_keys(tx: LedgerTx, session_id: str, keys: _Keys) -> Turn | None:
    """The turn that a turn id or an idempotency key names."""
    if keys.turn_id is not None:
        with contextlib.suppress(TurnNotFound):
            return tx.turns.get(keys.turn_id)
    return None if keys.idempotency_key is None else tx.turns.find(session_id, keys.idempotency_key)


def _existing(tx: LedgerTx, session_id: str, keys: _Keys, digest: str) -> Turn | None:
    found = _by_keys(tx, session_id, keys)
    if found is None:
        return None
    same_key = keys.idempotency_key is None or found.idempotency_key == keys.idempotency_key
    same_id = keys.turn_id is None or found.turn_id == keys.turn_id
    same_content = found.content_digest == digest and found.retry_of == keys.retry_of
    if found.session_id != session_id or not (same_content and same_key and same_id):
        raise IdempotencyMismatch(
            f"The turn id or idempotency key belongs to turn {found.turn_id}, which has another content.",
            field="turn_id" if keys.turn_id else "idempotency_key",
            fix="Use a new key for a new request.",
        )
    return found


def turn_running(running: Turn) -> TurnRunning:
    """The refusal of what a running turn stands in the way of; it names the turn."""
    return TurnRunning(
        f"Turn {running.turn_id} of this Session is still running.",
        turn_id=running.turn_id,
        fix=f"Wait for it, or stop it: milepost turn stop {running.turn_id}",
    )


def _check_request(request: BeginTurn) -> None:
    if not request.text.strip():
        raise InvalidInput("The request has no text.", field="text", fix="Say what the agent shall do.")
    size = len(text_bytes(request.text))
    if size > MAX_REQUEST_BYTES:
        raise PayloadTooLarge.of("turn", "text", size, MAX_REQUEST_BYTES)
    script_size = len(text_bytes(request.script or ""))
    if script_size > MAX_SCRIPT_BYTES:
        raise PayloadTooLarge.of("turn", "script", script_size, MAX_SCRIPT_BYTES)
    _check_keys(_Keys(request.turn_id, request.idempotency_key))


def _check_keys(request: _Keys) -> None:
    if request.turn_id is not None and not _CLIENT_ID.fullmatch(request.turn_id):
        raise InvalidInput(
            "A turn id has 1 to 64 letters, digits, '_', '.' or '-', and begins with a letter or digit.",
            field="turn_id",
        )
    if request.idempotency_key is not None and not _IDEMPOTENCY_KEY.fullmatch(request.idempotency_key):
        raise InvalidInput("An idempotency key has 1 to 200 visible ASCII characters.", field="idempotency_key")
