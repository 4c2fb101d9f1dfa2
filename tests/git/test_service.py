"""Git work over real repositories: looked at, staged by hunk, thrown away with a way back, committed, branched."""

from __future__ import annotations

import pytest

from milepost.domain.errors import (
    GitRefused,
    HunkChanged,
    InvalidInput,
    NotARepository,
    PayloadTooLarge,
    SandboxUnavailable,
    WorkspaceBusy,
)
from milepost.domain.events import Event
from milepost.domain.git import GitAction, GitDone, GitSide
from milepost.domain.workspaces import LeasePurpose
from milepost.ledger.codec import decode_event
from milepost.ports.ledger import WorkerBeat
from milepost.services import git as services
from milepost.services.git import NewCommit, Picked
from tests.git.conftest import Repository

BY = "api:ann"
LINES = "".join(f"line {number}\n" for number in range(1, 41))


async def done(repository: Repository) -> list[GitDone]:
    stored = await repository.ledger.ledger.read(lambda tx: tx.events.read(repository.session_id))
    events: list[Event] = [decode_event(each.type, each.version, each.payload) for each in stored]
    return [event for event in events if isinstance(event, GitDone)]


async def test_every_state_of_a_repository(repository: Repository) -> None:
    service, session = repository.service, repository.session_id
    unborn = await service.status(session)
    assert (unborn.branch, unborn.commit, unborn.files) == ("main", None, ())
    assert await service.log(session) == []
    repository.committed("kept", "1\n")
    repository.committed("moved", LINES)
    repository.write("kept", "2\n")
    repository.git("mv", "moved", "there")
    repository.write("new\nname", "?")
    repository.write("staged", "x")
    repository.git("add", "staged")
    found = await service.status(session)
    assert {(each.path, each.index + each.worktree, each.before) for each in found.files} == {
        ("kept", ".M", None),
        ("there", "R.", "moved"),
        ("staged", "A.", None),
        ("new\nname", ".?", None),
    }
    assert (await service.status(session, limit=2)).complete is False
    repository.git("add", "-A")
    repository.git("commit", "-qm", "more")
    repository.git("checkout", "-q", "--detach")
    assert (await service.status(session)).branch is None


async def test_a_merge_in_conflict(repository: Repository) -> None:
    repository.committed("f", "base\n")
    repository.git("checkout", "-qb", "other")
    repository.committed("f", "theirs\n")
    repository.git("checkout", "-q", "main")
    repository.committed("f", "ours\n")
    repository.git("merge", "other", fine=(1,))
    found = await repository.service.status(repository.session_id)
    assert found.under_way == ("merge",)
    assert [(each.path, each.conflict) for each in found.files] == [("f", True)]
    assert await repository.service.diff(repository.session_id) == [], "what is in conflict has no hunks to choose"
    with pytest.raises(GitRefused, match="conflict"):
        await repository.service.discard(repository.session_id, Picked(BY, ("f",)))


async def test_hunks_are_staged_unstaged_and_discarded_one_by_one(repository: Repository) -> None:
    service, session = repository.service, repository.session_id
    path = repository.committed("f", LINES)
    path.write_text(
        LINES.replace("line 2\n", "LINE 2\n").replace("line 20\n", "").replace("line 38\n", "LINE 38\nmore\n")
    )
    [found] = await service.diff(session)
    assert [found.path, found.status, len(found.hunks)] == ["f", "M", 3]
    first, second, third = (hunk.hunk_id for hunk in found.hunks)

    await service.stage(session, Picked(BY, hunks=(first, third)))
    assert [hunk.hunk_id for hunk in (await service.diff(session))[0].hunks] == [second], "ids do not move with lines"
    staged = await service.diff(session, GitSide.STAGED)
    assert [hunk.hunk_id for hunk in staged[0].hunks] == [first, third]
    assert len((await service.diff(session, GitSide.HEAD))[0].hunks) == 3

    await service.unstage(session, Picked(BY, hunks=(third,)))
    assert [hunk.hunk_id for hunk in (await service.diff(session, GitSide.STAGED))[0].hunks] == [first]
    assert "LINE 38" in path.read_text()

    thrown = await service.discard(session, Picked(BY, hunks=(second,)))
    assert "line 20\n" in path.read_text() and "LINE 38" in path.read_text()
    with pytest.raises(HunkChanged, match="Nothing was done"):
        await service.discard(session, Picked(BY, hunks=(third, second)))
    assert "LINE 38" in path.read_text(), "not even the one that is there"

    patch = await service.kept(session, thrown.operation_id)
    repository.apply(patch)
    assert "line 20\n" not in path.read_text(), "what was thrown away came back"
    assert [event.action for event in await done(repository)] == [
        GitAction.STAGE,
        GitAction.UNSTAGE,
        GitAction.DISCARD,
    ]
    assert (await done(repository))[0].by == BY


