"""Commands: streams, ends, process trees, attachment."""

from __future__ import annotations

import asyncio

import pytest

from milepost.domain.errors import PayloadTooLarge, SandboxLost
from milepost.ports.sandbox import Exec, Outcome
from tests.sandbox.boxes import new_id
from tests.sandbox.conformance.backends import Backend, Box, Capability

MIB = 1024 * 1024

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs(Capability.SHELL)]


async def test_streams_are_separate_and_the_exit_code_is_exact(box: Box) -> None:
    outcome = await box.sh("echo out; echo err >&2; exit 3")
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (3, b"out\n", b"err\n")
    assert not (outcome.timed_out or outcome.killed or outcome.truncated or outcome.attached)


async def test_a_signal_is_128_plus_its_number(box: Box) -> None:
    assert (await box.sh("kill -TERM $$")).exit_code == 143
    assert (await box.sh("kill -KILL $$")).exit_code == 137


async def test_a_missing_command_is_127(box: Box) -> None:
    outcome = await box.sh("no-such-command-here")
    assert outcome.exit_code == 127
    assert b"no-such-command-here" in outcome.stderr


async def test_input_is_closed_and_there_is_no_terminal(box: Box) -> None:
    outcome = await box.sh("cat; test -t 0 || echo no terminal")
    assert outcome.stdout == b"no terminal\n"


@pytest.mark.needs(Capability.INPUT)
async def test_a_command_reads_its_input_to_the_end(box: Box) -> None:
    data = bytes(range(256)) * 4096
    outcome = await box.run(Exec("cat", stdin=data))
    assert outcome.stdout == data
    assert (await box.run(Exec("cat; echo end"))).stdout == b"end\n"
    with pytest.raises(PayloadTooLarge):
        await box.run(Exec("cat", stdin=bytes(8 * 1024 * 1024 + 1)))


async def test_output_arrives_while_the_command_runs(box: Box) -> None:
    pieces: list[tuple[str, bytes]] = []

    def on_output(stream: str, data: bytes) -> None:
        pieces.append((stream, data))
        if data == b"first\n":
            # The command waits for this file: it can only end if its first output came before its end.
            (box.workspace / "seen").write_text("yes")

    outcome = await box.run(
        Exec("echo first; until [ -e seen ]; do sleep 0.01; done; echo last >&2", timeout=30), on_output
    )
    assert outcome.exit_code == 0
    assert pieces == [("stdout", b"first\n"), ("stderr", b"last\n")]


async def test_binary_output_is_exact(box: Box) -> None:
    outcome = await box.sh("printf '\\000\\377\\r\\n\\200'")
    assert outcome.stdout == b"\x00\xff\r\n\x80"


async def test_huge_output_keeps_head_and_tail_and_says_so(box: Box) -> None:
    outcome = await box.sh(f"echo begin; head -c {20 * MIB} /dev/zero | tr '\\0' x; echo; echo end")
    assert outcome.exit_code == 0
    assert outcome.truncated
    assert outcome.stdout.startswith(b"begin\nxxx")
    assert outcome.stdout.endswith(b"x\nend\n")
    assert b"bytes left out" in outcome.stdout
    assert len(outcome.stdout) < 17 * MIB
    assert outcome.detail["stdout_bytes"] == 20 * MIB + 11


async def test_output_below_the_bound_is_whole(box: Box) -> None:
    outcome = await box.sh(f"head -c {5 * MIB} /dev/zero")
    assert outcome.stdout == bytes(5 * MIB)
    assert not outcome.truncated


async def test_commands_run_side_by_side(box: Box) -> None:
    command = "touch in-{n}; until [ $(ls in-* | wc -l) = 6 ]; do sleep 0.02; done; echo {n}"
    outcomes = await asyncio.gather(*(box.sh(command.format(n=n)) for n in range(6)))
    assert [outcome.stdout for outcome in outcomes] == [f"{n}\n".encode() for n in range(6)]


async def test_the_working_directory_is_in_the_workspace(box: Box) -> None:
    (box.workspace / "sub").mkdir()
    assert (await box.sh("pwd")).stdout.decode().strip() == box.root
    assert (await box.run(Exec("pwd", cwd="sub"))).stdout.decode().strip() == f"{box.root}/sub"
    missing = await box.run(Exec("pwd", cwd="nowhere"))
    assert missing.error_code == "not_found"
    outside = await box.run(Exec("pwd", cwd="../.."))
    assert outside.error_code == "outside_workspace"


async def test_a_command_longer_than_one_argument_may_be(box: Box) -> None:
    lines = "line of text\n" * 30_000
    outcome = await box.sh(f"cat > big.txt <<'END'\n{lines}END\nwc -l < big.txt")
    assert outcome.stdout.strip() == b"30000"


async def test_a_command_over_the_bound_is_refused_with_numbers(box: Box) -> None:
    with pytest.raises(PayloadTooLarge, match="16777216"):
        await box.sh("x" * (16 * MIB + 1))


