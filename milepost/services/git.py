"""Git work for people: run in the Session's sandbox, never on the host; what changes something is recorded."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from milepost.domain.content import BlobRef, Content
from milepost.domain.errors import (
    GitRefused,
    HunkChanged,
    InvalidInput,
    NotARepository,
    PayloadTooLarge,
    SandboxLost,
    SessionClosed,
)
from milepost.domain.events import Event, StreamKind
from milepost.domain.git import (
    MAX_HUNKS,
    MAX_PATHS,
    Branch,
    Commit,
    FileDiff,
    FileState,
    GitAction,
    GitDone,
    GitSide,
    GitStatus,
)
from milepost.domain.sessions import Session, SessionStatus
from milepost.domain.workspaces import LeasePurpose, WorkspaceLease
from milepost.engine import git
from milepost.ledger.codec import decode_event
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.ports.sandbox import Exec, Outcome
from milepost.ports.system import Clock
from milepost.services.contents import Contents
from milepost.services.hosts import reachable
from milepost.services.workbench import Workbench
from milepost.services.workspaces import leased

LOOK_SECONDS = 60.0
CHANGE_SECONDS = 300.0
MAX_FILES = 5000
MAX_DIFF_BYTES = 8 * 1024 * 1024
MAX_KEPT_BYTES = 8 * 1024 * 1024
"""Of what a discard throws away: more is not kept, so it is not thrown away either."""
MAX_BRANCHES = 1000
NAMED_PATHS = 100
PATCH = "text/x-diff"
_NO_REPOSITORY = "not a git repository"
_IDENTITY = ("Author identity unknown", "Please tell me who you are", "empty ident name", "unable to auto-detect email")


@dataclass(frozen=True, slots=True)
class Picked:
    """What a change is about: whole files, or hunks by their ids. `by` is who does it."""

    by: str
    paths: tuple[str, ...] = ()
    hunks: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises InvalidInput."""
        if bool(self.paths) == bool(self.hunks):
            raise InvalidInput("Name either files or hunks.", field="paths")
        if len(self.paths) > MAX_PATHS or len(self.hunks) > MAX_HUNKS:
            raise InvalidInput(f"At most {MAX_PATHS} files or {MAX_HUNKS} hunks at once.", field="paths")
        for path in self.paths:
            if not path or "\0" in path or path.startswith("/") or ".." in path.split("/"):
                raise InvalidInput(f"{path[:200]!r} is no path inside the repository.", field="paths")


@dataclass(frozen=True, slots=True)
class NewCommit:
    """`author` as `Name <address>`; None takes the repository's. Without `verify` its hooks do not run."""

    by: str
    message: str
    author: tuple[str, str] | None = None
    amend: bool = False
    verify: bool = True


