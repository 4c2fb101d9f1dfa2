"""Git work of people, in a Session's sandbox."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from api.dependencies import Actor, AppServices, SessionId
from api.documentation import problems
from api.responses import reply
from api.schemas.approvals import named
from api.schemas.git import (
    GitBranchPage,
    GitBranchShape,
    GitCheckout,
    GitCommitBody,
    GitCommitShape,
    GitDiffPage,
    GitDiffQuery,
    GitDoneShape,
    GitDropBranch,
    GitLogPage,
    GitLogQuery,
    GitNewBranch,
    GitPick,
    GitStatusShape,
)

router = APIRouter(prefix="/api/v1/sessions/{session_id}/git", tags=["git"])
_LOOK = problems(404, 409, 413, 422, 503)
_CHANGE = problems(400, 404, 409, 413, 422, 503)
OperationId = Annotated[str, Path(description="Id of a discard.", max_length=100)]


@router.get("/status", response_model=GitStatusShape, responses=_LOOK, summary="Show the state of the repository")
async def git_status(session_id: SessionId, services: AppServices) -> Response:
    """Branch, files that are not as in HEAD, and what is under way; at most 5,000 files."""
    return reply(GitStatusShape.of(await services.git.status(session_id)))


@router.get("/diff", response_model=GitDiffPage, responses=_LOOK, summary="Show changes, hunk by hunk")
async def git_diff(session_id: SessionId, query: Annotated[GitDiffQuery, Query()], services: AppServices) -> Response:
    """Each hunk has an id that depends on its lines alone, by which it is staged, unstaged or discarded."""
    found = await services.git.diff(session_id, query.side, query.file, query.from_, query.to)
    return reply(GitDiffPage.of(found, query.after, query.limit))


@router.post("/stage", response_model=GitStatusShape, responses=_CHANGE, summary="Stage files or hunks")
async def git_stage(session_id: SessionId, body: GitPick, services: AppServices, door: Actor) -> Response:
    """Hunks are those of `side=worktree`. One that has changed is refused, and then nothing is staged."""
    return reply(GitStatusShape.of(await services.git.stage(session_id, body.picked(named(door, body.actor)))))


@router.post("/unstage", response_model=GitStatusShape, responses=_CHANGE, summary="Unstage files or hunks")
async def git_unstage(session_id: SessionId, body: GitPick, services: AppServices, door: Actor) -> Response:
    """Hunks are those of `side=staged`. The files stay as they are."""
    return reply(GitStatusShape.of(await services.git.unstage(session_id, body.picked(named(door, body.actor)))))


@router.post("/discard", response_model=GitDoneShape, responses=_CHANGE, summary="Discard changes of files or hunks")
async def git_discard(session_id: SessionId, body: GitPick, services: AppServices, door: Actor) -> Response:
    """Files become what the index has; files that git does not know go. What is thrown away is kept as a patch."""
    return reply(GitDoneShape.of(await services.git.discard(session_id, body.picked(named(door, body.actor)))))


@router.get(
    "/discarded/{operation_id}",
    responses={**problems(404, 422), 200: {"content": {"text/x-diff": {}}}},
    response_class=Response,
    summary="Get what was discarded",
)
async def git_discarded(session_id: SessionId, operation_id: OperationId, services: AppServices) -> Response:
    """A patch that `git apply` takes."""
    return Response(await services.git.kept(session_id, operation_id), media_type="text/x-diff")


@router.post("/commit", response_model=GitDoneShape, responses=_CHANGE, summary="Commit what is staged")
async def git_commit(session_id: SessionId, body: GitCommitBody, services: AppServices, door: Actor) -> Response:
    """The repository's hooks run in the sandbox, unless `verify` is false."""
    return reply(GitDoneShape.of(await services.git.commit(session_id, body.new(named(door, body.actor)))))


@router.post("/checkout", response_model=GitDoneShape, responses=_CHANGE, summary="Check out a branch or commit")
async def git_checkout(session_id: SessionId, body: GitCheckout, services: AppServices, door: Actor) -> Response:
    """Refused if changes would be overwritten."""
    by = named(door, body.actor)
    return reply(GitDoneShape.of(await services.git.switch(session_id, by, body.target, detach=body.detach)))


@router.get("/branches", response_model=GitBranchPage, responses=_LOOK, summary="List branches")
async def git_branches(session_id: SessionId, services: AppServices) -> Response:
    """Those of this repository, the latest first, at most 1,000."""
    found = await services.git.branches(session_id)
    return reply(GitBranchPage(branches=[GitBranchShape.of(each) for each in found]))


@router.post("/branches", response_model=GitDoneShape, responses=_CHANGE, summary="Make a branch")
async def git_make_branch(session_id: SessionId, body: GitNewBranch, services: AppServices, door: Actor) -> Response:
    """And check it out, unless `checkout` is false."""
    by = named(door, body.actor)
    done = await services.git.create_branch(session_id, by, body.name, body.start, switch=body.checkout)
    return reply(GitDoneShape.of(done))


@router.post("/branches/delete", response_model=GitDoneShape, responses=_CHANGE, summary="Delete a branch")
async def git_drop_branch(session_id: SessionId, body: GitDropBranch, services: AppServices, door: Actor) -> Response:
    """One that is not merged only with `force`. The answer has its last commit, from which it can be made again."""
    by = named(door, body.actor)
    return reply(GitDoneShape.of(await services.git.delete_branch(session_id, by, body.name, force=body.force)))


@router.get("/log", response_model=GitLogPage, responses=_LOOK, summary="List commits")
async def git_log(session_id: SessionId, query: Annotated[GitLogQuery, Query()], services: AppServices) -> Response:
    """The latest first."""
    found = await services.git.log(session_id, query.revision, query.limit, query.skip)
    return reply(GitLogPage(commits=[GitCommitShape.of(each) for each in found]))
