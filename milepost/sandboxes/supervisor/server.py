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
from .connection import Connection, Subscription
from .disk import TICK as DISK_TICK
from .disk import Disk, Walk
from .operation import Operation
from .process import Process
from .processes import REQUESTS, Processes
from .registry import MAX_RUNNING, Registry
from .tree import Tree
from .workspace import Refused

MAX_CONNECTIONS = 64
MAX_SUBSCRIPTIONS = 256
IDLE_SECONDS = 30.0
"""A connection over which nothing comes for so long has nobody at its other end: a worker that lives sends pings."""
ALONE_SECONDS = 15.0
"""How long there may be no connection and nothing to do, until this process ends and its container with it.

A long-lived process that runs is something to do: it ends by itself, by request, or when its lifetime is over.
"""
UNHEARD_SECONDS = 3600.0
"""The same while a result has not been given to anybody: a worker that was killed may come back for it."""
TICK = 1.0
TICK_MINIMUM = 0.02
SWEEP_TICK = 0.01
HUNT_SECONDS = 5.0
MAX_FAULTS = 20
"""Tracebacks written to the container's log."""


class Server:
    """`root` is the workspace, `address` the abstract socket to serve, `home` the commands' home directory.

    The address is taken before any command runs, and an abstract one is no file: while this process lives, no command
    can take it away, replace it or hide it.
    """

    def __init__(
        self, root: str, address: str, home: str, alone_seconds: float = ALONE_SECONDS, disk: Disk | None = None
    ) -> None:
        self.root, self.home, self.alone_seconds = root, home, alone_seconds
        self.disk = disk or Disk({}, 0)
        self.boot = os.urandom(16).hex()
        self.registry = Registry()
        self.processes = Processes(self._begin, self._stop, self._watch_terminal)
        self.keepers: dict[int, Tree] = {}
        self.sweeping: set[Tree] = set()
        self.unheard: set[str] = set()
        self.last_use = time.monotonic()
        self.hunting_until = 0.0
        self.orphaned: list[tuple[Tree, int]] = []
        """Trees whose keeper was killed, and its wait status: they have ended when nothing of them runs any more."""
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
            for tree in list(self.sweeping):
                tree.sweep()
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
        deadlines = [tree.deadline - now for tree in self.keepers.values()]
        for connection in self.connections.values():
            deadlines += [reader.deadline - now for reader in connection.readers.values()]
        tick = DISK_TICK if self.disk.limited and self._writers() else TICK
        return max(SWEEP_TICK, min([tick, *deadlines]))

    def _tick(self, now: float) -> None:
        for tree in self.keepers.values():
            if now >= tree.deadline and tree.stop_reason is None:
                self._stop(tree, "lifetime" if isinstance(tree, Process) else "timeout")
        self._watch_disk(now)
        for connection in list(self.connections.values()):
            if now - connection.heard > IDLE_SECONDS:
                self._drop(connection)

    def _stop(self, tree: Tree, reason: str) -> None:
        tree.request_stop(reason)
        if tree.keeper in self.keepers:
            self.sweeping.add(tree)

    # --- disk ---------------------------------------------------------------------------------------------------

    def _writers(self) -> list[Operation | Process]:
        """What runs and may write as it likes."""
        found = [tree for tree in self.keepers.values() if isinstance(tree, (Operation, Process))]
        return [tree for tree in found if isinstance(tree, Process) or tree.is_command]

    def _watch_disk(self, now: float) -> None:
        if not self.disk.limited:
            return
        text = self.disk.exhausted() if self._writers() else None
        if text:
            self._end_writers(text)
        if self.disk.due(now):
            walk = Walk(self.disk.places)
            try:
                self._begin(walk, {}, b"")
            except Refused:
                return  # No process is left for it; the next tick tries again.
            self.disk.walks()

    def _end_writers(self, text: str) -> None:
        for tree in self._writers():
            if tree.stop_reason is None:
                tree.reproach = text
                self._stop(tree, "disk")

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
            tree = self.keepers.pop(pid, None)
            if tree is not None:
                self._settle(tree, status)

    def _settle(self, tree: Tree, status: int) -> None:
        self.sweeping.discard(tree)
        for fd in tree.fds:
            self._forget(fd)
        if tree.adopts and os.WIFSIGNALED(status):
            # The keeper itself was killed: what it had adopted has become ours.
            self.orphaned.append((tree, status))
            self.hunting_until = time.monotonic() + HUNT_SECONDS
            self._hunt(time.monotonic())
        else:
            self._finish(tree, status)

    def _finish(self, tree: Tree, status: int) -> None:
        tree.settle(status)
        if not isinstance(tree, Walk):
            self.disk.ended(idle=not self._writers(), for_disk=tree.stop_reason == "disk")
        if isinstance(tree, Operation):
            if self.disk.unknown and tree.is_command and tree.outcome is not None:
                tree.outcome["detail"]["disk_unmeasured"] = 1
            self.registry.settled(tree)
            self.unheard.add(tree.effect_id)
        elif isinstance(tree, Process):
            self.processes.settled()
            if not tree.size and tree.ended_by == "exit":
                self.unheard.add(tree.process_id)
        elif isinstance(tree, Walk):
            text = self.disk.measured(tree.used, tree.took)
            if text:
                self._end_writers(text)

    def _hunt(self, now: float) -> None:
        """Kill children that are no keeper: what a keeper had adopted when it was itself killed by a command."""
        me = os.getpid()
        strays = [pid for pid, parent in kernel.parents().items() if parent == me and pid not in self.keepers]
        kernel.kill_now([*strays, *kernel.descendants(set(strays))])
        if not strays or now > self.hunting_until:
            self.hunting_until = 0.0
            orphaned, self.orphaned = self.orphaned, []
            for tree, status in orphaned:
                self._finish(tree, status)

    def _forget(self, fd: int) -> None:
        try:
            self.selector.unregister(fd)
        except KeyError:
            pass

    def _output(self, fd: Any, mask: int) -> None:
        tree = next((found for found in self.keepers.values() if fd in found.fds), None)
        if tree is None:
            self._forget(fd)
            return
        if mask & selectors.EVENT_WRITE and isinstance(tree, Process):
            tree.type()
            self._watch_terminal(tree)
        if mask & selectors.EVENT_READ and not tree.readable(fd):
            name = tree.fds[fd]
            self._forget(fd)
            if name == "status" and tree.has_leftovers:
                self._stop(tree, "leftovers")

    def _watch_terminal(self, process: Process) -> None:
        """Hear when the terminal takes more, as long as there is more to type."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if process.inbox else 0)
        try:
            self.selector.modify(process.terminal, events, self._output)
        except (KeyError, ValueError):
            pass

    def _start(self, effect_id: str, request: dict[str, Any], body: bytes) -> Operation:
        operation = Operation(effect_id, request)
        if sum(isinstance(tree, Operation) for tree in self.keepers.values()) >= MAX_RUNNING:
            raise Refused("limit", f"{MAX_RUNNING} operations are running; wait for one to end.")
        full = self.disk.refusal(len(body)) if operation.kind in ("write", "edit") else None
        if full:
            raise Refused("no_space", full)
        self._begin(operation, request, body)
        self.registry.add(operation)
        return operation

    def _begin(self, tree: Operation | Process | Walk, request: dict[str, Any], body: bytes) -> None:
        if not isinstance(tree, Walk):
            self.disk.began()
        try:
            tree.start(self.root, self.home, request, body)
        except OSError as error:
            text = f"The sandbox cannot start another process ({error.strerror}); its limits are used up."
            raise Refused("limit", text) from None
        self.keepers[tree.keeper] = tree
        for fd in tree.fds:
            self.selector.register(fd, selectors.EVENT_READ, self._output)

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
        facts = kernel.facts(self.root)
        connection.send({"t": "hello", "protocol": wire.PROTOCOL, "boot": self.boot, "facts": facts})

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

    def _handle(self, connection: Connection, head: dict[str, Any], body: bytes) -> None:
        kind, rid = head.get("t"), head.get("rid")
        if kind == "ping":
            connection.send({"t": "pong"})
        elif kind == "detach":
            connection.subscriptions.pop(int(rid or 0), None)
            connection.readers.pop(int(rid or 0), None)
        elif kind in ("run", "attach", "kill", *REQUESTS) and isinstance(rid, int) and isinstance(head.get("id"), str):
            try:
                answer = self.processes.request if kind in REQUESTS else self._request
                answer(connection, str(kind), rid, head, body)
            except Refused as error:
                connection.send({"t": "refused", "rid": rid, "error_code": error.code, "error": error.text})
            except (KeyError, TypeError, ValueError) as error:
                text = f"The request is malformed: {type(error).__name__}: {error}"[:500]
                connection.send({"t": "refused", "rid": rid, "error_code": "invalid", "error": text})
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
                connection.send({"t": "ok", "rid": rid})
            return
        if len(connection.subscriptions) >= MAX_SUBSCRIPTIONS:
            raise Refused("limit", "Too many operations are watched over this connection.")
        attached = operation is not None
        if operation is None:
            if kind == "attach" or self.registry.was_evicted(effect_id):
                connection.send({"t": "unknown", "rid": rid, "evicted": self.registry.was_evicted(effect_id)})
                return
            operation = self._start(effect_id, head, body)
        connection.send({"t": "ack", "rid": rid, "attached": attached})
        connection.subscriptions[rid] = Subscription(operation)

    def _pump(self, connection: Connection) -> None:
        self.unheard.difference_update(connection.advance())
        try:
            connection.flush()
        except OSError:
            self._drop(connection)
            return
        # Also when the socket took all: what is still to be read must not wait for the next event.
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.has_more else 0)
        self.selector.modify(connection.sock, events, self._traffic)