class GitService:
    """Use cases over any Session's repository, as far as its sandbox is on this host."""

    def __init__(self, ledger: Ledger, clock: Clock, contents: Contents, workbench: Workbench, host: str) -> None:
        self._ledger = ledger
        self._clock = clock
        self._contents = contents
        self._workbench = workbench
        self._host = host

    # --- looking -------------------------------------------------------------------------------------------------

    async def status(self, session_id: str, limit: int = MAX_FILES) -> GitStatus:
        """Raises SessionNotFound, EnvironmentNotReady, SandboxUnavailable, NotARepository, GitRefused."""
        session = await self._session(session_id)
        return git.parse_status(await self._look(session, git.status_command()), limit)

    async def diff(
        self,
        session_id: str,
        side: GitSide = GitSide.WORKTREE,
        paths: Sequence[str] = (),
        revision: str | None = None,
        to: str | None = None,
    ) -> list[FileDiff]:
        """Changed files with their hunks; from `revision` to `to` or to the files, else the two states of `side`.

        Raises as `status`, and InvalidInput, PayloadTooLarge.
        """
        for name, value in (("from", revision), ("to", to)):
            _check_revision(name, value)
        session = await self._session(session_id)
        return await self._diff(session, side, paths, revision, to)

    async def branches(self, session_id: str) -> list[Branch]:
        """The latest first, at most 1,000. Raises as `status`."""
        session = await self._session(session_id)
        return git.parse_branches(await self._look(session, git.branches_command(MAX_BRANCHES)))

    async def log(self, session_id: str, revision: str = "HEAD", limit: int = 50, skip: int = 0) -> list[Commit]:
        """Commits from a revision on, the latest first. Raises as `status`, and InvalidInput."""
        _check_revision("revision", revision)
        session = await self._session(session_id)
        if revision == "HEAD" and git.parse_status(await self._look(session, git.status_command()), 0).commit is None:
            return []
        return git.parse_log(await self._look(session, git.log_command(revision, limit, skip)))

    async def kept(self, session_id: str, operation_id: str) -> bytes:
        """The patch of what an operation threw away. Raises SessionNotFound, InvalidInput."""

        def body(tx: LedgerTx) -> Event | None:
            tx.sessions.get(session_id)
            stored = tx.events.find(session_id, f"git/{operation_id}")
            return None if stored is None else decode_event(stored.type, stored.version, stored.payload)

        found = await self._ledger.read(body)
        if not isinstance(found, GitDone) or found.kept is None or found.kept.blob is None:
            raise InvalidInput(f"No discard of this Session has the id {operation_id[:100]!r}.", field="operation_id")
        return await self._contents.load_bytes(found.kept.blob)

    # --- changing ------------------------------------------------------------------------------------------------

    async def stage(self, session_id: str, picked: Picked) -> GitStatus:
        """Put files, or hunks of the difference between index and files, into the index.

        Raises as `status`, and HunkChanged, WorkspaceBusy, SessionClosed, InvalidInput.
        """
        return await self._pick(session_id, GitAction.STAGE, picked)

    async def unstage(self, session_id: str, picked: Picked) -> GitStatus:
        """Take files, or hunks of the difference between HEAD and index, out of the index. Raises as `stage`."""
        return await self._pick(session_id, GitAction.UNSTAGE, picked)

    async def discard(self, session_id: str, picked: Picked) -> GitDone:
        """Make files, or hunks of them, what the index has; files that git does not know go. A patch of it is kept.

        Raises as `stage`, and PayloadTooLarge if it is more than is kept.
        """
        picked.check()
        session = await self._open_session(session_id)
        operation = _operation_id()
        async with self._leased(session, operation):
            status = await self.status(session_id)
            if picked.hunks:
                patch = await self._patch(session, GitSide.WORKTREE, picked)
                paths: tuple[str, ...] = ()
                change = (git.command("apply", "-R", "--recount", "--whitespace=nowarn", "-"), patch)
                steps = [change]
            else:
                patch, steps = await self._thrown_away(session, status, picked.paths)
                paths = picked.paths
            kept = await self._keep(patch)
            for number, (command, stdin) in enumerate(steps):
                await self._change(session, f"{operation}/{number}", command, stdin)
            return await self._done(
                session, operation, GitAction.DISCARD, picked.by, paths=paths, hunks=len(picked.hunks), kept=kept
            )

    async def commit(self, session_id: str, new: NewCommit) -> GitDone:
        """Commit what is staged. Raises as `stage`; GitRefused if there is nothing, or a hook refuses."""
        if not new.message.strip() or "\0" in new.message:
            raise InvalidInput("A commit needs a message.", field="message")
        session = await self._open_session(session_id)
        operation = _operation_id()
        who = () if new.author is None else ("-c", f"user.name={new.author[0]}", "-c", f"user.email={new.author[1]}")
        flags = (*(("--amend",) if new.amend else ()), *(() if new.verify else ("--no-verify",)))
        command = git.command(*who, "commit", "--quiet", "--file=-", "--cleanup=strip", *flags, hooks=True)
        async with self._leased(session, operation):
            await self._change(session, operation, command, new.message.encode("utf-8", "replace"))
            status = git.parse_status(await self._look(session, git.status_command()), 0)
            return await self._done(
                session,
                operation,
                GitAction.COMMIT,
                new.by,
                branch=status.branch,
                commit=status.commit,
                message=new.message[:4000],
            )

    async def switch(self, session_id: str, by: str, target: str, *, detach: bool = False) -> GitDone:
        """Check a branch out, or with `detach` a commit. Changes that it would overwrite make git refuse.

        Raises as `stage`.
        """
        _check_revision("target", target)
        arguments = ("switch", "--quiet", "--no-guess", *(("--detach",) if detach else ()), target)
        return await self._one(session_id, GitAction.SWITCH, by, arguments, branch=None if detach else target)

    async def create_branch(
        self, session_id: str, by: str, name: str, start: str | None = None, *, switch: bool = True
    ) -> GitDone:
        """Make a branch, and check it out. Raises as `stage`."""
        for field, value in (("name", name), ("start", start)):
            _check_revision(field, value)
        begin = () if start is None else (start,)
        arguments = ("switch", "--quiet", "--create", name, *begin) if switch else ("branch", name, *begin)
        return await self._one(session_id, GitAction.CREATE_BRANCH, by, arguments, branch=name)

    async def delete_branch(self, session_id: str, by: str, name: str, *, force: bool = False) -> GitDone:
        """Delete a branch; one that is not merged only with `force`. The record has its last commit. As `stage`."""
        _check_revision("name", name)
        found = next((each for each in await self.branches(session_id) if each.name == name), None)
        arguments = ("branch", "-D" if force else "-d", "--", name)
        last = None if found is None else found.commit
        return await self._one(session_id, GitAction.DELETE_BRANCH, by, arguments, branch=name, commit=last)

    # --- steps ---------------------------------------------------------------------------------------------------

    async def _one(
        self,
        session_id: str,
        action: GitAction,
        by: str,
        arguments: Sequence[str],
        *,
        branch: str | None,
        commit: str | None = None,
    ) -> GitDone:
        session = await self._open_session(session_id)
        operation = _operation_id()
        async with self._leased(session, operation):
            await self._change(session, operation, git.command(*arguments), b"")
            if commit is None:
                commit = git.parse_status(await self._look(session, git.status_command()), 0).commit
            return await self._done(session, operation, action, by, branch=branch, commit=commit)

    async def _pick(self, session_id: str, action: GitAction, picked: Picked) -> GitStatus:
        picked.check()
        session = await self._open_session(session_id)
        operation = _operation_id()
        reverse = action is GitAction.UNSTAGE
        async with self._leased(session, operation):
            if picked.hunks:
                side = GitSide.STAGED if reverse else GitSide.WORKTREE
                stdin = await self._patch(session, side, picked)
                way = ("-R",) if reverse else ()
                command = git.command("apply", "--cached", *way, "--recount", "--whitespace=nowarn", "-")
            else:
                stdin = git.paths_input(picked.paths)
                unborn = reverse and (await self.status(session_id, 0)).commit is None
                verb: tuple[str, ...] = ("add", "-A")
                if reverse:
                    verb = ("rm", "--cached", "-r", "--quiet") if unborn else ("restore", "--staged")
                command = git.command(*verb, *git.FROM_INPUT)
            await self._change(session, operation, command, stdin)
            paths, hunks = picked.paths, len(picked.hunks)
            await self._done(session, operation, action, picked.by, paths=paths, hunks=hunks)
        return await self.status(session_id)

    async def _patch(self, session: Session, side: GitSide, picked: Picked) -> bytes:
        """The chosen hunks as they are now. Raises HunkChanged if one of them is not there any more."""
        files = await self._diff(session, side)
        there = {hunk.hunk_id for each in files for hunk in each.hunks}
        gone = [hunk for hunk in picked.hunks if hunk not in there]
        if gone:
            raise HunkChanged(
                f"Hunk {gone[0][:64]} is not there any more: its file has changed. Nothing was done.",
                field="hunks",
                fix="Look at the diff again, and choose anew.",
            )
        return git.patch_of(files, frozenset(picked.hunks))

    async def _thrown_away(
        self, session: Session, status: GitStatus, paths: Sequence[str]
    ) -> tuple[bytes, list[tuple[str, bytes]]]:
        """The patch of what goes, and the steps that make it go."""
        states = {each.path: each for each in status.files}
        new, known = [], []
        for path in paths:
            found = [each for name, each in states.items() if name == path or name.startswith(f"{path.rstrip('/')}/")]
            if not found:
                raise GitRefused(f"{path[:500]} has no changes to discard.")
            conflict = next((each for each in found if each.conflict), None)
            if conflict is not None:
                raise GitRefused(f"{conflict.path[:500]} is in conflict.", fix="Resolve it first.")
            new += [each for each in found if each.worktree == "?"]
            known += [each for each in found if each.worktree not in ".?"]
        return await self._steps(session, new, known)

    async def _steps(
        self, session: Session, new: Sequence[FileState], known: Sequence[FileState]
    ) -> tuple[bytes, list[tuple[str, bytes]]]:
        patch, steps = b"", list[tuple[str, bytes]]()
        if known:
            names = [each.path for each in known]
            compared = git.command("diff", "--binary", "--full-index", "--no-ext-diff", "--no-textconv", looking=True)
            patch += await self._look(session, f"{compared} -- {git.quoted(names)}")
            restore = git.command("restore", "--worktree", *git.FROM_INPUT)
            steps.append((restore, git.paths_input(names)))
        for each in new:
            # It differs from nothing, which git tells by exit code 1.
            compared = git.command("diff", "--binary", "--no-index", "--no-ext-diff", "--no-textconv", looking=True)
            patch += await self._look(session, f"{compared} -- /dev/null {git.quoted([each.path])}", fine=(0, 1))
            if len(patch) > MAX_KEPT_BYTES:
                break
        if new:
            removal = git.command("clean", "--force", "-d", "--quiet")
            steps.append((f"{removal} -- {git.quoted([each.path for each in new])}", b""))
        return patch, steps

    async def _keep(self, patch: bytes) -> Content:
        if len(patch) > MAX_KEPT_BYTES:
            raise PayloadTooLarge(
                f"What would be discarded is {len(patch)} bytes; at most {MAX_KEPT_BYTES} are kept. Nothing was done.",
                fix="Discard fewer files at once, or remove large ones in a terminal.",
            )

        async def pieces() -> AsyncIterator[bytes]:
            yield patch

        ref: BlobRef = await self._contents.store_bytes(pieces(), PATCH)
        return Content(patch[:2000].decode("utf-8", "replace"), ref)

    async def _diff(
        self,
        session: Session,
        side: GitSide,
        paths: Sequence[str] = (),
        revision: str | None = None,
        to: str | None = None,
    ) -> list[FileDiff]:
        unborn = side is GitSide.HEAD and revision is None
        if unborn:
            unborn = git.parse_status(await self._look(session, git.status_command()), 0).commit is None
        raw, patch = git.diff_commands(git.between(side, revision, to, unborn=unborn), paths)
        for last in (False, True):
            text = await self._look(session, patch, limit=MAX_DIFF_BYTES)
            try:
                return git.parse_diff(await self._look(session, raw), text)
            except ValueError as error:
                if last:
                    raise GitRefused(
                        f"No diff could be made: {error}.", fix="Try again when nothing is written."
                    ) from None
        raise AssertionError

    async def _session(self, session_id: str) -> Session:
        return await reachable(self._ledger, self._clock, self._host, session_id)

    async def _open_session(self, session_id: str) -> Session:
        session = await self._session(session_id)
        if session.status is SessionStatus.CLOSED:
            raise SessionClosed(
                f"Session {session_id} is closed.", fix=f"Reopen it: milepost session reopen {session_id}"
            )
        return session

    def _leased(self, session: Session, operation: str) -> AbstractAsyncContextManager[WorkspaceLease]:
        return leased(
            self._ledger, self._clock, session.workspace, f"git/{operation}", LeasePurpose.REPAIR, session.session_id
        )

    async def _look(
        self, session: Session, command: str, *, limit: int = MAX_DIFF_BYTES, fine: tuple[int, ...] = (0,)
    ) -> bytes:
        outcome = await self._run(session, f"git-look/{secrets.token_hex(16)}", command, b"", LOOK_SECONDS)
        if outcome.exit_code not in fine:
            raise _refusal(outcome)
        if outcome.truncated or len(outcome.stdout) > limit:
            raise PayloadTooLarge(f"The diff is over {limit} bytes.", fix="Name the files to look at.")
        return outcome.stdout

    async def _change(self, session: Session, operation: str, command: str, stdin: bytes) -> None:
        outcome = await self._run(session, f"git/{operation}", command, stdin, CHANGE_SECONDS)
        if outcome.exit_code != 0:
            raise _refusal(outcome)

    async def _run(self, session: Session, effect: str, command: str, stdin: bytes, seconds: float) -> Outcome:
        sandbox = await self._workbench.open(session)
        outcome = await sandbox.perform(effect, Exec(command, timeout=seconds, stdin=stdin))
        if outcome.error is not None:
            raise GitRefused(outcome.error)
        if outcome.timed_out or outcome.exit_code is None:
            raise SandboxLost(f"Git did not end within {seconds:.0f} s and was killed.")
        return outcome

    async def _done(
        self,
        session: Session,
        operation: str,
        action: GitAction,
        by: str,
        *,
        paths: tuple[str, ...] = (),
        hunks: int = 0,
        branch: str | None = None,
        commit: str | None = None,
        message: str | None = None,
        kept: Content | None = None,
    ) -> GitDone:
        shown = tuple(path[:1000] for path in paths[:NAMED_PATHS])
        event = GitDone(operation, action, by, shown, hunks, branch, commit, message, kept)
        now = self._clock.now()

        def body(tx: LedgerTx) -> None:
            tx.events.append(session.session_id, StreamKind.SESSION, [NewEvent(f"git/{operation}", event)], now)
            tx.notify(session.session_id)

        await self._ledger.write(body)
        return event