async def test_environment_is_small_and_leaks_nothing(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_SECRET", "canary-value")
    # Root may read any process, so only the container can show that the supervisor's own environment is closed.
    command = "env" if box.privileged else "env; tr '\\0' '\\n' < /proc/1/environ"
    outcome = await box.sh(command)
    seen = dict(line.split("=", 1) for line in outcome.stdout.decode().splitlines() if "=" in line)
    assert "canary" not in outcome.stdout.decode()
    assert seen["ALLOWED"] == "yes"
    assert seen["TERM"] == "dumb"
    assert not any(name.startswith("MILEPOST") for name in seen)
    known = {"ALLOWED", "TERM", "HOME", "PATH", "LANG", "LC_CTYPE", "PWD", "SHLVL", "_", "HOSTNAME", "container"}
    assert set(seen) <= known | {"IMAGE_SETTING", "OLDPWD", "USER", "LOGNAME"}


# --- process trees ----------------------------------------------------------------------------------------------

TREES = {
    "child": "sleep {n} & wait",
    "new session": "setsid sleep {n} & wait",
    "double fork with an empty environment": "(setsid env -i sleep {n} </dev/null >/dev/null 2>&1 &) ; sleep {n}",
    "ignores signals": "trap '' TERM INT HUP; sleep {n}; sleep {n}",
    "stopped": "sleep {n} & kill -STOP $!; wait",
    "background with output held": "sleep {n} & sleep {n} & sleep {n}",
}


@pytest.mark.parametrize("tree", TREES)
async def test_a_timeout_ends_the_whole_tree(box: Box, tree: str) -> None:
    outcome = await box.run(Exec("echo started; " + TREES[tree].format(n="54321"), timeout=0.4))
    assert (outcome.exit_code, outcome.timed_out, outcome.stdout) == (124, True, b"started\n")
    assert await box.processes("sleep 54321") == []


@pytest.mark.parametrize("tree", TREES)
async def test_a_kill_ends_the_whole_tree(box: Box, tree: str) -> None:
    effect, started = new_id(), asyncio.Event()
    command = Exec("echo started; " + TREES[tree].format(n="65432"))
    task = asyncio.create_task(box.sandbox.perform(effect, command, lambda *_: started.set()))
    async with asyncio.timeout(30):
        await started.wait()
    await box.sandbox.kill(effect)
    assert await box.processes("sleep 65432") == []
    outcome = await task
    assert (outcome.exit_code, outcome.killed, outcome.stdout) == (None, True, b"started\n")


async def test_what_a_command_leaves_behind_ends_with_it(box: Box) -> None:
    outcome = await box.sh("(setsid env -i sleep 76543 >/dev/null 2>&1 &); sleep 76543 & echo done")
    assert (outcome.exit_code, outcome.stdout) == (0, b"done\n")
    assert outcome.detail["leftover_processes"] == 2
    assert await box.processes("sleep 76543") == []


async def test_killing_is_idempotent_and_knows_no_strangers(box: Box) -> None:
    effect = new_id()
    await box.sandbox.kill(effect)
    outcome = await box.sandbox.perform(effect, Exec("echo ran"))
    await box.sandbox.kill(effect)
    again = await box.sandbox.attach(effect)
    assert (outcome.stdout, again.stdout, again.killed) == (b"ran\n", b"ran\n", False)


async def test_killing_one_command_leaves_the_others(box: Box) -> None:
    effect, started = new_id(), asyncio.Event()
    doomed = asyncio.create_task(box.sandbox.perform(effect, Exec("echo x; sleep 100"), lambda *_: started.set()))
    other = asyncio.create_task(box.sh("until [ -e go ]; do sleep 0.01; done; echo alive"))
    async with asyncio.timeout(30):
        await started.wait()
    await box.sandbox.kill(effect)
    assert (await doomed).killed
    (box.workspace / "go").touch()
    assert (await other).stdout == b"alive\n"


async def test_a_command_that_kills_its_own_keeper_leaves_nothing(box: Box) -> None:
    outcome = await box.sh("sleep 87654 & kill -9 $PPID; sleep 87654")
    assert outcome.exit_code == 137
    assert await box.processes("sleep 87654") == []


@pytest.mark.needs(Capability.GUARDED)
async def test_a_command_that_kills_everything_does_not_kill_the_supervisor(box: Box) -> None:
    outcome = await box.sh("kill -9 -1; kill -9 1; sleep 100")
    assert outcome.exit_code == 137
    assert (await box.sh("echo still here")).stdout == b"still here\n"


# --- attachment -------------------------------------------------------------------------------------------------


async def test_the_same_id_never_runs_twice(box: Box) -> None:
    effect, command = new_id(), Exec("echo ran >> journal; sleep 0.2; echo out")
    both = await asyncio.gather(*(box.sandbox.perform(effect, command) for _ in range(3)))
    later = await box.sandbox.perform(effect, Exec("echo other >> journal"))
    assert [outcome.stdout for outcome in (*both, later)] == [b"out\n"] * 4
    assert [outcome.attached for outcome in (*both, later)] == [False, True, True, True]
    assert (box.workspace / "journal").read_text() == "ran\n"


async def test_attaching_to_an_unknown_id_is_a_lost_sandbox(box: Box) -> None:
    with pytest.raises(SandboxLost):
        await box.sandbox.attach(new_id())


async def test_giving_up_the_wait_does_not_stop_the_command(box: Box) -> None:
    effect, started = new_id(), asyncio.Event()
    command = Exec("echo begin; until [ -e go ]; do sleep 0.01; done; echo end; echo ran >> journal")
    task = asyncio.create_task(box.sandbox.perform(effect, command, lambda *_: started.set()))
    async with asyncio.timeout(30):
        await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (box.workspace / "go").touch()
    outcome = await box.sandbox.attach(effect)
    assert (outcome.stdout, outcome.attached) == (b"begin\nend\n", True)
    assert (box.workspace / "journal").read_text() == "ran\n"


async def test_another_worker_attaches_and_gets_all_output_from_the_start(box: Box) -> None:
    effect, started = new_id(), asyncio.Event()
    command = Exec("echo begin; until [ -e go ]; do sleep 0.01; done; echo end")
    first = asyncio.create_task(box.sandbox.perform(effect, command, lambda *_: started.set()))
    async with asyncio.timeout(30):
        await started.wait()
    other = await box.another()
    pieces: list[bytes] = []
    second = asyncio.create_task(other.attach(effect, lambda _, data: pieces.append(data)))
    (box.workspace / "go").touch()
    outcomes: list[Outcome] = [await first, await second]
    assert [outcome.stdout for outcome in outcomes] == [b"begin\nend\n"] * 2
    assert b"".join(pieces) == b"begin\nend\n"


async def test_a_lost_link_is_found_again_without_repeating_output(backend: Backend, box: Box) -> None:
    """The bridge (or the socket) is cut while the command runs; the command must not notice."""
    pieces: list[bytes] = []
    effect, started = new_id(), asyncio.Event()

    def on_output(_: str, data: bytes) -> None:
        pieces.append(data)
        started.set()

    command = Exec("echo begin; until [ -e go ]; do sleep 0.01; done; echo end; echo ran >> journal")
    task = asyncio.create_task(box.sandbox.perform(effect, command, on_output))
    async with asyncio.timeout(30):
        await started.wait()
    await backend.cut(box)
    (box.workspace / "go").touch()
    outcome = await task
    assert (outcome.stdout, outcome.attached) == (b"begin\nend\n", False)
    assert b"".join(pieces) == b"begin\nend\n"
    assert (box.workspace / "journal").read_text() == "ran\n"


@pytest.mark.needs(Capability.USER)
async def test_permission_bits_hold_for_the_sandbox_user(box: Box) -> None:
    outcome = await box.sh("id -u; touch /usr/x /etc/x 2>&1 | wc -l")
    assert outcome.stdout == b"1000\n2\n"


async def test_the_working_directory_at_the_end_is_told(box: Box) -> None:
    (box.workspace / "a dir").mkdir()
    (box.workspace / "link").symlink_to("a dir")

    async def place(command: str, cwd: str = ".") -> tuple[int | None, object, object]:
        outcome = await box.run(Exec(command, cwd, keep_cwd=True))
        return outcome.exit_code, outcome.detail.get("cwd"), outcome.detail.get("cwd_outside")

    assert await place("cd 'a dir'") == (0, "a dir", None)
    assert await place("cd ..; exit 3", "a dir") == (3, ".", None)
    assert await place("cd link && set -e && false") == (1, "a dir", None)
    assert await place("(cd 'a dir'); true") == (0, ".", None)
    assert await place("cd /tmp") == (0, None, "/tmp")
    assert await place("mkdir new; cd new; no-such-command") == (127, "new", None)
    # A shell that is replaced, or has an end of its own, tells nothing.
    assert await place("cd 'a dir'; exec true") == (0, None, None)
    assert await place("cd 'a dir'; kill -9 $$") == (137, None, None)
    assert "cwd" not in (await box.sh("cd 'a dir'")).detail


async def test_telling_it_changes_nothing_that_a_command_sees(box: Box) -> None:
    outcome = await box.run(Exec("exec 9>lock; flock 9; echo in >&9; no-such; bash -c 'echo $BASH_ENV'", keep_cwd=True))
    assert (box.workspace / "lock").read_bytes() == b"in\n"
    assert outcome.stdout == b"\n"
    assert b"line 1: no-such" in outcome.stderr or b"1: no-such" in outcome.stderr
    assert outcome.detail["cwd"] == "."
    outcome = await box.run(Exec("ls /proc/self/fd | wc -l; env | grep -c BASH", keep_cwd=True))
    plain = await box.sh("ls /proc/self/fd | wc -l; env | grep -c BASH")
    assert outcome.stdout == plain.stdout


async def test_a_working_directory_that_is_gone_gives_way_to_the_workspace(box: Box) -> None:
    outcome = await box.run(Exec("pwd", "gone", keep_cwd=True))
    assert outcome.stdout.decode().strip() == box.root
    assert (outcome.exit_code, outcome.detail["cwd"]) == (0, ".")
    assert "gone" in str(outcome.detail["cwd_lost"])
    assert (await box.run(Exec("pwd", "gone"))).error_code == "not_found"
