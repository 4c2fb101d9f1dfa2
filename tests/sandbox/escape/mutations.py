"""Switches each protection off in turn, and shows that its test then fails: `python -m tests.sandbox.escape.mutations`.

Works on a copy of the checkout. `--only WORD` takes the mutations whose names have it. The exit code is 1 if a test
fails without a mutation, or passes with one.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 240
_PODMAN = "tests/sandbox/test_podman.py"
_WAYS = "tests/sandbox/escape/test_ways_out.py"
_FILES = "tests/sandbox/conformance/test_files.py"
_SPEC = "milepost/sandboxes/podman/spec.py"
_RACES = "tests/sandbox/escape/test_races.py"
_WORKSPACE = "milepost/sandboxes/supervisor/workspace.py"
_SNAPSHOTS = "milepost/snapshots/git.py"


@dataclass(frozen=True, slots=True)
class Mutation:
    """`old` in `file` becomes `new`; then `test` (a node id, and `-k` words) must fail."""

    name: str
    file: str
    old: str
    new: str
    test: str
    words: str = ""
    also: tuple[str, str] | None = None
    """A second place of the file, where two protections stand for each other."""


MUTATIONS = (
    Mutation(
        "capabilities stay", _SPEC, '"cap_drop": ["all"]', '"cap_drop": []', f"{_PODMAN}::test_the_container_is_closed"
    ),
    Mutation(
        "new privileges",
        _SPEC,
        '"no_new_privileges": True',
        '"no_new_privileges": False',
        f"{_PODMAN}::test_the_container_is_closed",
    ),
    Mutation(
        "no system call filter",
        _SPEC,
        '"seccomp_profile_path": seccomp_path',
        '"seccomp_profile_path": "unconfined"',
        f"{_PODMAN}::test_the_container_is_closed",
    ),
    Mutation(
        "writable root",
        _SPEC,
        '"read_only_filesystem": True',
        '"read_only_filesystem": False',
        f"{_PODMAN}::test_the_container_is_closed",
    ),
    Mutation(
        "the host's network",
        _SPEC,
        '{"nsmode": "none" if spec.network == "none" else limits.network_mode}',
        '{"nsmode": "host"}',
        f"{_WAYS}::test_what_listens_on_this_host_is_out_of_reach",
    ),
    Mutation(
        "temporary files without a size",
        _SPEC,
        '_tmpfs("/tmp", "512m", "1777")',
        '_tmpfs("/tmp", "4g", "1777")',
        f"{_WAYS}::test_a_flood_of_processes_and_bytes_leaves_others_at_work",
    ),
    Mutation(
        "processes without a limit",
        _SPEC,
        '{"limit": wanted.pids}',
        '{"limit": 4000}',
        f"{_WAYS}::test_processes_are_limited_in_number",
        also=('("nproc", spec.limits.pids)', '("nproc", 4000)'),
    ),
    Mutation(
        "memory without a limit",
        _SPEC,
        '{"limit": wanted.memory_bytes, "swap": wanted.memory_bytes}',
        '{"limit": 4 << 30, "swap": 4 << 30}',
        f"{_PODMAN}::test_memory_has_a_limit_where_the_host_can_enforce_it",
    ),
    Mutation(
        "root of the host mapped in",
        "milepost/sandboxes/podman/opening.py",
        "    if 0 not in owner:\n        ways.append(mappings.root_direct(owner, base))",
        "    ways = [mappings.root_direct(owner, base)]",
        f"{_PODMAN}::test_the_container_is_closed",
    ),
    Mutation(
        "ways to the host stay open with a bridge",
        "milepost/sandboxes/podman/network.py",
        "for target in (*ALWAYS, *addresses)]",
        "for target in ()]",
        f"{_PODMAN}::test_a_bridged_sandbox_has_no_way_to_this_host",
    ),
    Mutation(
        "directories that become links are followed",
        _WORKSPACE,
        "flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC",
        "flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC",
        f"{_RACES}::test_a_directory_that_becomes_a_link",
    ),
    Mutation(
        "files that become links are followed",
        _WORKSPACE,
        "flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK",
        "flags = os.O_RDONLY | os.O_NONBLOCK",
        f"{_RACES}::test_a_file_that_becomes_a_link",
    ),
    Mutation(
        "pipes and sockets are read like files",
        _WORKSPACE,
        "if not stat.S_ISREG(kind):",
        "if False:",
        f"{_WAYS}::test_what_takes_the_place_of_a_file_is_neither_read_nor_waited_for",
        also=("if not stat.S_ISREG(os.fstat(fd).st_mode):", "if False:"),
    ),
    Mutation(
        "links lead out",
        _WORKSPACE,
        "todo[:0] = self.parts(target,",
        "return part\n                todo[:0] = self.parts(target,",
        f"{_FILES}::test_links_inside_work_also_absolute_ones",
        "local",
    ),
    Mutation(
        "paths outside the Workspace",
        _WORKSPACE,
        'if path != self.root and not path.startswith(self.root + b"/"):',
        "if False:",
        f"{_FILES}::test_paths_do_not_leave_the_workspace",
        "local",
    ),
    Mutation(
        "the host's variables inside",
        "milepost/sandboxes/client.py",
        "self._environment = dict(environment or {})",
        "import os; self._environment = {**os.environ, **(environment or {})}",
        f"{_WAYS}::test_environment_variables_of_this_process_are_not_inside",
    ),
    Mutation(
        "the supervisor can be traced",
        "milepost/sandboxes/supervisor/main.py",
        "kernel.set_dumpable(False)",
        "kernel.set_dumpable(True)",
        f"{_WAYS}::test_the_supervisor_and_the_kernel_are_closed",
    ),
    Mutation(
        "commands may speak to the supervisor",
        "milepost/sandboxes/supervisor/server.py",
        "(pid != 0 and kernel.is_descendant(pid, os.getpid()))",
        "False",
        f"{_WAYS}::test_no_command_is_taken_for_the_worker",
    ),
    Mutation(
        "anybody may pose as the supervisor",
        "milepost/sandboxes/bundle.py",
        "socket.SO_PEERCRED, 12))[0] != 1:",
        "socket.SO_PEERCRED, 12))[0] != 1 and False:",
        "tests/sandbox/test_parts.py::test_the_bridge_speaks_to_the_first_process_only",
    ),
    Mutation(
        "output without a bound",
        "milepost/sandboxes/supervisor/operation.py",
        "def __init__(self, limit: int = STREAM_LIMIT)",
        "def __init__(self, limit: int = 1 << 40)",
        f"{_WAYS}::test_a_flood_of_processes_and_bytes_leaves_others_at_work",
    ),
    Mutation(
        "disk use without a bound",
        "milepost/sandboxes/bundle.py",
        '"limit": limits.workspace_bytes',
        '"limit": 1 << 50',
        "tests/sandbox/conformance/test_disk.py::test_a_workspace_stays_within_its_bound",
        "local",
    ),
    Mutation(
        "ports on every address",
        "milepost/sandboxes/forwarding.py",
        'LOOPBACK = "127.0.0.1"',
        'LOOPBACK = "0.0.0.0"',
        "tests/sandbox/conformance/test_ports.py",
        "podman",
    ),
    Mutation(
        "what steers a terminal is printed like other text",
        "cli/output.py",
        "def printable(text: str) -> str:\n",
        "def printable(text: str) -> str:\n    return text\n",
        "tests/cli/test_output.py",
    ),
    Mutation(
        "attributes of the Workspace count on the host",
        "milepost/snapshots/shadow.py",
        '_ATTRIBUTES = "* -text !eol -filter -ident -working-tree-encoding !diff !merge\\n"',
        '_ATTRIBUTES = ""',
        "tests/snapshots/test_hostile.py::test_configuration_hooks_and_attributes",
    ),
    Mutation(
        "this process's variables reach git on the host, and count",
        _SNAPSHOTS,
        "            **_ENVIRONMENT,\n",
        "            **os.environ,\n",
        "tests/snapshots/test_hostile.py::test_configuration_hooks_and_attributes",
        also=("settings = [*_SAFE, ", "settings = ["),
    ),
    Mutation(
        "git asks the repository whom to run",
        "milepost/engine/git.py",
        '"core.fsmonitor=false", ',
        "",
        "tests/git/test_service.py::test_looking_starts_nothing_that_the_repository_names",
    ),
)


def copied(folder: Path) -> Path:
    """A copy of the checkout, which can be changed."""
    copy = folder / "copy"
    ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".hypothesis")
    shutil.copytree(ROOT, copy, ignore=ignored, symlinks=True)
    return copy


def passes(copy: Path, mutation: Mutation) -> bool:
    """Whether the mutation's test passes in the copy; one that ran nothing does not count as passed."""
    words = ["-k", mutation.words] if mutation.words else []
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "--timeout",
        "120",
        mutation.test,
        *words,
    ]
    try:
        done = subprocess.run(command, cwd=copy, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and b" passed" in done.stdout


def survives(copy: Path, mutation: Mutation) -> bool:
    """Whether the test passes although the protection is off. The file is as before afterwards."""
    file = copy / mutation.file
    text = file.read_text(encoding="utf-8")
    changes = [(mutation.old, mutation.new), *([mutation.also] if mutation.also else [])]
    if any(old not in text for old, _ in changes):
        raise SystemExit(f"{mutation.name}: {mutation.file} has changed; the mutation must follow.")
    mutated = text
    for old, new in changes:
        mutated = mutated.replace(old, new, 1)
    file.write_text(mutated, encoding="utf-8")
    try:
        return passes(copy, mutation)
    finally:
        file.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="WORD")
    chosen = [mutation for mutation in MUTATIONS if parser.parse_args().only in mutation.name]
    bad = 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copy = copied(Path(folder))
        print("| protection switched off | test | without | with |\n|---|---|---|---|", flush=True)
        whole: dict[tuple[str, str], bool] = {}
        for mutation in chosen:
            key = (mutation.test, mutation.words)
            if key not in whole:
                whole[key] = passes(copy, mutation)
            before, after = whole[key], survives(copy, mutation)
            bad += not before or after
            print(
                f"| {mutation.name} | `{mutation.test.removeprefix('tests/')}` | {'passes' if before else 'FAILS'} | "
                f"{'PASSES' if after else 'fails'} |",
                flush=True,
            )
    return 1 if bad or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
