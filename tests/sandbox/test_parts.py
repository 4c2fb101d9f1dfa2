"""Parts that need no sandbox: frames, output bounds, the registry, globs, the container's specification, the image."""

from __future__ import annotations

import ast
import json
import re
import selectors
import socket
import stat
import subprocess
import sys
import tarfile
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.domain.errors import SandboxUnavailable
from milepost.ports.sandbox import SandboxLimits, SandboxSpec
from milepost.sandboxes import bundle, image
from milepost.sandboxes.podman import health, mapping, selfcheck, spec
from milepost.sandboxes.podman.provider import PodmanProvider
from milepost.sandboxes.podman.service import Host, PodmanService, check_version
from milepost.sandboxes.supervisor import registry, server, wire
from milepost.sandboxes.supervisor.operation import STREAM_LIMIT, TAIL_LIMIT, Operation, Stream
from milepost.sandboxes.supervisor.search import glob_to_regex
from tests.support.needs import unavailable

# --- frames -----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.dictionaries(st.text(), st.text() | st.integers()), st.binary()), max_size=5), st.data())
def test_frames_survive_any_cut(frames: list[tuple[dict[str, Any], bytes]], data: st.DataObject) -> None:
    stream = b"".join(wire.encode(head, body) for head, body in frames)
    decoder, found, at = wire.Decoder(), [], 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream)))
        found += list(decoder.feed(stream[at : at + size]))
        at += size
    assert found == frames


