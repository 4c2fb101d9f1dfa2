"""Who may call: the decision on one request. Pure but for the clock and the memory of logins."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from http.cookies import CookieError, SimpleCookie

from milepost.security.hosts import HostPolicy
from milepost.security.logins import BrowserLogins, FailureLimit
from milepost.security.token import same_secret

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
SUBPROTOCOL = "milepost.v1"
BEARER_SUBPROTOCOL = "milepost.bearer."


class Identity(StrEnum):
    """How a caller proved that it may call."""

    BEARER = "bearer"
    COOKIE = "cookie"
    SUBPROTOCOL = "subprotocol"


@dataclass(frozen=True, slots=True)
class Call:
    """What the decision needs of a request. Header names are lower case; `server` is (path, None) on a Unix socket."""

    method: str
    path: str
    scheme: str
    headers: Mapping[str, Sequence[str]]
    server: tuple[str, int | None] | None
    client: str
    websocket: bool = False
    subprotocols: Sequence[str] = ()

    def header(self, name: str) -> str | None:
        """The first value."""
        values = self.headers.get(name)
        return values[0] if values else None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not served: an HTTP status with a stable code. `retry_after` is seconds."""

    status: int
    code: str
    detail: str
    fix: str | None = None
    retry_after: float | None = None


@dataclass(slots=True)
class Access:
    """The instance's credentials. `now` is a monotonic clock in seconds."""

    token: str = field(repr=False)
    logins: BrowserLogins = field(default_factory=BrowserLogins, repr=False)
    failures: FailureLimit = field(default_factory=FailureLimit, repr=False)
    now: Callable[[], float] = time.monotonic

    def identify(self, call: Call, cookie_name: str) -> Identity | None:
        """The caller's proof, None without a valid one. A bad Authorization header is not made good by a cookie."""
        authorization = call.header("authorization")
        if authorization is not None:
            scheme, _, given = authorization.partition(" ")
            valid = scheme.lower() == "bearer" and same_secret(given.strip(), self.token)
            return Identity.BEARER if valid else None
        for offered in call.subprotocols if call.websocket else ():
            if offered.startswith(BEARER_SUBPROTOCOL):
                valid = same_secret(offered.removeprefix(BEARER_SUBPROTOCOL), self.token)
                return Identity.SUBPROTOCOL if valid else None
        login = _cookie(call, cookie_name)
        return Identity.COOKIE if login and self.logins.valid(login, self.now()) else None

    def log_in(self, token: str, client: str) -> str | Refusal:
        """A fresh login id for the right token, always; wrong ones are counted by client, and refused the harder.

        The token's 256 random bits are what keeps guessers out. The limit bounds what they cost, and must not become a
        way to keep its owner out, who shares the address with every program of the machine.
        """
        now = self.now()
        if same_secret(token, self.token):
            self.failures.succeeded(client)
            return self.logins.open(now)
        wait = self.failures.wait(client, now)
        if wait > 0:
            return Refusal(429, "too_many_attempts", "Too many failed logins.", "Wait a minute.", retry_after=wait)
        self.failures.failed(client, now)
        return Refusal(401, "unauthorized", "The token is not this instance's.", HOW_TO_AUTHORIZE)

    def log_out(self, call_cookie: str | None) -> None:
        """End a browser login, if there is one."""
        if call_cookie:
            self.logins.close(call_cookie)


HOW_TO_AUTHORIZE = "Send 'Authorization: Bearer TOKEN'; the token is in the file api.token of the data root."


def check_source(call: Call, policy: HostPolicy) -> Refusal | None:
    """Host and Origin: the checks that hold for every request, with or without credentials."""
    hosts, origins = call.headers.get("host", ()), call.headers.get("origin", ())
    host = hosts[0] if len(hosts) == 1 else None
    if not policy.host_allowed(host, call.server):
        return Refusal(
            403,
            "host_not_allowed",
            "The Host header names no host of this instance.",
            "Use a name this instance is bound to, or add the name to the allowed hosts.",
        )
    if origins and (len(origins) > 1 or not policy.origin_allowed(origins[0], host, call.scheme)):
        return Refusal(
            403,
            "origin_not_allowed",
            "Requests from this web origin are not accepted.",
            "Open the workbench at its own address, or add the origin to the allowed origins.",
        )
    return None


def check_caller(call: Call, access: Access, cookie_name: str) -> Identity | Refusal:
    """Credentials, and for those a browser sends by itself: proof that our own page sent the request."""
    identity = access.identify(call, cookie_name)
    if identity is None:
        return Refusal(401, "unauthorized", "The request has no valid token.", HOW_TO_AUTHORIZE)
    if identity is Identity.COOKIE and not call.headers.get("origin"):
        # Another port of the same host is the same site to a browser, so SameSite alone does not keep it out.
        foreign = call.header("sec-fetch-site") not in (None, "same-origin", "none")
        if foreign or call.websocket or call.method not in SAFE_METHODS:
            return Refusal(
                403,
                "origin_not_allowed",
                "A request with a login cookie needs the Origin header of this instance.",
                "Send it from the workbench, or use the token instead.",
            )
    return identity


def _cookie(call: Call, name: str) -> str | None:
    for raw in call.headers.get("cookie", ()):
        try:
            found = SimpleCookie(raw).get(name)
        except CookieError:
            continue
        if found is not None:
            return found.value
    return None
