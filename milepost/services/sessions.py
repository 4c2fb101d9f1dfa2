"""Sessions: opening, listing, closing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from milepost.domain.agents import AgentConfig
from milepost.domain.budgets import Limits
from milepost.domain.environments import Environment, EnvironmentPlan, EnvironmentState, checked_ports
from milepost.domain.errors import AgentUnknown, InvalidInput, SessionClosed, TurnRunning
from milepost.domain.events import SessionClosed as SessionClosedEvent
from milepost.domain.events import SessionOpened, SessionReopened, StreamKind
from milepost.domain.forks import ForkState
from milepost.domain.sessions import Session, SessionMode, SessionStatus, Workspace
from milepost.domain.suggestions import nearest
from milepost.domain.teams import AgentRole
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.ports.system import Clock, IdSource

MAX_TITLE_CHARACTERS = 200
MAX_PAGE = 200
MAX_AGENTS = 32


@dataclass(frozen=True, slots=True)
class OpenSession:
    """What a person chooses when opening a Session. No agents means the instance's default agent.

    `budget` limits what the Session may use, beside what its agents' configuration allows. Without a `mode` the agents
    tell it. `ports` of the sandbox are published on the host's loopback.
    """

    workspace: str
    title: str | None = None
    agents: tuple[str, ...] = ()
    mode: SessionMode | None = None
    image: str | None = None
    budget: Limits | None = None
    ports: tuple[int, ...] = ()
    skills: tuple[str, ...] | None = None


class SessionService:
    """Use cases of Sessions; all of them one ledger transaction."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        ids: IdSource,
        agents: Mapping[str, AgentConfig],
        default_agent: str,
        data_root: Path | None = None,
        check_image: Callable[[str], None] | None = None,
    ) -> None:
        """`check_image` raises ImageNotAllowed; without it any image may be named."""
        self._ledger = ledger
        self._clock = clock
        self._ids = ids
        self._agents = agents
        self._default_agent = default_agent
        self._data_root = data_root
        self._check_image = check_image

    async def open(self, request: OpenSession) -> Session:
        """Open a Session on a folder.

        Raises:
            InvalidInput: the folder does not exist, holds the data root or lies in it; the mode is not served.
            AgentUnknown: an agent that the configuration does not have.
            ImageNotAllowed: an image that the configuration does not let in.
        """
        path = workspace_folder(request.workspace, self._data_root)
        agents = request.agents or (self._default_agent,)
        self._check_agents(agents)
        mode = self._mode(request.mode, agents)
        if request.image is not None and self._check_image is not None:
            self._check_image(request.image)
        ports = checked_ports(request.ports)
        title = session_title(request.title or Path(path).name or path)
        now = self._clock.now()
        new_workspace = Workspace(self._ids.new("wsp"), path, now)
        session_id = self._ids.new("ses")

        def body(tx: LedgerTx) -> Session:
            session = Session(
                session_id=session_id,
                workspace=tx.sessions.workspace(path, new_workspace),
                title=title,
                mode=mode,
                status=SessionStatus.ACTIVE,
                agents=agents,
                image=request.image,
                created_at=now,
                closed_at=None,
                skills=request.skills,
            )
            tx.sessions.add(session)
            if request.budget is not None:
                tx.budgets.set_limits(session_id, request.budget)
            opened = SessionOpened(path, title, mode, agents, request.budget, request.skills)
            tx.events.append(session_id, StreamKind.SESSION, [NewEvent("session.opened", opened)], now)
            if ports:
                plan = EnvironmentPlan(image=request.image, ports=ports, chosen_ports=ports)
                tx.environments.add(Environment(session_id, 1, EnvironmentState.UNPREPARED, plan, now, now))
            tx.notify(session_id)
            return session

        return await self._ledger.write(body)

    def _mode(self, wanted: SessionMode | None, agents: Sequence[str]) -> SessionMode:
        """How the Session uses its agents. Raises InvalidInput if they do not fit together, or not the mode."""
        if len(set(agents)) != len(agents) or len(agents) > MAX_AGENTS:
            raise InvalidInput(f"A Session has up to {MAX_AGENTS} different agents.", field="agents")
        coordinates = self._agents[agents[0]].role is AgentRole.COORDINATOR
        fitting = SessionMode.COORDINATOR if coordinates else SessionMode.SINGLE
        if len(agents) > 1:
            fitting = SessionMode.MULTI
            missing = [
                (agent, needed) for agent in agents for needed in self._agents[agent].depends_on if needed not in agents
            ]
            for agent, needed in missing:
                raise InvalidInput(
                    f"Agent '{agent}' depends on '{needed}', which the Session does not have.",
                    field="agents",
                    fix=f"Add '{needed}'.",
                )
        if wanted not in (None, fitting):
            raise InvalidInput(
                f"A Session with {'these agents' if len(agents) > 1 else 'this agent'} is '{fitting}', not '{wanted}'.",
                field="mode",
                fix="Leave the mode out, or name other agents.",
            )
        return fitting

    def _check_agents(self, agents: Sequence[str]) -> None:
        for agent in agents:
            if agent not in self._agents:
                known, meant = ", ".join(sorted(self._agents)), nearest(agent, self._agents)
                raise AgentUnknown(
                    f"There is no agent '{agent}'.", field="agents", fix=f"{meant}Known agents: {known}."
                )

    async def get(self, session_id: str) -> Session:
        """Raises SessionNotFound."""
        return await self._ledger.read(lambda tx: tx.sessions.get(session_id))

    async def page(
        self, *, status: SessionStatus | None = None, before: str | None = None, limit: int = 50
    ) -> list[Session]:
        """Newest first; `before` continues after the last Session of a page."""
        limit = max(1, min(limit, MAX_PAGE))
        return await self._ledger.read(lambda tx: tx.sessions.page(status=status, before=before, limit=limit))

    async def close(self, session_id: str) -> Session:
        """Close an active Session; closing a closed one changes nothing. Raises TurnRunning, SessionNotFound."""
        now = self._clock.now()

        def body(tx: LedgerTx) -> Session:
            tx.turns.lock_session(session_id)
            session = tx.sessions.get(session_id)
            running = tx.turns.running(session_id)
            if running is not None:
                raise TurnRunning(
                    f"Turn {running.turn_id} is running.",
                    turn_id=running.turn_id,
                    fix=f"Stop it first: milepost turn stop {running.turn_id}",
                )
            if session.status is SessionStatus.CLOSED:
                return session
            return self._move(tx, session_id, SessionStatus.CLOSED, SessionClosedEvent(), now)

        return await self._ledger.write(body)

    async def reopen(self, session_id: str) -> Session:
        """Make a closed Session active again. Raises SessionNotFound, SessionClosed (a fork that is not done)."""
        now = self._clock.now()

        def body(tx: LedgerTx) -> Session:
            tx.turns.lock_session(session_id)
            session = tx.sessions.get(session_id)
            if session.status is SessionStatus.ACTIVE:
                return session
            fork = tx.forks.get(session_id)
            if fork is not None and fork.state is not ForkState.DONE:
                told = f"could not be made: {fork.error}" if fork.state is ForkState.FAILED else "is being made"
                raise SessionClosed(f"Session {session_id} is a fork that {told}.", fix="Fork again, or wait for it.")
            return self._move(tx, session_id, SessionStatus.ACTIVE, SessionReopened(), now)

        return await self._ledger.write(body)

    def _move(
        self,
        tx: LedgerTx,
        session_id: str,
        status: SessionStatus,
        event: SessionClosedEvent | SessionReopened,
        now: int,
    ) -> Session:
        closed_at = now if status is SessionStatus.CLOSED else None
        tx.sessions.set_status(session_id, status, closed_at)
        tx.events.append(session_id, StreamKind.SESSION, [NewEvent(f"{event.TYPE}/{now}", event)], now)
        tx.notify(session_id)
        return tx.sessions.get(session_id)