@pytest.mark.parametrize("data", [b"\xff" * 8, b"\0\0\0\2\0\0\0\0[]", b"\0\0\0\1\0\0\0\0x"])
def test_what_is_no_frame_is_an_error_not_a_buffer(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        list(wire.Decoder().feed(data))


def test_the_supervisor_travels_in_one_variable_and_names_itself_nowhere_else() -> None:
    packed = bundle.supervisor_environment("/w", "/c", "/h")
    assert len(packed[bundle.SOURCE_VARIABLE]) < 128 * 1024, "the kernel's bound of one string"
    assert len(" ".join(bundle.SUPERVISOR_COMMAND)) < 200


@pytest.mark.parametrize(("name", "source"), bundle._sources(), ids=lambda value: value if len(value) < 20 else "")
def test_the_supervisor_is_python_3_9_and_imports_the_standard_library_only(name: str, source: str) -> None:
    for node in ast.walk(ast.parse(source, feature_version=(3, 9))):
        if isinstance(node, ast.Import):
            assert {alias.name.partition(".")[0] for alias in node.names} <= sys.stdlib_module_names, name
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert str(node.module).partition(".")[0] in sys.stdlib_module_names, name


def test_the_bundle_holds_every_module_of_the_supervisor() -> None:
    folder = Path(bundle.__file__).parent / "supervisor"
    assert {name for name, _ in bundle._sources()} == {path.stem for path in folder.glob("*.py")} - {"__init__"}


def test_the_bridge_speaks_to_the_first_process_only() -> None:
    """Whoever else listens could be a command; nothing is sent to it."""
    address = f"milepost-test-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + address)
        listener.listen(1)
        command = [sys.executable, *bundle.bridge_command(address)[1:]]
        done = subprocess.run(
            command, input=b"secret", capture_output=True, env=bundle.bridge_environment(), timeout=60
        )
        assert (done.returncode, done.stdout, done.stderr) == (4, b"", b"what listens is not the supervisor")
        assert listener.accept()[0].recv(100) == b""


# --- output and registry ------------------------------------------------------------------------------------------


def test_a_stream_keeps_head_and_tail_and_counts_the_rest() -> None:
    stream = Stream(100)
    for _ in range(3000):
        stream.add(b"0123456789" * 10)
    stream.add(b"END")
    assert stream.finish()
    assert stream.total == 300_003
    assert stream.data.startswith(b"0123456789")
    assert stream.data.endswith(b"END")
    dropped = re.search(rb"\[\.\.\. (\d+) bytes left out", stream.data)
    assert dropped
    assert int(dropped[1]) == 300_003 - 100 - TAIL_LIMIT


@pytest.mark.parametrize("size", [0, 99, 100, 101, 100 + TAIL_LIMIT])
def test_a_stream_within_head_and_tail_is_whole(size: int) -> None:
    stream = Stream(100)
    stream.add(b"x" * size)
    assert not stream.finish()
    assert stream.data == b"x" * size
    assert STREAM_LIMIT > TAIL_LIMIT


def settled(effect_id: str, kind: str, size: int = 0) -> Operation:
    operation = Operation(effect_id, {"op": kind})
    operation.outcome, operation.result = {}, bytes(size)
    return operation


def test_the_registry_forgets_the_oldest_settled_ones_but_knows_that_they_ran() -> None:
    kept = registry.Registry()
    running = Operation("running", {"op": "exec"})
    kept.add(running)
    for number in range(registry.MAX_KEPT + 10):
        operation = settled(f"e{number}", "exec" if number % 2 else "read")
        kept.add(operation)
        kept.settled(operation)
    assert kept.get("running") is running
    assert kept.get("e1") is None
    assert kept.was_evicted("e1")
    assert not kept.was_evicted("e0"), "a read may simply be made again"
    assert kept.get(f"e{registry.MAX_KEPT + 9}") is not None


def test_the_registry_is_bounded_in_bytes_and_keeps_the_youngest() -> None:
    kept = registry.Registry()
    for number in range(20):
        operation = settled(f"e{number}", "exec", 10 * 1024 * 1024)
        kept.add(operation)
        kept.settled(operation)
    assert [number for number in range(20) if kept.get(f"e{number}")] == list(range(14, 20))


class _Greedy:
    """A socket that takes all it is given, and a selector that remembers what is waited for."""

    def __init__(self) -> None:
        self.taken = 0
        self.events = 0

    def send(self, data: bytes) -> int:
        self.taken += len(data)
        return len(data)

    def modify(self, _socket: object, events: int, _data: object) -> None:
        self.events = events


def test_output_never_waits_for_an_unrelated_event() -> None:
    """A reader that keeps up must get a long output at once: the loop has to ask to be called again."""
    operation = settled("e", "exec")
    operation.streams["stdout"].add(bytes(1024 * 1024))
    greedy = _Greedy()
    made: Any = server.Server.__new__(server.Server)
    made.unheard = set()
    made.selector, made.connections = greedy, {}
    connection = server.Connection(greedy)  # type: ignore[arg-type]
    connection.subscriptions[1] = server.Subscription(operation)
    for _ in range(20):
        made._pump(connection)
        if not connection.subscriptions:
            break
        assert greedy.events & selectors.EVENT_WRITE
    assert not connection.subscriptions
    assert greedy.taken > 1024 * 1024
    made._pump(connection)
    assert not greedy.events & selectors.EVENT_WRITE


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.py", ["a.py", ".py"], ["a/b.py", "a.pyc"]),
        ("**/*.py", ["a.py", "x/y/a.py"], ["a.txt"]),
        ("a/**", ["a/b", "a/b/c"], ["b"]),
        ("[!a]?", ["bc"], ["ac", "b"]),
        ("{a,b*}.c", ["a.c", "bb.c"], ["c.c"]),
        ("a+(b).c", ["a+(b).c"], ["aab.c"]),
        ("[", ["["], ["x"]),
        ("[a-c]x", ["bx"], ["dx"]),
    ],
)
def test_globs(pattern: str, yes: list[str], no: list[str]) -> None:
    regex = glob_to_regex(pattern)
    assert [name for name in yes if not regex.fullmatch(name)] == []
    assert [name for name in no if regex.fullmatch(name)] == []


# --- the container ------------------------------------------------------------------------------------------------

