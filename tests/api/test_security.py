"""The pure half of the gate: token file, Host and Origin, logins."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from milepost.domain.errors import ConfigInvalid, StorageUnavailable
from milepost.security.access import Access, Refusal
from milepost.security.hosts import Authority, HostPolicy
from milepost.security.logins import BrowserLogins, FailureLimit
from milepost.security.token import load_or_create_token, same_secret

TCP = ("127.0.0.1", 8080)
UNIX = ("/run/api.sock", None)


def test_the_token_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "api.token"
    token = load_or_create_token(path)
    assert len(token) >= 43  # 256 bits in base 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_or_create_token(path) == token
    assert load_or_create_token(tmp_path / "other") != token
    assert [entry.name for entry in tmp_path.iterdir()].count("api.token") == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_processes_that_start_together_get_one_token(tmp_path: Path) -> None:
    path = tmp_path / "api.token"
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(lambda _: load_or_create_token(path), range(32)))
    assert len(tokens) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["api.token"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_token_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "api.token"
    token = load_or_create_token(path)
    path.chmod(mode)
    with pytest.raises(ConfigInvalid, match="read by others") as caught:
        load_or_create_token(path)
    assert token not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 31, b"\xff" * 64, b"two words " * 8, b"x" * 5000])
def test_a_damaged_token_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "api.token"
    path.touch(0o600)
    path.write_bytes(content)
    with pytest.raises(ConfigInvalid, match="holds no token") as caught:
        load_or_create_token(path)
    assert str(path) in str(caught.value)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match="none"):
        load_or_create_token(tmp_path / "none" / "api.token")


def test_secrets_are_compared_whatever_they_hold() -> None:
    assert same_secret("ä\ud800", "ä\ud800")
    assert not same_secret("", "x")
    assert not same_secret("xx", "x")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("localhost", Authority("localhost", None)),
        ("LOCALHOST:80", Authority("localhost", 80)),
        ("localhost.", Authority("localhost", None)),
        ("[::1]:8080", Authority("::1", 8080)),
        ("::1", None),
        ("", None),
        ("a b", None),
        ("user@localhost", None),
        ("localhost:", None),
        ("localhost:99999", None),
        ("localhost/evil", None),
        ("localhost#", None),
        ("127.0.0.1,evil", None),
    ],
)
def test_authorities(raw: str, expected: Authority | None) -> None:
    assert Authority.parse(raw) == expected


@pytest.mark.parametrize(
    ("host", "server", "allowed"),
    [
        ("localhost", TCP, True),
        ("localhost:8080", TCP, True),
        ("localhost:9999", TCP, True),  # a tunnel
        ("127.0.0.1:8080", TCP, True),
        ("[::1]:8080", ("::1", 8080), True),
        ("milepost", UNIX, True),
        ("milepost:80", UNIX, True),
        ("localhost", UNIX, True),
        ("milepost", TCP, False),
        ("192.168.7.7:8080", ("192.168.7.7", 8080), True),
        ("192.168.7.8:8080", ("192.168.7.7", 8080), False),
        ("0.0.0.0:8080", ("0.0.0.0", 8080), False),
        ("work.example", TCP, True),
        ("work.example:1", TCP, True),
        ("other.example:8443", TCP, True),
        ("other.example", TCP, False),
        ("evil.example", TCP, False),
        ("evil.example", UNIX, False),
        ("localhost.evil.example", TCP, False),
        ("127.0.0.1.evil.example", TCP, False),
        ("evil-localhost", TCP, False),
        ("", TCP, False),
        (None, TCP, False),
        ("localhost", None, True),
    ],
)
def test_hosts(host: str | None, server: tuple[str, int | None] | None, allowed: bool) -> None:
    policy = HostPolicy.build(["work.example", "other.example:8443", "0.0.0.0", "::"])
    assert policy.host_allowed(host, server) is allowed


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        ("http://localhost:8080", "localhost:8080", True),
        ("http://LOCALHOST:8080", "localhost:8080", True),
        ("http://localhost", "localhost:80", True),
        ("http://localhost:80", "localhost", True),
        ("http://[::1]:8080", "[::1]:8080", True),
        ("http://localhost:3000", "localhost:8080", False),
        ("https://localhost:8080", "localhost:8080", False),
        ("http://127.0.0.1:8080", "localhost:8080", False),
        ("https://work.example", "localhost:8080", True),
        ("https://work.example:443", "localhost:8080", True),
        ("http://work.example", "localhost:8080", False),
        ("https://evil.example", "localhost:8080", False),
        ("null", "localhost:8080", False),
        ("", "localhost:8080", False),
        ("http://localhost:8080/", "localhost:8080", False),
        ("http://localhost:8080.evil.example", "localhost:8080", False),
        ("http://localhost:8080@evil.example", "localhost:8080", False),
        ("file://", "localhost:8080", False),
        ("http://[", "localhost:8080", False),
        ("http://localhost:8080", None, False),
    ],
)
def test_origins(origin: str, host: str | None, allowed: bool) -> None:
    policy = HostPolicy.build(origins=["https://work.example/"])
    assert policy.origin_allowed(origin, host, "http") is allowed


@pytest.mark.parametrize("host", ["http://x", "a b", "x/y", "*", "x:port"])
def test_a_configured_host_of_another_form_is_refused(host: str) -> None:
    with pytest.raises(ConfigInvalid, match="no host name"):
        HostPolicy.build([host])


@pytest.mark.parametrize("origin", ["work.example", "*", "null", "ftp://x", "https://x/path"])
def test_a_configured_origin_of_another_form_is_refused(origin: str) -> None:
    with pytest.raises(ConfigInvalid, match="no web origin"):
        HostPolicy.build(origins=[origin])


def test_logins_expire_and_are_bounded() -> None:
    logins = BrowserLogins(limit=3, seconds=10)
    first, second, third = (logins.open(0) for _ in range(3))
    assert len({first, second, third}) == 3
    assert logins.valid(first, 5)  # used: prolonged, and no longer the oldest
    fourth = logins.open(6)
    assert not logins.valid(second, 6)
    assert logins.valid(first, 14)
    assert not logins.valid(third, 11)
    assert not logins.valid("unknown", 0)
    logins.close(fourth)
    logins.close("unknown")
    assert not logins.valid(fourth, 6)


def test_failed_logins_are_limited_by_client() -> None:
    limit = FailureLimit(failures=3, window=60, clients=2)
    for now in (0, 10, 20):
        assert limit.wait("a", now) == 0
        limit.failed("a", now)
    assert limit.wait("a", 30) == 30
    assert limit.wait("b", 30) == 0
    assert limit.wait("a", 60) == 0
    limit.failed("b", 60)
    limit.failed("c", 60)  # forgets the longest quiet one
    assert limit.wait("a", 60) == 0
    limit.failed("c", 61)
    limit.succeeded("c")
    assert limit.wait("c", 62) == 0


def test_access_never_shows_its_token() -> None:
    access = Access("very-secret-token")
    assert "very-secret" not in repr(access)


def test_the_right_token_never_waits_for_wrong_ones() -> None:
    now = 0.0
    access = Access("right", failures=FailureLimit(failures=2), now=lambda: now)

    def statuses(count: int) -> list[int]:
        refusals = [access.log_in("wrong", "c") for _ in range(count)]
        return [refusal.status for refusal in refusals if isinstance(refusal, Refusal)]

    assert statuses(3) == [401, 401, 429]
    limited = access.log_in("wrong", "c")
    assert isinstance(limited, Refusal)
    assert (limited.status, limited.retry_after) == (429, 60)
    assert isinstance(access.log_in("right", "c"), str)
    # The right one clears the count.
    assert statuses(3) == [401, 401, 429]
    now = 61.0
    assert statuses(1) == [401]


def test_the_umask_does_not_matter(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        load_or_create_token(tmp_path / "api.token")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "api.token").stat().st_mode) == 0o600
