"""Environments of Sessions: detect, ask, decide, prepare again. Every decision is one ledger transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from milepost.contracts.naming import environment_workflow_id
from milepost.domain.environments import (
    MAX_COMMAND_CHARACTERS,
    MAX_PORTS,
    OPERATOR,
    Consent,
    Environment,
    EnvironmentPlan,
    EnvironmentResult,
    EnvironmentState,
    RemoteSandbox,
    SetupSource,
    checked_ports,
)
from milepost.domain.errors import (
    EnvironmentConflict,
    EnvironmentNotFound,
    ImageNotAllowed,
    InvalidInput,
    SandboxMissing,
    TurnRunning,
)
from milepost.domain.events import (
    EnvironmentFailed,
    EnvironmentOutput,
    EnvironmentPreparing,
    EnvironmentProposed,
    EnvironmentReady,
    EnvironmentReviewed,
    Event,
    StreamKind,
)
from milepost.domain.sessions import Session
from milepost.engine.consent import Verdict, verdict
from milepost.ledger.codec import decode_event
from milepost.ports.environments import Detector
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent, OutboxKind
from milepost.ports.notifier import OUTBOX_TOPIC
from milepost.ports.system import Clock
from milepost.services.sessions import MAX_PAGE, require_active

STOPPED = "environment_stopped"
SUPERSEDED = "environment_superseded"
MAX_PIECES = 100
"""Of a setup command's output, that are given at once."""
NO_IMAGES = "No image is proposed: sandboxes are made of the template of the configuration."
NO_NETWORK = "The sandbox has no network (sandbox.network: none): a command that downloads fails."

CheckImage = Callable[[str], None]
"""Raises ImageNotAllowed."""


@dataclass(frozen=True, slots=True)
class EnvironmentRules:
    """What the configuration says. `devcontainer_runs`: its exact command runs in Sessions that nobody reviewed.

    Without `images` all sandboxes are made of one template.
    """

    check_image: CheckImage
    devcontainer_runs: bool = False
    networked: bool = False
    images: bool = True


@dataclass(frozen=True, slots=True)
class ReviewEnvironment:
    """A person's decision about the generation that waits. What is None stays as it was proposed."""

    approve: bool
    actor: str
    generation: int | None = None
    image: str | None = None
    command: str | None = None
    ports: tuple[int, ...] | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ChangeEnvironment:
    """A new plan. `detect` reads the folder anew; what is None stays. An empty text is none."""

    actor: str
    image: str | None = None
    command: str | None = None
    ports: tuple[int, ...] | None = None
    detect: bool = False


