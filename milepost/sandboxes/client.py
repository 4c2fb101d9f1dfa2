"""The worker's side of the supervisor's protocol: run, attach, kill over one long-lived connection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from milepost.domain.errors import SandboxLost, SandboxUnavailable
from milepost.ports.sandbox import OnOutput, Operation, Outcome
from milepost.sandboxes import requests
from milepost.sandboxes.processes import ProcessCalls
from milepost.sandboxes.supervisor import wire

PING_SECONDS = 10.0
"""The supervisor takes a connection for dead that is silent for 30 s, and ends when it has none."""
SILENCE_SECONDS = 45.0
HELLO_SECONDS = 20.0
HAND_OVER_SECONDS = 15.0
KILL_SECONDS = 15.0
MAX_LINKS = 100
MAX_OUTPUT = 17 * 1024 * 1024
"""Over what the supervisor keeps of one stream."""

_LOG = logging.getLogger(__name__)


class Link(Protocol):
    """A byte stream to the supervisor."""

    async def receive(self) -> bytes:
        """Some bytes; empty at the end."""

    async def send(self, data: bytes) -> None: ...

    async def close(self) -> None: ...


class LinkDown(Exception):
    """The supervisor cannot be reached now; trying again may help."""


class SandboxGone(Exception):
    """The container does not exist or does not run; trying again cannot help."""


class SupervisorReplaced(SandboxGone):
    """Another supervisor answers than the one this client belongs to: the container was started again, or is taken."""


Connect = Callable[[], Awaitable[Link]]


@dataclass(slots=True)
class _Call:
    """A request under way. `seen` counts what `on_output` was given before a lost link: it is not repeated."""

    on_output: OnOutput | None
    answer: asyncio.Future[tuple[dict[str, Any], bytes]]
    attached: bool | None = None
    seen: dict[str, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})
    data: dict[str, bytearray] = field(default_factory=lambda: {"stdout": bytearray(), "stderr": bytearray()})

    def output(self, name: str, piece: bytes) -> None:
        buffer = self.data[name]
        if len(buffer) + len(piece) > MAX_OUTPUT:
            raise wire.WireError(f"more than {MAX_OUTPUT} bytes of output")
        buffer += piece
        new = len(buffer) - self.seen[name]
        if new > 0 and self.on_output is not None:
            self.seen[name] = len(buffer)
            try:
                self.on_output(name, piece[-new:])
            except Exception:
                _LOG.exception("the listener of a command's output failed and is not called again")
                self.on_output = None

    def again(self) -> None:
        """The output comes from the start once more."""
        self.data = {"stdout": bytearray(), "stderr": bytearray()}
        self.answer = asyncio.get_running_loop().create_future()


class _Connection:
    """One link: reads frames in a task of its own and hands them to the calls."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.calls: dict[int, _Call] = {}
        self.hello: dict[str, Any] = {}
        self.open = True
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._next = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._heard = time.monotonic()
        self._reader = asyncio.create_task(self._read(), name="sandbox-reader")
        self._pinger = asyncio.create_task(self._ping(), name="sandbox-ping")

    async def ready(self) -> None:
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                await asyncio.shield(self._ready)
        except TimeoutError:
            raise LinkDown("the supervisor did not answer in time") from None

    async def request(self, head: dict[str, Any], body: bytes, call: _Call) -> int:
        if not self.open:
            raise LinkDown("the connection has ended")
        self._next += 1
        rid = self._next
        self.calls[rid] = call
        self._heard = time.monotonic()
        try:
            await self.link.send(wire.encode({**head, "rid": rid}, body))
        except (OSError, LinkDown) as error:
            self._end(LinkDown(str(error)))
            raise LinkDown(str(error)) from None
        return rid

    async def ask(self, head: dict[str, Any], body: bytes, call: _Call) -> tuple[dict[str, Any], bytes]:
        """The answer to a request; its output goes to `call` meanwhile. Raises LinkDown."""
        rid = await self.request(head, body, call)
        try:
            return await call.answer
        except asyncio.CancelledError:
            self.forget(rid)
            raise

    def forget(self, rid: int) -> None:
        """Stop following; the operation goes on."""
        if self.calls.pop(rid, None) is not None and self.open:
            task = asyncio.create_task(self._detach(rid))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _detach(self, rid: int) -> None:
        with contextlib.suppress(OSError, LinkDown):
            await self.link.send(wire.encode({"t": "detach", "rid": rid}))

    async def _read(self) -> None:
        decoder = wire.Decoder()
        reason = "the connection has ended"
        try:
            while data := await self.link.receive():
                self._heard = time.monotonic()
                for head, body in decoder.feed(data):
                    self._frame(head, body)
        except (OSError, wire.WireError, LinkDown) as error:
            reason = str(error) or reason
        except (KeyError, TypeError, ValueError) as error:
            # A command in the sandbox could have got at the bridge: nothing that comes from there is trusted.
            reason = f"the answer is malformed: {type(error).__name__}"
        finally:
            self._end(LinkDown(reason))

    def _frame(self, head: dict[str, Any], body: bytes) -> None:
        kind = head.get("t")
        if kind == "hello":
            if head.get("protocol") != wire.PROTOCOL:
                raise wire.WireError(f"the supervisor speaks protocol {head.get('protocol')}, not {wire.PROTOCOL}")
            self.hello = head
            self._ready.set_result(None)
            return
        call = self.calls.get(head.get("rid", 0))
        if call is None:
            return
        if kind == "out":
            call.output(head["s"], body)
        elif kind == "ack":
            if call.attached is None:
                call.attached = bool(head["attached"])
        elif kind not in ("done", "refused", "unknown", "ok"):
            raise wire.WireError(f"unknown answer {kind!r}")
        else:
            del self.calls[head["rid"]]
            if not call.answer.done():
                call.answer.set_result((head, body))

    async def _ping(self) -> None:
        """Show that this process lives. While something is awaited, a silent peer is a dead peer."""
        while self.open:
            await asyncio.sleep(PING_SECONDS)
            if self.calls and time.monotonic() - self._heard > SILENCE_SECONDS:
                self._end(LinkDown("the supervisor is silent"))
                return
            with contextlib.suppress(OSError, LinkDown):
                await self.link.send(wire.encode({"t": "ping"}))

    def _end(self, reason: LinkDown) -> None:
        self.open = False
        calls, self.calls = self.calls, {}
        for call in calls.values():
            if not call.answer.done():
                call.answer.set_exception(reason)
        if not self._ready.done():
            self._ready.set_exception(reason)
            self._ready.exception()

    async def close(self) -> None:
        self._end(LinkDown("closed"))
        tasks = (self._pinger, self._reader, *self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.link.close()


@dataclass(frozen=True, slots=True)
class _HandOver:
    """What starts an operation, and which supervisor may start it (None: any). `first`: nobody tried before."""

    head: dict[str, Any]
    body: bytes
    boot: str | None
    first: bool


class SupervisorClient(ProcessCalls):
    """Implements the port's `Sandbox` over a link. `reconnect_seconds` bounds how long a lost link is tried again.

    It belongs to the supervisor that answers first. If another one answers later, nothing is taken from it.
    """

    def __init__(
        self, connect: Connect, environment: Mapping[str, str] | None = None, *, reconnect_seconds: float = 60.0
    ) -> None:
        self._connect = connect
        self._environment = dict(environment or {})
        self._reconnect_seconds = reconnect_seconds
        self._connection: _Connection | None = None
        self._boot = ""
        self.replaced = False
        """Another supervisor has answered; this client is of no more use."""
        super().__init__(self._ask, self._environment)
        self._lock = asyncio.Lock()

    @property
    def connected(self) -> bool:
        return self._connection is not None and self._connection.open

    @property
    def placement(self) -> None:
        """See `milepost.ports.sandbox.Sandbox.placement`; a back end that has one tells it itself."""
        return None

    @property
    def boot(self) -> str:
        """See `milepost.ports.sandbox.Sandbox.boot`; that of the last connection."""
        return self._boot

    async def hello(self) -> dict[str, Any]:
        """What the supervisor reports of itself; connects if needed. Raises LinkDown, SandboxGone."""
        return (await self._current()).hello

    async def _current(self) -> _Connection:
        async with self._lock:
            if self._connection is not None and self._connection.open:
                return self._connection
            await self._drop()
            connection = _Connection(await self._connect())
            try:
                await connection.ready()
            except BaseException:
                await connection.close()
                raise
            boot = str(connection.hello["boot"])
            if self._boot not in ("", boot):
                await connection.close()
                self.replaced = True
                raise SupervisorReplaced("The sandbox was restarted: another supervisor answers.")
            self._connection, self._boot = connection, boot
            return connection

    async def _drop(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()

    async def perform(
        self, effect_id: str, operation: Operation, on_output: OnOutput | None = None, *, boot: str | None = None
    ) -> Outcome:
        """See `milepost.ports.sandbox.Sandbox.perform`."""
        return await self._follow(effect_id, self._hand_over(effect_id, operation, boot, first=True), on_output)

    async def attach(
        self,
        effect_id: str,
        on_output: OnOutput | None = None,
        *,
        operation: Operation | None = None,
        boot: str | None = None,
    ) -> Outcome:
        """See `milepost.ports.sandbox.Sandbox.attach`."""
        run = None
        if operation is not None and boot is not None:
            run = self._hand_over(effect_id, operation, boot, first=False)
        return await self._follow(effect_id, run, on_output)

    def _hand_over(self, effect_id: str, operation: Operation, boot: str | None, *, first: bool) -> _HandOver:
        head, body = requests.request(operation, self._environment)
        return _HandOver({"t": "run", "id": effect_id, **head}, body, boot, first)

    async def _follow(self, effect_id: str, run: _HandOver | None, on_output: OnOutput | None) -> Outcome:
        """Hand over once (`run`), or attach; then follow to the end across lost links while the supervisor lives."""
        call = _Call(on_output, asyncio.get_running_loop().create_future())
        attach = {"t": "attach", "id": effect_id}
        boot: str | None = None
        for _ in range(MAX_LINKS):
            connection = await self._reach(handed_over=run is None or not run.first or boot is not None)
            answering = connection.hello["boot"]
            if boot is not None and answering != boot:
                raise SandboxLost("The sandbox was restarted while the operation ran; its outcome is unknown.")
            if run is not None and boot is None and run.boot not in (None, answering):
                if run.first:
                    raise SandboxUnavailable("The sandbox was restarted just before the operation; nothing was done.")
                run = None
            first = run is not None and boot is None
            boot = answering
            try:
                if first and run is not None:
                    head, answer = await connection.ask(run.head, run.body, call)
                else:
                    head, answer = await connection.ask(attach, b"", call)
            except LinkDown:
                call.attached = call.attached if call.attached is not None or run is None else False
                call.again()
                continue
            if head["t"] != "unknown":
                stdout, stderr = bytes(call.data["stdout"]), bytes(call.data["stderr"])
                try:
                    return requests.outcome(head, answer, stdout, stderr, bool(call.attached))
                except (TypeError, ValueError):
                    raise SandboxLost("The sandbox's answer is malformed; the outcome is unknown.") from None
            if first or run is None or head.get("evicted"):
                raise SandboxLost(_unknown_text(bool(head.get("evicted"))))
            # The link broke before the request arrived: this very supervisor has never seen it, so it did not run.
            boot = None
            call.again()
        raise SandboxLost(f"The link to the sandbox broke {MAX_LINKS} times; the outcome of the operation is unknown.")

    async def _reach(self, *, handed_over: bool) -> _Connection:
        """A connection, tried again for a while. Before the hand-over a failure means that nothing was done."""
        seconds = self._reconnect_seconds if handed_over else min(self._reconnect_seconds, HAND_OVER_SECONDS)
        deadline = time.monotonic() + seconds
        delay = 0.05
        while True:
            try:
                return await self._current()
            except SandboxGone as error:
                if handed_over:
                    raise SandboxLost(f"{error} The outcome of the operation is unknown.") from None
                raise SandboxUnavailable(f"{error} So nothing was done.", fix="Open the sandbox again.") from None
            except LinkDown as error:
                if time.monotonic() >= deadline:
                    if handed_over:
                        text = (
                            f"The sandbox could not be reached for {seconds:.0f} s ({error}); the outcome is unknown."
                        )
                        raise SandboxLost(text) from None
                    raise SandboxUnavailable(f"The sandbox cannot be reached: {error}.") from None
            await asyncio.sleep(delay)
            delay = min(delay * 2, 1.0)

    async def kill(self, effect_id: str) -> None:
        """See `milepost.ports.sandbox.Sandbox.kill`. Returns when nothing of the operation runs any more.

        Raises:
            SandboxUnavailable: the supervisor cannot be reached or does not confirm, or another one answers.
        """
        head = {"t": "kill", "id": effect_id}
        try:
            async with asyncio.timeout(KILL_SECONDS):
                while True:
                    try:
                        connection = await self._current()
                        call = _Call(None, asyncio.get_running_loop().create_future())
                        answer, _ = await connection.ask(head, b"", call)
                        if answer["t"] != "ok":
                            raise SandboxUnavailable("The sandbox did not confirm the kill.")
                        return
                    except LinkDown:
                        await asyncio.sleep(0.1)
        except SupervisorReplaced as error:
            raise SandboxUnavailable(str(error)) from None
        except SandboxGone:
            return
        except TimeoutError:
            raise SandboxUnavailable(f"The sandbox did not confirm the kill within {KILL_SECONDS:.0f} s.") from None

    async def _ask(
        self, head: dict[str, Any], body: bytes, seconds: float, *, again: bool
    ) -> tuple[dict[str, Any], bytes]:
        """See `milepost.sandboxes.processes.Asking`."""
        sent, why = False, f"no answer within {seconds:.0f} s"
        try:
            async with asyncio.timeout(seconds):
                while not sent or again:
                    try:
                        connection = await self._current()
                        sent = True
                        return await connection.ask(head, body, _Call(None, asyncio.get_running_loop().create_future()))
                    except LinkDown as error:
                        why = str(error)
                        await asyncio.sleep(0.1)
        except SandboxGone as error:
            if not sent or again:
                raise SandboxUnavailable(f"{error} What ran in it has ended.", fix="Open the sandbox again.") from None
        except TimeoutError:
            pass
        if sent and not again:
            raise SandboxLost(f"Whether the sandbox did what was asked is unknown: {why}.")
        raise SandboxUnavailable(f"The sandbox cannot be reached: {why}.")

    async def close(self) -> None:
        """Release the connection; running operations go on."""
        async with self._lock:
            await self._drop()


def _unknown_text(evicted: bool) -> str:
    if evicted:
        return "The operation ran in this sandbox long ago and its outcome is no longer kept there."
    return "This sandbox has never seen the operation: it was made anew or restarted since. The outcome is unknown."
