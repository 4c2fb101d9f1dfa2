"""Browser logins and the limit on failed ones. In memory: a restart logs browsers out, the token stays."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict, deque

MAX_LOGINS = 256
LOGIN_SECONDS = 7 * 24 * 3600.0
MAX_FAILURES = 10
FAILURE_WINDOW_SECONDS = 60.0
MAX_CLIENTS = 1024


class BrowserLogins:
    """Random ids that stand for the token in a cookie; kept as digests, for a week from their last use.

    At most 256; a further login ends the one that was not used for longest. Times are seconds of a monotonic clock.
    """

    def __init__(self, *, limit: int = MAX_LOGINS, seconds: float = LOGIN_SECONDS) -> None:
        self._limit = limit
        self._seconds = seconds
        self._expires: OrderedDict[bytes, float] = OrderedDict()

    def open(self, now: float) -> str:
        """A fresh login id of 256 random bits."""
        login = secrets.token_urlsafe(32)
        self._expires[_digest(login)] = now + self._seconds
        while len(self._expires) > self._limit:
            self._expires.popitem(last=False)
        return login

    def valid(self, login: str, now: float) -> bool:
        """Whether the id is known and not expired; prolongs it."""
        key = _digest(login)
        expires = self._expires.get(key)
        if expires is None:
            return False
        if expires <= now:
            del self._expires[key]
            return False
        self._expires[key] = now + self._seconds
        self._expires.move_to_end(key)
        return True

    def close(self, login: str) -> None:
        """Forget an id; an unknown one is no error."""
        self._expires.pop(_digest(login), None)


class FailureLimit:
    """At most 10 failures a client and minute; of at most 1,024 clients, the longest quiet one is forgotten first."""

    def __init__(
        self,
        *,
        failures: int = MAX_FAILURES,
        window: float = FAILURE_WINDOW_SECONDS,
        clients: int = MAX_CLIENTS,
    ) -> None:
        self._failures = failures
        self._window = window
        self._limit = clients
        self._clients: OrderedDict[str, deque[float]] = OrderedDict()

    def wait(self, client: str, now: float) -> float:
        """Seconds until the client may try again; 0 if now."""
        times = self._clients.get(client)
        if times is None:
            return 0.0
        while times and times[0] <= now - self._window:
            times.popleft()
        return max(0.0, times[0] + self._window - now) if len(times) >= self._failures else 0.0

    def failed(self, client: str, now: float) -> None:
        """Count one failure."""
        self._clients.setdefault(client, deque(maxlen=self._failures)).append(now)
        self._clients.move_to_end(client)
        while len(self._clients) > self._limit:
            self._clients.popitem(last=False)

    def succeeded(self, client: str) -> None:
        """A right secret clears the count."""
        self._clients.pop(client, None)


def _digest(login: str) -> bytes:
    # Looked up by digest, so that the time of the look-up tells nothing about ids that exist.
    return hashlib.sha256(login.encode("utf-8", "surrogatepass")).digest()