class EnvironmentService:
    """Use cases of environments."""

    def __init__(self, ledger: Ledger, clock: Clock, detector: Detector, rules: EnvironmentRules) -> None:
        self._ledger = ledger
        self._clock = clock
        self._detector = detector
        self._rules = rules

    async def get(self, session_id: str) -> Environment:
        """The current generation; of one that is not prepared, with what the folder proposes now.

        Raises SessionNotFound.
        """
        session, current = await self._ledger.read(lambda tx: _of(tx, session_id))
        if current is not None and current.state is not EnvironmentState.UNPREPARED:
            return current
        try:
            plan = await self.plan(session, current)
        except InvalidInput as error:
            plan = EnvironmentPlan(image=session.image, notes=(str(error),))
        now = self._clock.now()
        return Environment(session_id, 1, EnvironmentState.UNPREPARED, plan, now, now)

    async def generations(self, session_id: str, *, before: int | None = None, limit: int = 50) -> list[Environment]:
        """Newest first. Raises SessionNotFound."""
        bounded = max(1, min(limit, MAX_PAGE))

        def body(tx: LedgerTx) -> list[Environment]:
            tx.sessions.get(session_id)
            return tx.environments.of_session(session_id, before=before, limit=bounded)

        return await self._ledger.read(body)

    async def generation(self, session_id: str, generation: str) -> Environment:
        """One generation, named as a client names it. Raises SessionNotFound, EnvironmentNotFound."""

        def body(tx: LedgerTx) -> Environment | None:
            tx.sessions.get(session_id)
            known = generation.isascii() and generation.isdigit() and len(generation) < 10
            return tx.environments.get(session_id, int(generation)) if known else None

        found = await self._ledger.read(body)
        if found is None:
            raise EnvironmentNotFound(
                f"The environment of Session {session_id} has no such generation.", field="generation"
            )
        return found

    async def pieces(self, session_id: str, generation: str, after: int) -> list[EnvironmentOutput]:
        """Pieces of a setup command's output as they came, from number `after + 1` on, at most 100.

        Raises SessionNotFound, EnvironmentNotFound.
        """
        found = await self.generation(session_id, generation)
        return await self._ledger.read(lambda tx: pieces_of(tx, found, after + 1, MAX_PIECES))

    def asks(self, environment: Environment) -> bool:
        """Whether preparing an unprepared environment asks a person."""
        return self._verdict(environment.plan, reviewed=False) is Verdict.ASK

    async def prepare(self, session_id: str, actor: str) -> Environment:
        """Begin the first generation: prepare it, or ask if somebody must agree. One that has begun stays as it is.

        Raises SessionNotFound, SessionClosed, InvalidInput (the folder cannot be looked at).
        """
        session, current = await self._ledger.read(lambda tx: _of(tx, session_id))
        if current is not None and current.state is not EnvironmentState.UNPREPARED:
            return current
        plan = await self.plan(session, current)
        return await self._ledger.write(lambda tx: self.begin(tx, session_id, plan, actor))

    async def review(self, session_id: str, review: ReviewEnvironment) -> Environment:
        """Decide about the generation that waits, and prepare it: with the exact command, or without any.

        Raises:
            SessionNotFound, SessionClosed, EnvironmentConflict (nothing waits, or another generation does),
            ImageNotAllowed, InvalidInput.
        """
        now = self._clock.now()

        def body(tx: LedgerTx) -> Environment:
            session, current = self._locked(tx, session_id)
            if current is None or current.state is not EnvironmentState.AWAITING_APPROVAL:
                raise _nothing_waits(session_id, current)
            if review.generation not in (None, current.generation):
                raise EnvironmentConflict(
                    f"Generation {review.generation} is not the one that waits; {current.generation} is.",
                    field="generation",
                    fix=f"Look at it: milepost env show {session_id}",
                )
            plan = current.plan if review.approve else _refused(session, current.plan)
            plan = self._edited(plan, review.image, review.command if review.approve else None, review.ports)
            if plan.image is not None:
                self._rules.check_image(plan.image)
            consent = Consent(review.approve, review.actor, now, review.reason)
            return self._start(tx, replace(current, plan=plan, consent=consent), review.actor, now)

        return await self._ledger.write(body)

    async def change(self, session_id: str, change: ChangeEnvironment) -> Environment:
        """Begin a new generation with another plan; the one before is over, and its container goes.

        Raises SessionNotFound, SessionClosed, TurnRunning, ImageNotAllowed, InvalidInput.
        """
        session, current = await self._ledger.read(lambda tx: _of(tx, session_id))
        if change.detect or current is None or current.state is EnvironmentState.UNPREPARED:
            plan = await self.plan(session, current)
        else:
            plan = current.plan
        plan = self._edited(plan, change.image, change.command, change.ports)
        if change.image:
            self._rules.check_image(change.image)

        def body(tx: LedgerTx) -> Environment:
            self._locked(tx, session_id, idle=True)
            return self.begin(tx, session_id, plan, change.actor, anew=True)

        return await self._ledger.write(body)

    async def rebuild(self, session_id: str, actor: str) -> Environment:
        """Prepare the same plan again from nothing, by the same consent, as a new generation.

        Raises SessionNotFound, SessionClosed, TurnRunning, EnvironmentConflict (nothing was prepared yet).
        """
        now = self._clock.now()

        def body(tx: LedgerTx) -> Environment:
            _, current = self._locked(tx, session_id, idle=True)
            if current is None or not (current.state.settled or current.state is EnvironmentState.PREPARING):
                state = EnvironmentState.UNPREPARED if current is None else current.state
                raise EnvironmentConflict(
                    f"The environment of Session {session_id} is {state.replace('_', ' ')}: nothing was built yet.",
                    fix=f"Prepare it: milepost env prepare {session_id}",
                )
            again = self._next(tx, session_id, current.plan, now)
            return self._start(tx, replace(again, consent=current.consent), actor, now)

        return await self._ledger.write(body)

    async def stop(self, session_id: str, actor: str) -> Environment:
        """End preparing; what runs in the sandbox is killed. Raises SessionNotFound, EnvironmentConflict."""
        now = self._clock.now()

        def body(tx: LedgerTx) -> Environment:
            tx.turns.lock_session(session_id)
            current = tx.environments.current(session_id)
            if current is None or current.state is not EnvironmentState.PREPARING:
                raise EnvironmentConflict(f"The environment of Session {session_id} is not being prepared.")
            result = EnvironmentResult(error_code=STOPPED, error=f"Stopped by {actor}.")
            return settle(tx, current, EnvironmentState.FAILED, result, now)

        return await self._ledger.write(body)

    # --- steps, also of the gate --------------------------------------------------------------------------------

    async def plan(self, session: Session, current: Environment | None) -> EnvironmentPlan:
        """What the folder proposes, under what was chosen when the Session was opened. Raises InvalidInput."""
        plan = await self._detector.detect(session.workspace.path)
        if session.image is not None:
            plan = replace(plan, image=session.image)
        elif not self._rules.images and plan.source is SetupSource.LOCKFILE:
            plan = replace(plan, image=None, notes=(*plan.notes, NO_IMAGES))
        chosen = () if current is None else current.plan.chosen_ports
        plan = replace(plan, ports=tuple(dict.fromkeys((*chosen, *plan.ports)))[:MAX_PORTS], chosen_ports=chosen)
        if plan.command is not None and not self._rules.networked:
            plan = replace(plan, notes=(*plan.notes, NO_NETWORK))
        return plan

    def begin(
        self, tx: LedgerTx, session_id: str, plan: EnvironmentPlan, actor: str, *, anew: bool = False
    ) -> Environment:
        """Begin a generation with this plan, unless one has begun and it is not to be `anew`."""
        now = self._clock.now()
        _, current = self._locked(tx, session_id)
        if current is not None and current.state is not EnvironmentState.UNPREPARED and not anew:
            return current
        reviewed = any(
            found.consent is not None and found.consent.reviewed for found in tx.environments.of_session(session_id)
        )
        decided = self._verdict(plan, reviewed=reviewed)
        found = self._next(tx, session_id, plan, now)
        if decided is Verdict.ASK:
            found = replace(found, state=EnvironmentState.AWAITING_APPROVAL)
            tx.environments.save(found)
            _append(tx, found, "proposed", EnvironmentProposed(found.generation, plan, actor), now)
            return found
        consent = Consent(True, OPERATOR, now) if decided is Verdict.OPERATOR else None
        return self._start(tx, replace(found, consent=consent), actor, now)

    def admit(
        self, tx: LedgerTx, session_id: str, plan: EnvironmentPlan, sandbox: RemoteSandbox | None = None
    ) -> Environment:
        """Record as Ready what needed no consent and no command, once its container was opened."""
        now = self._clock.now()
        tx.turns.lock_session(session_id)
        current = tx.environments.current(session_id)
        if current is not None and current.state is not EnvironmentState.UNPREPARED:
            return current
        result = EnvironmentResult(sandbox=sandbox)
        return settle(tx, self._next(tx, session_id, plan, now), EnvironmentState.READY, result, now)

    def placed(self, tx: LedgerTx, found: Environment, sandbox: RemoteSandbox) -> None:
        """Keep where a Ready environment is by now, if nothing was kept: its back end was another one before."""
        tx.turns.lock_session(found.session_id)
        current = tx.environments.get(found.session_id, found.generation)
        if current is not None and current.state is EnvironmentState.READY:
            result = replace(current.result or EnvironmentResult(), sandbox=sandbox)
            tx.environments.save(replace(current, result=result))

    def lose(self, tx: LedgerTx, found: Environment, error: SandboxMissing) -> Environment:
        """Fail a Ready environment whose sandbox is gone; one that has changed since stays as it is."""
        now = self._clock.now()
        tx.turns.lock_session(found.session_id)
        current = tx.environments.get(found.session_id, found.generation)
        if current is None or current.state is not EnvironmentState.READY:
            return current or found
        result = replace(
            current.result or EnvironmentResult(), error_code=error.code, error=error.message, fix=error.fix
        )
        return settle(tx, current, EnvironmentState.FAILED, result, now)

    def _verdict(self, plan: EnvironmentPlan, *, reviewed: bool) -> Verdict:
        if plan.image is not None:
            try:
                self._rules.check_image(plan.image)
            except ImageNotAllowed:
                return Verdict.ASK
        return verdict(plan, reviewed=reviewed, operator_runs_devcontainer=self._rules.devcontainer_runs)

    def _locked(self, tx: LedgerTx, session_id: str, *, idle: bool = False) -> tuple[Session, Environment | None]:
        tx.turns.lock_session(session_id)
        session, current = _of(tx, session_id)
        require_active(session)
        running = tx.turns.running(session_id) if idle else None
        if running is not None:
            raise TurnRunning(
                f"Turn {running.turn_id} is running; its sandbox cannot be exchanged under it.",
                turn_id=running.turn_id,
                fix=f"Wait for it, or stop it: milepost turn stop {running.turn_id}",
            )
        return session, current

    def _next(self, tx: LedgerTx, session_id: str, plan: EnvironmentPlan, now: int) -> Environment:
        """The next generation as a row; one that was under way is over."""
        current = tx.environments.current(session_id)
        if current is not None and current.state is EnvironmentState.UNPREPARED:
            return replace(current, plan=plan, changed_at=now)
        if current is not None and not current.state.settled:
            result = EnvironmentResult(error_code=SUPERSEDED, error="A later generation took its place.")
            settle(tx, current, EnvironmentState.FAILED, result, now)
        generation = 1 if current is None else current.generation + 1
        after = tx.turns.live(session_id, after_number=0)[1]
        found = Environment(session_id, generation, EnvironmentState.UNPREPARED, plan, now, now, after)
        tx.environments.add(found)
        return found

    def _start(self, tx: LedgerTx, found: Environment, actor: str, now: int) -> Environment:
        """Hand the generation to its workflow."""
        started = replace(found, state=EnvironmentState.PREPARING, changed_at=now)
        tx.environments.save(started)
        if started.consent is not None:
            reviewed = EnvironmentReviewed(started.generation, started.plan, started.consent)
            _append(tx, started, "reviewed", reviewed, now)
        workflow_id = environment_workflow_id(self._ledger.instance_id, started.environment_id)
        event = EnvironmentPreparing(started.generation, started.plan.image, started.command, actor, workflow_id)
        _append(tx, started, "preparing", event, now)
        tx.outbox.add(OutboxKind.PREPARE_ENVIRONMENT, started.environment_id, now)
        tx.notify(OUTBOX_TOPIC)
        return started

    def _edited(
        self, plan: EnvironmentPlan, image: str | None, command: str | None, ports: tuple[int, ...] | None
    ) -> EnvironmentPlan:
        if command is not None and (len(command) > MAX_COMMAND_CHARACTERS or "\0" in command):
            raise InvalidInput(
                f"A setup command has at most {MAX_COMMAND_CHARACTERS} characters and no NUL.", field="command"
            )
        if command is not None and (command.strip() or None) != plan.command:
            text = command.strip() or None
            source = SetupSource.EDITED if text else SetupSource.NONE
            plan = replace(plan, command=text, source=source)
        if image is not None:
            plan = replace(plan, image=image or None)
        if ports is not None:
            plan = replace(plan, ports=checked_ports(ports), chosen_ports=checked_ports(ports))
        return plan