async def test_files_are_staged_unstaged_and_discarded_whole(repository: Repository) -> None:
    service, session = repository.service, repository.session_id
    odd = "späße\n'\"$(touch hacked)"
    repository.committed("gone", "1\n")
    repository.committed("mode", "2\n")
    repository.committed("binary", "text\n")
    (repository.folder / "gone").unlink()
    (repository.folder / "mode").chmod(0o755)
    (repository.folder / "binary").write_bytes(b"\0\1\2" * 100)
    repository.write(odd, "new\n")
    repository.write("-rf", "an option?\n")
    found = {each.path: each for each in await service.diff(session)}
    assert (found["mode"].old_mode, found["mode"].new_mode, found["mode"].hunks) == ("100644", "100755", ())
    assert found["binary"].binary and found["gone"].status == "D"

    names = ("gone", "mode", "binary", odd, "-rf")
    status = await service.stage(session, Picked(BY, names))
    assert {each.path: each.index for each in status.files} == {
        "gone": "D",
        "mode": "M",
        "binary": "M",
        odd: "A",
        "-rf": "A",
    }
    status = await service.unstage(session, Picked(BY, names))
    assert all(each.index == "." for each in status.files)

    thrown = await service.discard(session, Picked(BY, names))
    assert (await service.status(session)).files == ()
    assert not (repository.folder / "hacked").exists()
    patch = await service.kept(session, thrown.operation_id)
    repository.apply(patch)
    assert (repository.folder / odd).read_text() == "new\n"
    assert (repository.folder / "binary").read_bytes() == b"\0\1\2" * 100
    assert not (repository.folder / "gone").exists()


async def test_what_is_too_large_to_keep_is_not_thrown_away(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "MAX_KEPT_BYTES", 1000)
    repository.committed("f", "1\n")
    large = repository.write("large", LINES * 10)
    with pytest.raises(PayloadTooLarge, match="Nothing was done"):
        await repository.service.discard(repository.session_id, Picked(BY, ("large",)))
    assert large.exists()


async def test_commits_branches_and_checkouts(repository: Repository) -> None:
    service, session = repository.service, repository.session_id
    repository.write("f", "1\n")
    await service.stage(session, Picked(BY, ("f",)))
    with pytest.raises(GitRefused, match="does not know who commits"):
        await service.commit(session, NewCommit(BY, "first"))
    author = ("Ann", "ann@example.org")
    first = await service.commit(session, NewCommit(BY, "first\n\nwith a body\n# and no comment", author))
    assert first.branch == "main"
    with pytest.raises(GitRefused, match="nothing to commit"):
        await service.commit(session, NewCommit(BY, "again", author))
    [entry] = await service.log(session)
    assert (entry.commit, entry.subject, entry.author, entry.email) == (first.commit, "first", *author)

    await service.create_branch(session, BY, "feature/x")
    repository.committed("g", "2\n")
    repository.write("f", "changed\n")
    repository.git("commit", "-qam", "f")
    repository.write("f", "not committed\n")
    with pytest.raises(GitRefused, match="would be overwritten"):
        await service.switch(session, BY, "main")
    assert (repository.folder / "f").read_text() == "not committed\n"
    await service.discard(session, Picked(BY, ("f",)))
    await service.switch(session, BY, "main")
    branches = {each.name: each for each in await service.branches(session)}
    assert branches["main"].current and not branches["feature/x"].current
    with pytest.raises(GitRefused, match="not fully merged"):
        await service.delete_branch(session, BY, "feature/x")
    gone = await service.delete_branch(session, BY, "feature/x", force=True)
    assert gone.commit == branches["feature/x"].commit, "the way back"
    await service.create_branch(session, BY, "back", gone.commit, switch=False)
    await service.switch(session, BY, "back", detach=True)
    assert (await service.status(session)).branch is None
    changed = await service.diff(session, revision="main", to="back")
    assert {each.path for each in changed} == {"f", "g"}