SPEC = SandboxSpec("ses_1", "inst", "/home/p/w", environment={"SECRET": "hidden-value"})
LIMITS = spec.HostLimits(frozenset({"memory", "cpu", "pids"}), 20_000)


def build(way: mapping.Mapping, limits: spec.HostLimits = LIMITS) -> dict[str, Any]:
    return spec.container(
        SPEC, "sha", spec.labels(replace(SPEC, generation=3), "lease", "d", "b"), way, limits, "/f.json"
    )


def test_the_container_is_specified_closed() -> None:
    made = build(mapping.rootless())
    assert made["cap_drop"] == ["all"]
    assert made["no_new_privileges"]
    assert made["read_only_filesystem"]
    assert made["netns"] == {"nsmode": "none"}
    assert not made["privileged"]
    assert not made["httpproxy"]
    assert not made["env_host"]
    assert made["user"] == "1000:1000"
    assert made["resource_limits"]["memory"] == {"limit": 2 * 1024**3, "swap": 2 * 1024**3}
    assert made["resource_limits"]["pids"] == {"limit": 512}
    assert all(limit["soft"] == limit["hard"] for limit in made["r_limits"])
    sources = [mount["source"] for mount in made["mounts"] if mount["type"] == "bind"]
    assert sources == ["/home/p/w"], "nothing else of the host"
    assert "hidden-value" not in json.dumps(made), "the environment reaches commands only"


def test_limits_without_a_controller_are_not_asked_for() -> None:
    assert build(mapping.rootless(), spec.HostLimits(frozenset(), 20_000))["resource_limits"] == {}


def test_names_are_legal_stable_and_distinct() -> None:
    names = {
        spec.container_name(*ids) for ids in (("i", "s"), ("i2", "s"), ("i", "s/x"), ("i", "s-x"), ("i", "é" * 99))
    }
    assert len(names) == 5
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name) for name in names)


def test_the_digest_covers_choices_but_not_the_environment() -> None:
    from dataclasses import replace

    same = replace(SPEC, environment={})
    other = replace(SPEC, limits=SandboxLimits(pids=1))
    assert spec.spec_digest(SPEC, "i") == spec.spec_digest(same, "i")
    assert len({spec.spec_digest(SPEC, "i"), spec.spec_digest(other, "i"), spec.spec_digest(SPEC, "j")}) == 3


def test_root_of_the_host_is_never_mapped_into_a_container() -> None:
    way = mapping.root_idmapped((0, 0), 100_000)
    hosts = [entry["host_id"] for kind in ("UIDMap", "GIDMap") for entry in way.spec["idmappings"][kind]]
    assert min(hosts) == 100_000
    assert way.mount_options == ("idmap=uids=0-101000-1;gids=0-101000-1",)
    for owner in ((0, 5), (5, 0)):
        with pytest.raises(ValueError, match="root"):
            mapping.root_direct(owner, 100_000)


def test_the_direct_mapping_covers_every_id_once() -> None:
    way = mapping.root_direct((501, 20), 100_000)
    entries = way.spec["idmappings"]["UIDMap"]
    inside = [n for e in entries for n in range(e["container_id"], e["container_id"] + e["size"])]
    outside = {n for e in entries for n in range(e["host_id"], e["host_id"] + e["size"])}
    assert inside == list(range(mapping.RANGE))
    assert len(outside) == mapping.RANGE
    assert {e["host_id"] for e in entries if e["container_id"] == 1000} == {501}


def test_a_reserved_range_is_used(tmp_path: Path) -> None:
    for name, text in (
        ("u", "x:1:2\ncontainers:500000:65536\n"),
        ("g", "containers:500000:65536\n"),
        ("bad", "containers:x"),
    ):
        (tmp_path / name).write_text(text)
    assert mapping.container_base(tmp_path / "u", tmp_path / "g") == 500_000
    assert mapping.container_base(tmp_path / "u", tmp_path / "bad") == mapping.DEFAULT_BASE
    assert mapping.container_base(tmp_path / "no", tmp_path / "no") == mapping.DEFAULT_BASE