def _refused(session: Session, plan: EnvironmentPlan) -> EnvironmentPlan:
    """What is left when nothing of a proposal is used."""
    return EnvironmentPlan(image=session.image, ports=plan.chosen_ports, chosen_ports=plan.chosen_ports, node=plan.node)


def settle(
    tx: LedgerTx, found: Environment, state: EnvironmentState, result: EnvironmentResult, now: int
) -> Environment:
    """Write the end of a generation; the caller holds the Session's lock."""
    ended = replace(found, state=state, result=result, changed_at=now)
    tx.environments.save(ended)
    kind = EnvironmentReady if state is EnvironmentState.READY else EnvironmentFailed
    event = kind(ended.generation, ended.plan.image, ended.command, result)
    # What was Ready can fail later.
    _append(tx, ended, "lost" if found.state is EnvironmentState.READY else "ended", event, now)
    return ended


def append_output(tx: LedgerTx, found: Environment, piece: EnvironmentOutput, now: int) -> None:
    """Write a piece of output; one of a number that is there stays."""
    _append(tx, found, f"output/{piece.number}", piece, now)


def pieces_of(tx: LedgerTx, found: Environment, first: int, limit: int) -> list[EnvironmentOutput]:
    """The pieces of output from a number on, in order."""
    pieces: list[EnvironmentOutput] = []
    for number in range(first, first + limit):
        stored = tx.events.find(found.session_id, f"environment/{found.generation}/output/{number}")
        if stored is None:
            break
        event = decode_event(stored.type, stored.version, stored.payload)
        if isinstance(event, EnvironmentOutput):
            pieces.append(event)
    return pieces


def _append(tx: LedgerTx, found: Environment, name: str, event: Event, now: int) -> None:
    key = f"environment/{found.generation}/{name}"
    tx.events.append(found.session_id, StreamKind.SESSION, [NewEvent(key, event)], now)
    tx.notify(found.session_id)


def _of(tx: LedgerTx, session_id: str) -> tuple[Session, Environment | None]:
    return tx.sessions.get(session_id), tx.environments.current(session_id)


def _nothing_waits(session_id: str, current: Environment | None) -> EnvironmentConflict:
    state = EnvironmentState.UNPREPARED if current is None else current.state
    next_step = "prepare" if state is EnvironmentState.UNPREPARED else "change"
    return EnvironmentConflict(
        f"The environment of Session {session_id} is {state.replace('_', ' ')}: no decision is waited for.",
        fix=f"Run: milepost env {next_step} {session_id}",
    )
