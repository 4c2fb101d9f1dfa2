"""The loop: one thread, no blocking call, connections on a Unix socket, operations in forked processes."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import struct
import time
import traceback
from typing import Any

from . import kernel, wire
from .operation import Operation
from .registry import MAX_RUNNING, Registry
from .workspace import Refused

MAX_CONNECTIONS = 64
MAX_SUBSCRIPTIONS = 256
CHUNK = 64 * 1024
OUTBOX_HIGH = 256 * 1024
IDLE_SECONDS = 30.0
"""A connection over which nothing comes for so long has nobody at its other end: a worker that lives sends pings."""
ALONE_SECONDS = 15.0
"""How long there may be no connection and nothing to do, until this process ends and its container with it."""
UNHEARD_SECONDS = 3600.0
"""The same while a result has not been given to anybody: a worker that was killed may come back for it."""
TICK = 1.0
TICK_MINIMUM = 0.02
SWEEP_TICK = 0.01
HUNT_SECONDS = 5.0
MAX_FAULTS = 20
"""Tracebacks written to the container's log."""


class Subscription:
    """One reader of one operation: how much of each stream it was sent."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.sent = {"stdout": 0, "stderr": 0}

    @property
    def unsent(self) -> bool:
        """Whether there is output, or the end, that the reader has not got."""
        if self.operation.settled or not self.operation.is_command:
            return self.operation.settled
        return any(self.sent[name] < len(stream.data) for name, stream in self.operation.streams.items())


class Connection:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.decoder = wire.Decoder()
        self.outbox = bytearray()
        self.subscriptions: dict[int, Subscription] = {}
        self.kills: list[tuple[int, Operation]] = []
        self.heard = time.monotonic()


class Server:
    """`root` is the workspace, `address` the abstract socket to serve, `home` the commands' home directory.

    The address is taken before any command runs, and an abstract one is no file: while this process lives, no command
    can take it away, replace it or hide it.
    """

    def __init__(self, root: str, address: str, home: str, alone_seconds: float = ALONE_SECONDS) -> None:
        self.root, self.home, self.alone_seconds = root, home, alone_seconds
        self.boot = os.urandom(16).hex()
        self.registry = Registry()
        self.keepers: dict[int, Operation] = {}
        self.sweeping: set[Operation] = set()
        self.unheard: set[str] = set()
        self.last_use = time.monotonic()
        self.hunting_until = 0.0
        self.faults = 0
        self.connections: dict[int, Connection] = {}
        self.selector = selectors.DefaultSelector()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind("\0" + address)
        self.listener.listen(16)
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        self._child_ended = self._watch_children()

    def _watch_children(self) -> socket.socket:
        receive, send = socket.socketpair()
        receive.setblocking(False)
        send.setblocking(False)
        signal.set_wakeup_fd(send.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._wakeup = send
        self.selector.register(receive, selectors.EVENT_READ, self._reap)
        return receive

    def serve(self) -> None:
        """Run until the process is killed, or nobody needs it any more."""
        last_tick = time.monotonic()
        while not self._forgotten(time.monotonic()):
            for key, mask in self.selector.select(self._patience()):
                self._dispatch(key, mask)
            for operation in list(self.sweeping):
                operation.sweep()
            now = time.monotonic()
            if self.hunting_until:
                self._hunt(now)
            if now - last_tick >= TICK_MINIMUM:
                last_tick = now
                self._tick(now)
            for connection in list(self.connections.values()):
                self._pump(connection)

    def _forgotten(self, now: float) -> bool:
        """Whether whoever had this sandbox made is gone for good."""
        if self.connections or self.keepers:
            self.last_use = now
        return now - self.last_use > (UNHEARD_SECONDS if self.unheard else self.alone_seconds)

    def _dispatch(self, key: selectors.SelectorKey, mask: int) -> None:
        """A fault in one handler must not end the first process, and with it all commands."""
        try:
            key.data(key.fileobj, mask)
        except Exception:
            self.faults += 1
            if self.faults <= MAX_FAULTS:
                traceback.print_exc()
            if isinstance(key.fileobj, socket.socket) and key.fd in self.connections:
                self._drop(self.connections[key.fd])

    def _patience(self) -> float:
        """Seconds until something must be done although nothing happens."""
        if self.sweeping or self.hunting_until:
            return SWEEP_TICK
        now = time.monotonic()
        deadlines = [operation.deadline - now for operation in self.keepers.values()]
        return max(SWEEP_TICK, min([TICK, *deadlines]))

    def _tick(self, now: float) -> None:
        for operation in self.keepers.values():
            if now >= operation.deadline and operation.stop_reason is None:
                self._stop(operation, "timeout")
        for connection in list(self.connections.values()):
            if now - connection.heard > IDLE_SECONDS:
                self._drop(connection)

    def _stop(self, operation: Operation, reason: str) -> None:
        operation.request_stop(reason)
        if operation.keeper in self.keepers:
            self.sweeping.add(operation)

    # --- processes ----------------------------------------------------------------------------------------------

    def _reap(self, _fileobj: Any, _mask: int) -> None:
        try:
            while self._child_ended.recv(4096):
                pass
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            operation = self.keepers.pop(pid, None)
            if operation is not None:
                self._settle(operation, status)

    def _settle(self, operation: Operation, status: int) -> None:
        self.sweeping.discard(operation)
        if operation.is_command and os.WIFSIGNALED(status):
            # The keeper itself was killed: what it had adopted has become ours.
            self.hunting_until = time.monotonic() + HUNT_SECONDS
            self._hunt(time.monotonic())
        for fd in operation.fds:
            self._forget(fd)
        operation.settle(status)
        self.registry.settled(operation)
        self.unheard.add(operation.effect_id)

    def _hunt(self, now: float) -> None:
        """Kill children that are no keeper: what a keeper had adopted when it was itself killed by a command."""
        me = os.getpid()
        strays = [pid for pid, parent in kernel.parents().items() if parent == me and pid not in self.keepers]
        kernel.kill_now([*strays, *kernel.descendants(set(strays))])
        if not strays or now > self.hunting_until:
            self.hunting_until = 0.0

    def _forget(self, fd: int) -> None:
        try:
            self.selector.unregister(fd)
        except KeyError:
            pass

    def _output(self, fd: Any, _mask: int) -> None:
        operation = next((found for found in self.keepers.values() if fd in found.fds), None)
        if operation is None:
            self._forget(fd)
        elif not operation.readable(fd):
            name = operation.fds[fd]
            self._forget(fd)
            if name == "status" and operation.has_leftovers:
                self._stop(operation, "leftovers")

    def _start(self, effect_id: str, request: dict[str, Any], body: bytes) -> Operation:
        operation = Operation(effect_id, request)
        if len(self.keepers) >= MAX_RUNNING:
            raise Refused("limit", f"{MAX_RUNNING} operations are running; wait for one to end.")
        try:
            operation.start(self.root, self.home, request, body)
        except OSError as error:
            text = f"The sandbox cannot start another process ({error.strerror}); its limits are used up."
            raise Refused("limit", text) from None
        self.keepers[operation.keeper] = operation
        self.registry.add(operation)
        for fd in operation.fds:
            self.selector.register(fd, selectors.EVENT_READ, self._output)
        return operation

    # --- connections --------------------------------------------------------------------------------------------

    def _accept(self, _fileobj: Any, _mask: int) -> None:
        try:
            sock, _ = self.listener.accept()
        except OSError:
            return
        pid = struct.unpack("iii", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        # A command of the sandbox (ours, by adoption even a daemon) may not pose as the worker.
        if len(self.connections) >= MAX_CONNECTIONS or (pid != 0 and kernel.is_descendant(pid, os.getpid())):
            sock.close()
            return
        sock.setblocking(False)
        connection = Connection(sock)
        self.connections[sock.fileno()] = connection
        self.selector.register(sock, selectors.EVENT_READ, self._traffic)
        self._send(
            connection, {"t": "hello", "protocol": wire.PROTOCOL, "boot": self.boot, "facts": kernel.facts(self.root)}
        )

    def _drop(self, connection: Connection) -> None:
        self.connections.pop(connection.sock.fileno(), None)
        try:
            self.selector.unregister(connection.sock)
        except (KeyError, ValueError):
            pass
        connection.sock.close()

    def _traffic(self, fileobj: Any, mask: int) -> None:
        connection = self.connections.get(fileobj.fileno())
        if connection is None or not mask & selectors.EVENT_READ:
            return
        try:
            data = connection.sock.recv(256 * 1024)
            connection.heard = time.monotonic()
            for head, body in connection.decoder.feed(data):
                self._handle(connection, head, body)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, wire.WireError):
            data = b""
        if not data:
            self._drop(connection)

    def _send(self, connection: Connection, head: dict[str, Any], body: bytes = b"") -> None:
        connection.outbox += wire.encode(head, body)

    def _handle(self, connection: Connection, head: dict[str, Any], body: bytes) -> None:
        kind, rid = head.get("t"), head.get("rid")
        if kind == "ping":
            self._send(connection, {"t": "pong"})
        elif kind == "detach":
            connection.subscriptions.pop(int(rid or 0), None)
        elif kind in ("run", "attach", "kill") and isinstance(rid, int) and isinstance(head.get("id"), str):
            try:
                self._request(connection, str(kind), rid, head, body)
            except Refused as error:
                self._send(connection, {"t": "refused", "rid": rid, "error_code": error.code, "error": error.text})
            except (KeyError, TypeError, ValueError) as error:
                text = f"The request is malformed: {type(error).__name__}: {error}"[:500]
                self._send(connection, {"t": "refused", "rid": rid, "error_code": "invalid", "error": text})
        else:
            raise wire.WireError(f"unknown request {kind!r}")

    def _request(self, connection: Connection, kind: str, rid: int, head: dict[str, Any], body: bytes) -> None:
        effect_id = head["id"]
        operation: Operation | None = self.registry.get(effect_id)
        if kind == "kill":
            if operation is not None and not operation.settled:
                self._stop(operation, "kill")
                connection.kills.append((rid, operation))
            else:
                self._send(connection, {"t": "ok", "rid": rid})
            return
        if len(connection.subscriptions) >= MAX_SUBSCRIPTIONS:
            raise Refused("limit", "Too many operations are watched over this connection.")
        attached = operation is not None
        if operation is None:
            if kind == "attach" or self.registry.was_evicted(effect_id):
                self._send(connection, {"t": "unknown", "rid": rid, "evicted": self.registry.was_evicted(effect_id)})
                return
            operation = self._start(effect_id, head, body)
        self._send(connection, {"t": "ack", "rid": rid, "attached": attached})
        connection.subscriptions[rid] = Subscription(operation)

    def _pump(self, connection: Connection) -> None:
        """Move output towards the reader as far as it keeps up; a slow reader costs no memory and stops no command."""
        for rid, subscription in list(connection.subscriptions.items()):
            self._advance(connection, rid, subscription)
        for entry in [entry for entry in connection.kills if entry[1].settled]:
            connection.kills.remove(entry)
            self._send(connection, {"t": "ok", "rid": entry[0]})
        try:
            while connection.outbox:
                sent = connection.sock.send(connection.outbox[:OUTBOX_HIGH])
                del connection.outbox[:sent]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._drop(connection)
            return
        # Also when the socket took all: what is still to be read must not wait for the next event.
        more = bool(connection.outbox) or any(item.unsent for item in connection.subscriptions.values())
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if more else 0)
        self.selector.modify(connection.sock, events, self._traffic)

    def _advance(self, connection: Connection, rid: int, subscription: Subscription) -> None:
        operation = subscription.operation
        done = operation.settled
        if operation.is_command:
            for name, stream in operation.streams.items():
                while len(connection.outbox) < OUTBOX_HIGH and subscription.sent[name] < len(stream.data):
                    start = subscription.sent[name]
                    piece = bytes(stream.data[start : start + CHUNK])
                    subscription.sent[name] += len(piece)
                    self._send(connection, {"t": "out", "rid": rid, "s": name}, piece)
                done = done and subscription.sent[name] == len(stream.data)
        if done and operation.outcome is not None and len(connection.outbox) < OUTBOX_HIGH:
            self._send(connection, {"t": "done", "rid": rid, **operation.outcome}, operation.result)
            self.unheard.discard(operation.effect_id)
            del connection.subscriptions[rid]
