"""`milepost git ...`: work in the repository of a Session's sandbox."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from cli.invocation import Invocation, command
from cli.output import short
from cli.routes import API, Json
from milepost.domain.errors import InstanceNotRunning, InvalidInput

if TYPE_CHECKING:
    from cli.client import ApiClient

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="Id of a Session.")]
Paths = Annotated[list[str] | None, typer.Argument(metavar="[PATH]...", help="Files or folders.")]
HunkIds = Annotated[
    list[str] | None, typer.Option("--hunk", metavar="ID", help="A hunk, as `git diff` names it; repeatable.")
]
Patch = Annotated[bool, typer.Option("--patch", "-p", help="Ask about each hunk.")]
Actor = Annotated[str | None, typer.Option("--actor", metavar="NAME", help="Who does it; kept in the ledger.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Git in a Session's sandbox; never this machine's git.", no_args_is_help=True)
    app.add_typer(group, name="git")
    for name, function in (
        ("status", status),
        ("diff", diff),
        ("stage", stage),
        ("unstage", unstage),
        ("discard", discard),
        ("discarded", discarded),
        ("commit", commit),
        ("branches", branches),
        ("branch", branch),
        ("delete-branch", delete_branch),
        ("checkout", checkout),
        ("log", log),
    ):
        command(group, name)(function)


@asynccontextmanager
async def _instance(call: Invocation) -> AsyncIterator[ApiClient]:
    from cli.connection import running

    found = await running(call.root)
    if found is None:
        raise InstanceNotRunning(
            f"No instance runs on {call.root.path}, so no sandbox is open.", fix="Start one: milepost dev"
        )
    try:
        yield found.client
    finally:
        await found.client.close()


def _path(session: str, name: str) -> str:
    return f"{API}/sessions/{session}/git/{name}"


async def status(call: Invocation, session: SessionId) -> None:
    """Show the branch, and the files that are not as in the last commit."""
    async with _instance(call) as client:
        _show_status(call, await client.get(_path(session, "status")))


def _show_status(call: Invocation, found: Json) -> None:
    if call.json:
        call.out.document(found)
        return
    where = found["branch"] or f"detached at {(found['commit'] or '')[:12]}"
    ahead = (
        "" if found["ahead"] is None else f", {found['ahead']} ahead and {found['behind']} behind {found['upstream']}"
    )
    doing = f" ({', '.join(found['under_way'])} under way)" if found["under_way"] else ""
    call.out.line(f"On {where}{'' if found['commit'] else ', without commits'}{ahead}{doing}")
    if not found["files"]:
        call.out.line("Nothing has changed.")
    for each in found["files"]:
        name = each["path"] if each["before"] is None else f"{each['before']} -> {each['path']}"
        letters = "??" if each["worktree"] == "?" else f"{each['index']}{each['worktree']}".replace(".", " ")
        call.out.line(f"{letters} {short(name, 200)}{'   conflict' if each['conflict'] else ''}")
    if not found["complete"]:
        call.out.line("There are more.")


async def diff(
    call: Invocation,
    session: SessionId,
    path: Paths = None,
    staged: Annotated[bool, typer.Option("--staged", help="What is staged, against the last commit.")] = False,
    head: Annotated[bool, typer.Option("--head", help="Files against the last commit.")] = False,
    revision: Annotated[str | None, typer.Option("--from", metavar="REV", help="Compare with this commit.")] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="REV", help="Up to this one, instead of the files.")] = None,
) -> None:
    """Show what has changed, with the id of each hunk."""
    side = "staged" if staged else "head" if head else "worktree"
    async with _instance(call) as client:
        files = await _files(client, session, side, path, revision, to)
    if call.json:
        call.out.document({"files": files})
        return
    for each in files:
        _show_file(call, each)
        for hunk in each["hunks"]:
            _show_hunk(call, hunk)
        if each["left_out"]:
            call.out.line(f"[{each['left_out']} more hunks: milepost git diff {session} {each['path']}]")


async def _files(
    client: ApiClient,
    session: str,
    side: str,
    paths: list[str] | None,
    revision: str | None = None,
    to: str | None = None,
) -> list[Json]:
    files: list[Json] = []
    after: int | None = 0
    between = {"from": revision, "to": to}
    while after is not None:
        page = await client.get(_path(session, "diff"), side=side, file=paths or None, after=after, **between)
        files += page["files"]
        after = page["next_after"]
    return files


def _show_file(call: Invocation, found: Json) -> None:
    name = found["path"] if found["before"] is None else f"{found['before']} -> {found['path']}"
    notes = ["binary"] if found["binary"] else []
    if found["old_mode"] != found["new_mode"]:
        notes.append(f"mode {found['old_mode'] or 'none'} -> {found['new_mode'] or 'none'}")
    call.out.line(f"=== {found['status']} {short(name, 300)}{'   ' + ', '.join(notes) if notes else ''}")


def _show_hunk(call: Invocation, hunk: Json) -> None:
    call.out.line(f"{hunk['hunk_id']} {hunk['header']}")
    call.out.line(hunk["text"].rstrip("\n"))


async def _picked(
    call: Invocation,
    client: ApiClient,
    session: str,
    side: str,
    paths: list[str] | None,
    hunks: list[str] | None,
    patch: bool,
) -> Json:
    """What a change is about; with `patch` each hunk is asked about."""
    if not patch:
        if bool(paths) == bool(hunks):
            raise InvalidInput("Name files, or hunks with --hunk, or choose with --patch.", field="path")
        return {"paths": paths or [], "hunks": hunks or []}
    if not sys.stdin.isatty():
        raise InvalidInput("--patch asks on a terminal, and there is none.", fix="Name hunks: --hunk ID")
    chosen: list[str] = []
    for each in await _files(client, session, side, paths):
        _show_file(call, each)
        for hunk in each["hunks"]:
            _show_hunk(call, hunk)
            answer = (await asyncio.to_thread(input, "This hunk? [y/n/q] ")).strip().lower()
            if answer.startswith("q"):
                return {"hunks": chosen}
            if answer.startswith("y"):
                chosen.append(hunk["hunk_id"])
    return {"hunks": chosen}


async def _pick(
    call: Invocation,
    session: str,
    verb: str,
    side: str,
    chosen: tuple[list[str] | None, list[str] | None, bool],
    actor: str | None,
) -> Json | None:
    async with _instance(call) as client:
        body = await _picked(call, client, session, side, *chosen)
        if not body.get("paths") and not body.get("hunks"):
            call.out.line("Nothing was chosen.")
            return None
        return await client.post(_path(session, verb), {**body, "actor": actor})


async def stage(
    call: Invocation,
    session: SessionId,
    path: Paths = None,
    hunk: HunkIds = None,
    patch: Patch = False,
    actor: Actor = None,
) -> None:
    """Stage files or hunks for the next commit."""
    found = await _pick(call, session, "stage", "worktree", (path, hunk, patch), actor)
    if found is not None:
        _show_status(call, found)


async def unstage(
    call: Invocation,
    session: SessionId,
    path: Paths = None,
    hunk: HunkIds = None,
    patch: Patch = False,
    actor: Actor = None,
) -> None:
    """Take files or hunks out of the next commit; the files stay as they are."""
    found = await _pick(call, session, "unstage", "staged", (path, hunk, patch), actor)
    if found is not None:
        _show_status(call, found)


async def discard(
    call: Invocation,
    session: SessionId,
    path: Paths = None,
    hunk: HunkIds = None,
    patch: Patch = False,
    actor: Actor = None,
) -> None:
    """Throw changes of files or hunks away; a patch of them is kept."""
    found = await _pick(call, session, "discard", "worktree", (path, hunk, patch), actor)
    if found is not None:
        back = f"Discarded. What was thrown away: milepost git discarded {session} {found['operation_id']}"
        _show_done(call, found, back)


async def discarded(
    call: Invocation, session: SessionId, operation: Annotated[str, typer.Argument(metavar="OPERATION")]
) -> None:
    """Print the patch of what was discarded; `git apply` brings it back."""
    async with _instance(call) as client:
        async for piece in client.pieces(_path(session, f"discarded/{operation}")):
            sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


async def commit(
    call: Invocation,
    session: SessionId,
    message: Annotated[str, typer.Option("--message", "-m", metavar="TEXT", help="What the commit says.")],
    author: Annotated[
        str | None, typer.Option("--author", metavar="'NAME <ADDRESS>'", help="By default the repository's own.")
    ] = None,
    amend: Annotated[bool, typer.Option("--amend", help="Replace the last commit.")] = False,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Without the repository's hooks.")] = False,
    actor: Actor = None,
) -> None:
    """Commit what is staged."""
    name = address = None
    if author is not None:
        name, _, rest = author.partition("<")
        name, address = name.strip(), rest.rstrip(">").strip()
        if not name or not address:
            raise InvalidInput("An author is written as 'Name <address>'.", field="--author")
    body = {"message": message, "author_name": name, "author_email": address, "amend": amend, "verify": not no_verify}
    async with _instance(call) as client:
        found = await client.post(_path(session, "commit"), {**body, "actor": actor})
    _show_done(call, found, f"Committed {found['commit'][:12]} on {found['branch'] or 'a detached HEAD'}.")


async def branches(call: Invocation, session: SessionId) -> None:
    """List branches, the latest first."""
    async with _instance(call) as client:
        found = await client.get(_path(session, "branches"))
    if call.json:
        call.out.document(found)
        return
    for each in found["branches"]:
        mark = "*" if each["current"] else " "
        call.out.line(f"{mark} {each['name']}  {each['commit'][:12]}  {short(each['subject'], 80)}")


async def branch(
    call: Invocation,
    session: SessionId,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    start: Annotated[str | None, typer.Argument(metavar="[START]", help="Where it begins; default: HEAD.")] = None,
    stay: Annotated[bool, typer.Option("--stay", help="Do not check it out.")] = False,
    actor: Actor = None,
) -> None:
    """Make a branch and check it out."""
    body = {"name": name, "start": start, "checkout": not stay, "actor": actor}
    async with _instance(call) as client:
        found = await client.post(_path(session, "branches"), body)
    _show_done(call, found, f"Made {name}.")


async def delete_branch(
    call: Invocation,
    session: SessionId,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    force: Annotated[bool, typer.Option("--force", help="Also if it is not merged.")] = False,
    actor: Actor = None,
) -> None:
    """Delete a branch."""
    async with _instance(call) as client:
        found = await client.post(_path(session, "branches/delete"), {"name": name, "force": force, "actor": actor})
    _show_done(call, found, f"Deleted {name}, which was at {found['commit'] or 'no commit'}.")


async def checkout(
    call: Invocation,
    session: SessionId,
    target: Annotated[str, typer.Argument(metavar="BRANCH", help="A branch; with --detach any commit.")],
    detach: Annotated[bool, typer.Option("--detach", help="Check a commit out, on no branch.")] = False,
    actor: Actor = None,
) -> None:
    """Check a branch or commit out; refused if changes would be overwritten."""
    async with _instance(call) as client:
        found = await client.post(_path(session, "checkout"), {"target": target, "detach": detach, "actor": actor})
    _show_done(call, found, f"Checked out {target}.")


async def log(
    call: Invocation,
    session: SessionId,
    revision: Annotated[str, typer.Argument(metavar="[REV]", help="Where to begin.")] = "HEAD",
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="At most so many.")] = 20,
) -> None:
    """List commits, the latest first."""
    async with _instance(call) as client:
        found = await client.get(_path(session, "log"), revision=revision, limit=limit)
    if call.json:
        call.out.document(found)
        return
    for each in found["commits"]:
        call.out.line(f"{each['commit'][:12]}  {short(each['author'], 30)}  {short(each['subject'], 100)}")


def _show_done(call: Invocation, found: Json, text: str) -> None:
    if call.json:
        call.out.document(found)
    else:
        call.out.line(text)