def require_active(session: Session) -> None:
    """Raise SessionClosed unless the Session accepts turns."""
    if session.status is not SessionStatus.ACTIVE:
        raise SessionClosed(
            f"Session {session.session_id} is closed.",
            fix=f"Reopen it: milepost session reopen {session.session_id}",
        )


def workspace_folder(raw: str, data_root: Path | None) -> str:
    """The resolved path of a folder that a Session may work on.

    Raises:
        InvalidInput: it does not exist, is the root folder, holds the data root or lies in it.
    """
    if "\0" in raw or not raw.strip():
        raise InvalidInput("The workspace needs the path of a folder.", field="workspace")
    try:
        resolved = Path(raw).expanduser().resolve(strict=True)
    except (OSError, RuntimeError, UnicodeError) as error:
        raise InvalidInput(
            f"The folder {raw} does not exist or cannot be read ({type(error).__name__}).",
            field="workspace",
            fix="Create it, or name another folder.",
        ) from error
    if not resolved.is_dir():
        raise InvalidInput(f"{raw} is not a folder.", field="workspace", fix="Name the folder that holds it.")
    if resolved == Path(resolved.anchor):
        raise InvalidInput("The root folder cannot be a workspace.", field="workspace", fix="Name a project folder.")
    _keep_apart(resolved, data_root)
    return str(resolved)


def _keep_apart(workspace: Path, data_root: Path | None) -> None:
    # An agent works on the whole Workspace: it must not reach the ledger, the token or the sockets.
    root = data_root.resolve() if data_root is not None else None
    if root is not None and (root.is_relative_to(workspace) or workspace.is_relative_to(root)):
        raise InvalidInput(
            f"The folder {workspace} and Milepost's data root {root} lie inside one another.",
            field="workspace",
            fix="Name another folder, or set MILEPOST_HOME to one outside of it.",
        )


def session_title(raw: str) -> str:
    """A title of one line and bounded length."""
    title = " ".join(raw.replace("\0", " ").split()).encode("utf-8", "replace").decode()
    return title[:MAX_TITLE_CHARACTERS] or "Session"