def facts(**changes: Any) -> dict[str, Any]:
    zero = "0000000000000000"
    sets = dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), zero)
    result: dict[str, Any] = {
        "status": {**sets, "NoNewPrivs": "1", "Seccomp": "2"},
        "mounts": [["/", "ro", "overlay"], ["/workspace", "rw,nosuid,nodev", "ext4"], ["/etc/hosts", "ro", "ext4"]],
        "interfaces": ["lo"],
        "routes": [],
        "uid": 1000,
        "workspace": {"uid": 1000, "gid": 1000, "writable": True},
    }
    return {**result, **changes}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"status": {**facts()["status"], "CapBnd": "00000000a80425fb"}}, "CapBnd"),
        ({"status": {**facts()["status"], "NoNewPrivs": "0"}}, "new privileges"),
        ({"status": {**facts()["status"], "Seccomp": "0"}}, "not filtered"),
        ({"status": {}}, "CapEff"),
        ({"uid": 0}, "user 0"),
        ({"interfaces": ["lo", "eth0"]}, "eth0"),
        ({"mounts": [["/", "rw", "overlay"], *facts()["mounts"][1:]]}, "root file system is writable"),
        ({"mounts": [*facts()["mounts"], ["/run/podman.sock", "rw", "ext4"]]}, "/run/podman.sock"),
        ({"mounts": facts()["mounts"][:1]}, "workspace is not mounted"),
        ({"mounts": [["/", "ro", "x"], ["/workspace", "rw", "ext4"]]}, "nosuid"),
    ],
)
def test_the_self_check_finds_every_hole(changes: dict[str, Any], says: str) -> None:
    assert selfcheck.problems(facts(), "none") == []
    found = selfcheck.problems(facts(**changes), "none")
    assert len(found) >= 1
    assert says in "; ".join(found)


def test_a_bridge_needs_refusing_routes() -> None:
    assert "metadata" in selfcheck.problems(facts(interfaces=["lo", "tap0"]), "bridge")[0]
    closed = facts(interfaces=["lo", "tap0"], routes=[["*", "0000FEA9", "0201", "0000FFFF"]])
    assert selfcheck.problems(closed, "bridge") == []


