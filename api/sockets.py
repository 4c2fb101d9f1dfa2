"""Listening sockets, bound before anything else starts, so that a taken port is one clear error."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from pathlib import Path

from milepost.domain.errors import AddressUnavailable

MAX_UNIX_PATH_BYTES = 103
"""macOS takes 103, Linux 107."""


async def bind_tcp(host: str, port: int) -> list[socket.socket]:
    """Sockets on every address of `host` (`localhost` has two), all on one port; port 0 lets the system choose it.

    Raises:
        AddressUnavailable: nothing can be bound; the message says why and what to do.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise AddressUnavailable(
            f"'{host}' is no address of this host ({error}).", field="api.host", fix="Use 127.0.0.1, or a name it has."
        ) from error
    bound: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            chosen = bound[0].getsockname()[1] if bound else port
            try:
                bound.append(_bound(family, kind, protocol, (str(address[0]), chosen, *address[2:])))
            except OSError as error:
                # A name may have an address of a family that this host does not have (IPv6 switched off).
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                missing = error
        if not bound:
            raise missing or OSError(errno.EADDRNOTAVAIL, "no address")
    except OSError as error:
        for opened in bound:
            opened.close()
        raise _unavailable(host, port, error) from error
    return bound


def bind_unix(path: Path) -> socket.socket:
    """A listening Unix socket of mode 0600 at `path`; the file of a process that is gone is replaced.

    Raises:
        AddressUnavailable: another process listens there, the path is too long, or its folder cannot be used.
    """
    # Bound beside its place and moved there, so that it never stands there with other permissions.
    beside = path.with_name(f"{path.name}~")
    if len(os.fsencode(beside)) > MAX_UNIX_PATH_BYTES:
        raise AddressUnavailable(
            f"The socket path {path} is too long for a Unix socket.", fix="Use a data root with a shorter path."
        )
    if _answers(path):
        raise AddressUnavailable(
            f"Another process listens on {path}.", fix="Stop it, or use another data root (MILEPOST_HOME)."
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        with contextlib.suppress(FileNotFoundError):
            beside.unlink()
        listener.bind(str(beside))
        # Nobody can connect before `listen`, so there is no moment with the wrong permissions.
        beside.chmod(0o600)
        listener.listen()
        beside.replace(path)
    except OSError as error:
        listener.close()
        raise AddressUnavailable(
            f"The socket {path} cannot be made: {error.strerror or error}.",
            fix="Check that its folder exists and belongs to this user.",
        ) from error
    return listener


def remove_unix(path: Path, identity: tuple[int, int]) -> None:
    """Remove the socket file unless another process has put its own there."""
    with contextlib.suppress(OSError):
        if unix_identity(path) == identity:
            path.unlink()


def unix_identity(path: Path) -> tuple[int, int]:
    """What tells one socket file from another at the same path."""
    found = path.stat()
    return found.st_dev, found.st_ino


def _bound(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setblocking(False)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind(address)
        # Listening now, not later, is what finds a port that another process listens on.
        opened.listen()
    except OSError:
        opened.close()
        raise
    return opened


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except TimeoutError:
            return True
        except OSError as error:
            # A full backlog is a listener that is busy.
            return error.errno == errno.EAGAIN
    return True


def _unavailable(host: str, port: int, error: OSError) -> AddressUnavailable:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    match error.errno:
        case errno.EADDRINUSE:
            why, fix = "the port is in use", "Stop the program that uses it, or choose another port (0: any free one)."
        case errno.EACCES | errno.EPERM:
            why, fix = "this user may not use the port", "Choose a port of 1024 or above."
        case errno.EADDRNOTAVAIL | errno.EAFNOSUPPORT:
            why, fix = "the address is not one of this host", "Use 127.0.0.1, or an address of this host."
        case _:
            why, fix = error.strerror or str(error), "Choose another host or port."
    return AddressUnavailable(f"The API cannot listen on {where}: {why}.", field="api.port", fix=fix)
