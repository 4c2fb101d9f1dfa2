"""The long-lived processes of the sandbox by id, and requests about them."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from .connection import Connection, Reader
from .process import Process
from .workspace import Refused

MAX_PROCESSES = 32
MAX_ENDED = 32
MAX_REMEMBERED = 4096
MAX_READERS = 256
MAX_READ = 1024 * 1024
MAX_WAIT = 60.0
MAX_ID = 200

REQUESTS = ("spawn", "processes", "read", "write", "resize", "end")


class Processes:
    """Never forgets a running one; of the oldest ended ones only that they ran.

    `begin` starts the keeper of one, `stop` begins to end it; `changed` is told that it has something to be typed.
    """

    def __init__(
        self,
        begin: Callable[[Process, dict[str, Any], bytes], None],
        stop: Callable[[Process, str], None],
        changed: Callable[[Process], None],
    ) -> None:
        self._begin, self._stop, self._changed = begin, stop, changed
        self._kept: OrderedDict[str, Process] = OrderedDict()
        self._evicted: OrderedDict[str, None] = OrderedDict()

    def running(self) -> list[Process]:
        return [process for process in self._kept.values() if not process.settled]

    def settled(self) -> None:
        """Call when one has ended: the oldest ended ones make room."""
        ended = [process for process in self._kept.values() if process.settled]
        for old in ended[: max(0, len(ended) - MAX_ENDED)]:
            del self._kept[old.process_id]
            self._evicted[old.process_id] = None
        while len(self._evicted) > MAX_REMEMBERED:
            self._evicted.popitem(last=False)

    def request(self, connection: Connection, kind: str, rid: int, head: dict[str, Any], body: bytes) -> None:
        """Do what is asked and answer, or answer later. Raises Refused, KeyError, TypeError, ValueError."""
        if kind == "processes":
            infos = [process.info() for process in self._kept.values()]
            connection.send({"t": "ok", "rid": rid}, json.dumps(infos).encode("ascii"))
            return
        process_id = head["id"]
        if kind == "spawn":
            info = self._spawn(process_id, head, body).info()
            connection.send({"t": "ok", "rid": rid}, json.dumps([info]).encode("ascii"))
            return
        process = self._kept.get(process_id)
        if process is None:
            raise Refused("unknown", "This sandbox does not know the process.")
        if kind == "read":
            self._read(connection, rid, process, head)
        elif kind == "end":
            if not process.settled:
                self._stop(process, "ended")
            connection.kills.append((rid, process))
        else:
            if kind == "write":
                process.write(body)
                process.type()
                self._changed(process)
            else:
                process.resize(head["size"])
            connection.send({"t": "ok", "rid": rid})

    def _spawn(self, process_id: str, head: dict[str, Any], body: bytes) -> Process:
        known = self._kept.get(process_id)
        if known is not None:
            return known
        if process_id in self._evicted:
            raise Refused("unknown", "The process ran in this sandbox long ago and is no longer known.")
        if len(process_id) > MAX_ID:
            raise Refused("invalid", f"The id is longer than {MAX_ID} characters.")
        if len(self.running()) >= MAX_PROCESSES:
            raise Refused("limit", f"{MAX_PROCESSES} processes run already; end one first.")
        process = Process(process_id, head)
        self._begin(process, head, body)
        self._kept[process_id] = process
        return process

    def _read(self, connection: Connection, rid: int, process: Process, head: dict[str, Any]) -> None:
        if len(connection.readers) >= MAX_READERS:
            raise Refused("limit", "Too many readers wait over this connection.")
        limit = max(1, min(int(head["limit"]), MAX_READ))
        wait = max(0.0, min(float(head["wait"]), MAX_WAIT))
        connection.readers[rid] = Reader(process, int(head["offset"]), limit, time.monotonic() + wait)