async def test_hooks_run_in_the_sandbox_and_can_be_left_out(repository: Repository) -> None:
    hook = repository.write(".git/hooks/pre-commit", "#!/bin/sh\necho refused by the hook >&2\nexit 1\n")
    hook.chmod(0o755)
    repository.write("f", "1\n")
    await repository.service.stage(repository.session_id, Picked(BY, ("f",)))
    author = ("Ann", "ann@example.org")
    with pytest.raises(GitRefused, match="refused by the hook"):
        await repository.service.commit(repository.session_id, NewCommit(BY, "x", author))
    await repository.service.commit(repository.session_id, NewCommit(BY, "x", author, verify=False))


async def test_looking_starts_nothing_that_the_repository_names(repository: Repository) -> None:
    """Also in the sandbox: to look must not be to run."""
    trap = repository.write("trap.sh", '#!/bin/sh\ntouch "$PWD/sprung"\ncat "$1" 2>/dev/null\n')
    trap.chmod(0o755)
    repository.write(".gitattributes", "*.txt diff=evil\n")
    repository.committed("a.txt", "1\n")
    for key, value in (
        ("core.fsmonitor", str(trap)),
        ("diff.external", str(trap)),
        ("diff.evil.textconv", str(trap)),
        ("diff.evil.command", str(trap)),
        ("core.pager", str(trap)),
        ("core.hooksPath", str(repository.folder)),
        ("alias.status", f"!{trap}"),
        ("gpg.program", str(trap)),
        ("log.showSignature", "true"),
    ):
        repository.git("config", key, value)
    repository.write("a.txt", "2\n")
    await repository.service.status(repository.session_id)
    assert len(await repository.service.diff(repository.session_id)) == 1
    await repository.service.branches(repository.session_id)
    await repository.service.log(repository.session_id)
    assert not (repository.folder / "sprung").exists()


async def test_what_is_no_repository_or_leads_out_of_the_workspace(plain: Repository) -> None:
    with pytest.raises(NotARepository, match="git init"):
        await plain.service.status(plain.session_id)
    (plain.folder / ".git").write_text("gitdir: /nonexistent/elsewhere\n")
    with pytest.raises(NotARepository):
        await plain.service.diff(plain.session_id)


async def test_bad_names_are_refused_before_git_is_asked(repository: Repository) -> None:
    service, session = repository.service, repository.session_id
    for picked in (
        Picked(BY),
        Picked(BY, ("a",), ("b",)),
        Picked(BY, ("/etc/passwd",)),
        Picked(BY, ("../x",)),
        Picked(BY, ("",)),
    ):
        with pytest.raises(InvalidInput):
            await service.stage(session, picked)
    for name in ("--output=/tmp/x", "", "a\nb"):
        with pytest.raises(InvalidInput):
            await service.diff(session, revision=name)
        with pytest.raises(InvalidInput):
            await service.switch(session, BY, name)
        with pytest.raises(InvalidInput):
            await service.create_branch(session, BY, name)
    with pytest.raises(InvalidInput):
        await service.kept(session, "git_unknown")
    with pytest.raises(GitRefused, match="no changes"):
        await service.discard(session, Picked(BY, ("unknown",)))
    assert await done(repository) == []


async def test_changes_wait_for_nobody_and_looking_goes_on(repository: Repository) -> None:
    """While somebody has the files, changes are refused; so is work in the sandbox of another host."""
    repository.committed("f", "1\n")
    repository.write("f", "2\n")
    ledger = repository.ledger.ledger
    session = await ledger.read(lambda tx: tx.sessions.get(repository.session_id))
    await ledger.write(
        lambda tx: tx.workspaces.acquire(session.workspace, "env/1", LeasePurpose.SETUP, session.session_id, 1, 2**62)
    )
    with pytest.raises(WorkspaceBusy, match="env/1"):
        await repository.service.stage(repository.session_id, Picked(BY, ("f",)))
    assert len((await repository.service.status(repository.session_id)).files) == 1
    await ledger.write(lambda tx: tx.workspaces.release("env/1"))
    lock = repository.write(".git/index.lock", "")
    with pytest.raises(GitRefused, match=r"index\.lock"):
        await repository.service.stage(repository.session_id, Picked(BY, ("f",)))
    lock.unlink()
    now = 2**62
    beat = WorkerBeat("w", "other", ("sandbox.other",), now)
    await ledger.write(lambda tx: tx.workers.beat(beat))
    with pytest.raises(SandboxUnavailable, match="other"):
        await repository.service.status(repository.session_id)
