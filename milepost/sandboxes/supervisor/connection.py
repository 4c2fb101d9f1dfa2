"""One worker's connection: what it has asked for and was not told yet."""

from __future__ import annotations

import socket
import time
from typing import Any

from . import tree, wire
from .operation import Operation
from .process import Process

CHUNK = 64 * 1024
OUTBOX_HIGH = 256 * 1024


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


class Reader:
    """Somebody who waits for output of a process, or its end, until `deadline`."""

    def __init__(self, process: Process, offset: int, limit: int, deadline: float) -> None:
        self.process, self.limit, self.deadline = process, limit, deadline
        total = process.output.total
        self.offset = max(0, total + offset) if offset < 0 else min(offset, total)

    def has_answer(self, now: float) -> bool:
        return self.process.settled or self.process.output.total > self.offset or now >= self.deadline

    def answer(self) -> tuple[dict[str, Any], bytes]:
        process = self.process
        start, data = process.output.read(self.offset, self.limit)
        head = {"offset": start, "next": start + len(data), "total": process.output.total, "gap": start - self.offset}
        state = {"running": not process.settled, "exit_code": process.exit_code, "ended_by": process.ended_by}
        return {**head, **state}, data


class Connection:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.decoder = wire.Decoder()
        self.outbox = bytearray()
        self.subscriptions: dict[int, Subscription] = {}
        self.readers: dict[int, Reader] = {}
        self.kills: list[tuple[int, tree.Tree]] = []
        self.heard = time.monotonic()

    def send(self, head: dict[str, Any], body: bytes = b"") -> None:
        self.outbox += wire.encode(head, body)

    @property
    def has_room(self) -> bool:
        """Whether the reader keeps up; a slow one costs no memory and stops no command."""
        return len(self.outbox) < OUTBOX_HIGH

    @property
    def has_more(self) -> bool:
        """Whether there is something to send that was not sent."""
        now = time.monotonic()
        return (
            bool(self.outbox)
            or any(item.unsent for item in self.subscriptions.values())
            or any(reader.has_answer(now) for reader in self.readers.values())
        )

    def flush(self) -> None:
        """Send what the socket takes now. Raises OSError."""
        try:
            while self.outbox:
                sent = self.sock.send(self.outbox[:OUTBOX_HIGH])
                del self.outbox[:sent]
        except (BlockingIOError, InterruptedError):
            pass

    def advance(self) -> list[str]:
        """Move what there is towards the reader as far as it keeps up; ids of what it has got the end of."""
        heard = [self._follow(rid, item) for rid, item in list(self.subscriptions.items())]
        now = time.monotonic()
        for rid, reader in list(self.readers.items()):
            if self.has_room and reader.has_answer(now):
                head, data = reader.answer()
                self.send({"t": "ok", "rid": rid, **head}, data)
                del self.readers[rid]
                if not head["running"] and head["next"] == head["total"]:
                    heard.append(reader.process.process_id)
        for entry in [entry for entry in self.kills if entry[1].settled]:
            self.kills.remove(entry)
            self.send({"t": "ok", "rid": entry[0]})
        return [found for found in heard if found]

    def _follow(self, rid: int, subscription: Subscription) -> str:
        operation = subscription.operation
        done = operation.settled
        if operation.is_command:
            for name, stream in operation.streams.items():
                while self.has_room and subscription.sent[name] < len(stream.data):
                    start = subscription.sent[name]
                    piece = bytes(stream.data[start : start + CHUNK])
                    subscription.sent[name] += len(piece)
                    self.send({"t": "out", "rid": rid, "s": name}, piece)
                done = done and subscription.sent[name] == len(stream.data)
        if done and operation.outcome is not None and self.has_room:
            self.send({"t": "done", "rid": rid, **operation.outcome}, operation.result)
            del self.subscriptions[rid]
            return operation.effect_id
        return ""