def test_the_filter_allows_work_and_nothing_that_only_an_attack_needs() -> None:
    path = Path(bundle.__file__).parent / "podman" / "seccomp.json"
    profile = json.loads(path.read_text(encoding="utf-8"))
    assert (profile["defaultAction"], profile["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", 38)
    free, bound = set[str](), set[str]()
    for rule in profile["syscalls"]:
        if rule["action"] == "SCMP_ACT_ALLOW":
            (bound if rule.get("args") else free).update(rule["names"])
    assert {"read", "write", "execve", "vfork", "futex", "mmap", "connect", "statx", "memfd_create", "ptrace"} <= free
    never = "unshare setns mount pivot_root bpf keyctl userfaultfd perf_event_open open_by_handle_at move_mount"
    assert not (free | bound) & {*never.split(), "clone3", "openat2", "io_uring_setup", "fchmodat2", "init_module"}
    assert {"clone", "socket", "chmod", "fchmod", "openat", "mknodat"} <= bound
    assert not free & bound


# --- the host -----------------------------------------------------------------------------------------------------


def info(**changes: Any) -> dict[str, Any]:
    host: dict[str, Any] = {
        "security": {"rootless": True, "seccompEnabled": True},
        "cgroupVersion": "v2",
        "cgroupControllers": ["cpu", "memory", "pids"],
        "idMappings": {"uidmap": [{"container_id": 0, "host_id": 1000, "size": 1}, {"size": 65536}]},
    }
    return {"host": {**host, **changes}, "version": {"Version": "4.9.3"}}


def test_what_the_host_cannot_enforce_is_named() -> None:
    assert health.report(info()).unenforced == ()
    assert health.report(info(cgroupControllers=["memory", "pids"])).unenforced == ("cpus",)
    old = health.report(info(cgroupVersion="v1"))
    assert (old.unenforced, old.controllers) == (("memory", "cpus"), frozenset())


def test_a_user_without_subordinate_ids_gets_the_exact_fix() -> None:
    with pytest.raises(SandboxUnavailable) as caught:
        health.report(info(idMappings={"uidmap": [{"size": 1}]}))
    assert "usermod --add-subuids 100000-165535" in str(caught.value.fix)


def test_a_podman_without_seccomp_is_refused() -> None:
    with pytest.raises(SandboxUnavailable, match="seccomp"):
        health.report(info(security={"rootless": True, "seccompEnabled": False}))


@pytest.mark.parametrize(
    ("text", "fine"), [("podman version 4.3.1", True), ("5.0.0", True), ("3.4.4", False), ("?", True)]
)
def test_versions(text: str, fine: bool) -> None:
    if fine:
        check_version(text)
    else:
        with pytest.raises(SandboxUnavailable, match=r"3\.4.* 4\.3"):
            check_version(text)


async def test_without_podman_the_check_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "detect", classmethod(lambda cls: Host(1000, False, None)))
    provider = PodmanProvider(tmp_path, "inst", runtime_dir=tmp_path)
    checked = await provider.check()
    assert not checked.ok
    assert "not installed" in checked.detail
    assert "apt-get install" in str(checked.fix)
    await provider.close()


async def test_a_configured_service_that_is_down_is_named(tmp_path: Path) -> None:
    provider = PodmanProvider(tmp_path, "inst", socket=f"unix://{tmp_path}/no.sock")
    checked = await provider.check()
    assert (checked.ok, f"{tmp_path}/no.sock" in checked.detail) == (False, True)
    await provider.close()


def test_a_data_root_too_deep_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="too long"):
        PodmanService(tmp_path / ("x" * 120), None, None, None).socket_path()


# --- the image ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recipe() -> image.Recipe:
    try:
        found = image.recipe()
    except SandboxUnavailable as error:
        unavailable("dpkg", str(error))
    if {"bash", "coreutils", "python3", "git"} & set(found.missing):
        unavailable("packages of the image", ", ".join(found.missing))
    return found


def test_the_recipe_is_closed_and_repeatable(recipe: image.Recipe) -> None:
    assert recipe == image.recipe()
    names = {package.partition("=")[0].partition(":")[0] for package in recipe.packages}
    assert {"bash", "libc6", "python3", "git"} <= names
    assert not {"dpkg", "systemd", "perl"} & names


def test_the_root_file_system_has_no_set_id_files_and_nothing_private(recipe: image.Recipe, tmp_path: Path) -> None:
    target = tmp_path / "root.tar"
    small = [package for package in recipe.packages if re.match(r"(bash|coreutils|util-linux|libc6|gawk)[:=]", package)]
    image.write_root(small, target)
    with tarfile.open(target) as archive:
        members = {member.name: member for member in archive}
    assert {"bin", "usr/bin/bash", "usr/bin/env", "etc/passwd", "workspace", "tmp"} <= set(members)
    assert members["bin"].linkname == "usr/bin"
    assert "etc/shadow" not in members
    for member in members.values():
        assert not member.mode & (stat.S_ISUID | stat.S_ISGID), member.name
        assert member.uid == member.gid == 0
        assert member.isreg() or member.isdir() or member.issym(), member.name
        assert not member.name.startswith(("/", "../"))


def test_the_module_prints_the_package_list() -> None:
    command = [sys.executable, "-m", "milepost.sandboxes.image", "--packages"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.split() == list(image.PACKAGES)
