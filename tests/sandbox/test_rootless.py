"""What holds under the service of an ordinary user; docs/sandbox.md says what is tried under root's service."""

from __future__ import annotations

import os
import re
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from milepost.domain.errors import SandboxUnavailable
from milepost.ports.sandbox import Exec, Sandbox, SandboxLimits, SandboxSpec, Volume
from milepost.sandboxes.podman.provider import PodmanProvider
from tests.sandbox.conformance import (
    test_commands,
    test_core,
    test_disk,
    test_files,
    test_ports,
    test_processes,
    test_restart,
    test_sessions,
)
from tests.sandbox.conformance.backends import PodmanBackend
from tests.support.needs import unavailable
from tests.support.podman import alone, new_instance
from tests.support.rootless import Rootless, rootless_service
from tests.support.services import SERVICES, describe

pytestmark = [pytest.mark.podman, pytest.mark.slow]
SOCKET = "MILEPOST_TEST_ROOTLESS_SOCKET"
"""Names the socket of an ordinary user's service to test with, of another version for example."""

CONFORMANCE = (
    test_core.test_the_same_id_runs_once_for_all_who_ask,
    test_core.test_a_stop_ends_a_command_and_is_idempotent,
    test_core.test_processes_are_known_by_their_ids_until_they_end,
    test_commands.test_streams_are_separate_and_the_exit_code_is_exact,
    test_commands.test_huge_output_keeps_head_and_tail_and_says_so,
    test_commands.test_a_command_reads_its_input_to_the_end,
    test_commands.test_permission_bits_hold_for_the_sandbox_user,
    test_files.test_permissions_are_reported,
    test_files.test_write_creates_parents_and_read_returns_the_bytes,
    test_processes.test_a_shell_in_a_terminal_takes_keys_size_and_signals,
)


@pytest.fixture(scope="module")
def rootless() -> Iterator[Rootless]:
    if os.environ.get(SOCKET):
        with tempfile.TemporaryDirectory(prefix="mp-rl-") as folder:
            Path(folder).chmod(0o755)
            made = Rootless("", Path(os.environ[SOCKET]).stat().st_uid, os.environ[SOCKET], Path(folder))
            alone(lambda: _build(made))
            yield made
        return
    try:
        with rootless_service() as made:
            alone(lambda: _build(made))
            yield made
    except SandboxUnavailable as error:
        unavailable("a rootless Podman service", str(error))


async def _build(made: Rootless) -> None:
    provider = provider_of(made)
    await provider.build_image()
    SERVICES["rootless"] = describe(await provider.check())
    await provider.close()


def provider_of(made: Rootless, *, agreed: bool = True) -> PodmanProvider:
    data = made.folder / "data"
    data.mkdir(exist_ok=True)
    return PodmanProvider(data, new_instance(), socket=made.socket, allow_unenforced=agreed)


async def sh(box: Sandbox, command: str) -> str:
    outcome = await box.perform(uuid.uuid4().hex, Exec(command, timeout=60))
    return (outcome.stdout + outcome.stderr).decode()


async def test_limits_that_the_host_cannot_enforce_are_refused_or_agreed_to(rootless: Rootless) -> None:
    strict, agreed = provider_of(rootless, agreed=False), provider_of(rootless)
    told = await agreed.check()
    assert told.ok and "rootless" in told.detail
    health = await strict.check()
    assert health.ok == (not told.unenforced)
    if told.unenforced:
        assert "allow_unenforced_limits" in str(health.fix)
        workspace = str(rootless.workspace("strict"))
        with pytest.raises(SandboxUnavailable, match="cannot enforce"):
            await strict.open(SandboxSpec("s", strict.instance_id, workspace))
    for provider in (strict, agreed):
        await provider.close()


async def test_a_sandbox_of_an_ordinary_user(rootless: Rootless) -> None:
    """Closed, on a private folder, with files that belong to the user; its volumes outlive it; nothing stays behind."""
    provider = provider_of(rootless)
    workspace = rootless.workspace("private")
    volumes = frozenset({Volume.HOME, Volume.NODE_MODULES})
    spec = SandboxSpec("s", provider.instance_id, str(workspace), volumes=volumes, limits=SandboxLimits(pids=64))
    box = await provider.open(spec)
    assert await sh(box, "id -u; touch made ~/kept node_modules/inside; ls") == "1000\nmade\nnode_modules\n"
    for path in (workspace / "made", workspace / "node_modules"):
        assert path.stat().st_uid == rootless.uid, path
    status = await sh(box, "grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status | cut -f 2")
    assert status.split() == ["0000000000000000", "1", "2"]
    assert "not permitted" in (await sh(box, "unshare -Ur true")).lower()
    assert (await sh(box, "tail -n +3 /proc/net/dev | cut -d: -f1")).split() == ["lo"]
    forks = "i=0; while [ $i -lt 200 ]; do sleep 3 & i=$((i+1)); done 2>&1 | tail -1"
    # What the shell says of it depends on the moment at which it is refused.
    assert re.search("fork: .*(temporarily unavailable|Interrupted system call)", await sh(box, forks))
    await sh(box, "setsid sh -c 'sleep 300 & sleep 300' & sleep 0.2")
    await provider.remove("s")
    kept = await provider.open(replace(spec, fresh=False))
    assert await sh(kept, "ls ~ node_modules") == "/home/agent:\nkept\n\nnode_modules:\ninside\n"
    await provider.destroy("s")
    assert await provider.holdings() == ()
    await provider.close()


async def test_the_suite_of_all_back_ends(rootless: Rootless) -> None:
    """A part of it on a container they share; trees, restarts, Sessions, ports and disk use on their own."""
    shared = rootless.workspace("shared")
    options = {"socket": rootless.socket, "allow_unenforced": True}
    backend = PodmanBackend(rootless.folder / "data", shared, "rootless", options, rootless.uid)
    try:
        for check in CONFORMANCE:
            await check(await backend.box())
        for tree in test_commands.TREES:
            await test_commands.test_a_kill_ends_the_whole_tree(await backend.box(), tree)
        for own in (
            test_core.test_sessions_are_apart_and_end_apart,
            test_sessions.test_sessions_do_not_see_each_other,
            test_restart.test_files_survive_and_what_ran_is_reported_lost,
            test_ports.test_a_port_answers_on_loopback_alone,
            test_disk.test_a_workspace_stays_within_its_bound,
        ):
            await own(backend, rootless.workspace(own.__name__))
    finally:
        await backend.close()


async def test_the_examination_of_an_ordinary_users_service(rootless: Rootless) -> None:
    provider = provider_of(rootless)
    folder = rootless.workspace("examined")
    found = await provider.examine(network="none", allow_unenforced=True, folder=folder)
    assert [each for each in found if not each.ok] == []
    names = {each.name for each in found}
    assert {"service", "cgroups", "storage", "seccomp", "image", "container", "process limit", "removal"} <= names
    await provider.close()