def _operation_id() -> str:
    return f"git_{secrets.token_hex(12)}"


def _check_revision(field: str, value: str | None) -> None:
    """A name cannot be taken for an option, and has no control characters."""
    if value is None:
        return
    if not value or value.startswith("-") or len(value) > 500 or not value.isprintable():
        raise InvalidInput(f"{value[:100]!r} is no name of a branch or commit.", field=field)


def _refusal(outcome: Outcome) -> GitRefused | NotARepository:
    text = (outcome.stderr or outcome.stdout).decode("utf-8", "replace")
    words = "\n".join(line for line in text.splitlines() if not line.startswith("hint:")).strip()[:2000]
    if _NO_REPOSITORY in words:
        return NotARepository(
            "The Workspace is no Git repository, or its .git leads out of it.", fix="Make one: git init in a terminal"
        )
    if outcome.exit_code == 127:
        return GitRefused("The sandbox has no git.", fix="Use an image that has it.")
    if any(each in words for each in _IDENTITY):
        return GitRefused("Git does not know who commits.", fix="Name an author: --author 'Name <address>'")
    if "index.lock" in words:
        return GitRefused(
            "Another git works on the index (index.lock exists).", fix="Wait for its end, or remove the lock."
        )
    return GitRefused(words or f"Git ended with exit code {outcome.exit_code}.")
