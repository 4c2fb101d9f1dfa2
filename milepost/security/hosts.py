"""Which Host and Origin headers are ours. Pure.

The API can run shell commands, so a web page must not reach it: neither through a DNS name that is rebound to a local
address (its name is in Host), nor from another site (its name is in Origin).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from milepost.domain.errors import ConfigInvalid

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
UNIX_SOCKET_HOST = "milepost"
DEFAULT_PORTS = {"http": 80, "https": 443}
_AUTHORITY = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]{1,253}))(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Authority:
    """A host and port as in a Host header: lower case, IPv6 without brackets; `port` None if not given."""

    host: str
    port: int | None

    @classmethod
    def parse(cls, raw: str) -> Authority | None:
        """None for anything that is no authority (also user names, paths, empty text)."""
        match = _AUTHORITY.fullmatch(raw)
        if match is None or (match["port"] is not None and int(match["port"]) > 65535):
            return None
        port = None if match["port"] is None else int(match["port"])
        return cls((match["six"] or match["name"]).lower().removesuffix("."), port)


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """The allow-lists. `hosts` entries without a port allow any port (a tunnel or container may map it)."""

    hosts: frozenset[Authority]
    origins: frozenset[str]

    @classmethod
    def build(cls, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> HostPolicy:
        """Loopback names and what is configured: `name`, `name:port`; origins as `https://name[:port]`.

        Raises:
            ConfigInvalid: an entry of another form.
        """
        allowed = {Authority(name, None) for name in LOOPBACK_NAMES}
        for raw in hosts:
            # An IPv6 address may come as it is bound, without brackets.
            parsed = Authority.parse(f"[{raw}]" if raw.count(":") > 1 and not raw.startswith("[") else raw)
            if parsed is None:
                raise ConfigInvalid(
                    f"'{raw}' is no host name.", field="allowed_hosts", fix="Use NAME or NAME:PORT, without a scheme."
                )
            # A wildcard is an address to bind, never one that a client names.
            if not _unspecified(parsed.host):
                allowed.add(parsed)
        return cls(frozenset(allowed), frozenset(_configured_origin(raw) for raw in origins))

    def host_allowed(self, host: str | None, server: tuple[str, int | None] | None) -> bool:
        """Whether a Host header is ours. `server` is the connection's local address ((path, None): Unix)."""
        given = Authority.parse(host) if host else None
        if given is None:
            return False
        if given in self.hosts or Authority(given.host, None) in self.hosts:
            return True
        if server is None or server[1] is None:
            return given.host == UNIX_SOCKET_HOST
        # An address that the client really connected to is no name that could have been rebound.
        return not _unspecified(given.host) and given.host == server[0].lower()

    def origin_allowed(self, origin: str, host: str | None, scheme: str) -> bool:
        """Whether an Origin is the same as the request's own, or configured. `null` never is."""
        normal = _origin(origin)
        if normal is None:
            return False
        if normal in self.origins:
            return True
        own = _origin(f"{scheme}://{host}") if host else None
        return normal == own


def _origin(raw: str) -> str | None:
    try:
        parts = urlsplit(raw)
    except ValueError:
        return None
    authority = Authority.parse(parts.netloc)
    if authority is None or parts.scheme not in DEFAULT_PORTS or parts.path or parts.query or parts.fragment:
        return None
    return f"{parts.scheme}://{authority.host}|{authority.port or DEFAULT_PORTS[parts.scheme]}"


def _configured_origin(raw: str) -> str:
    normal = _origin(raw.rstrip("/"))
    if normal is None:
        raise ConfigInvalid(
            f"'{raw}' is no web origin.", field="allowed_origins", fix="Use https://NAME or http://NAME:PORT."
        )
    return normal


def _unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
