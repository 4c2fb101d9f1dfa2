"""podman-py beside an event loop: every call on a thread, few at a time, each within a deadline, errors in two classes.

The threads are daemons and not those of `concurrent.futures`: the interpreter and `asyncio.run` wait for the latter
at their end, so one call that hangs would keep the process. podman-py is imported by the first call, on its thread:
that takes a tenth of a second and more, which commands without a sandbox must not pay.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

if TYPE_CHECKING:
    from podman.api.client import APIClient
    from podman.domain.containers_manager import ContainersManager
    from podman.domain.images_manager import ImagesManager
    from podman.domain.system import SystemManager
    from podman.domain.volumes import VolumesManager

API_VERSION = "4.0.0"
"""Of the REST API: what every supported service speaks. podman-py's default is its own release."""

LOAD_SECONDS = 60.0
SLOT_SECONDS = 60.0
"""How long a call waits for others to end; not part of its own deadline."""

T = TypeVar("T")


class PodmanDown(Exception):
    """The service does not answer."""


class PodmanError(Exception):
    """The service refused a call; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def missing(self) -> bool:
        """Whether what was asked about does not exist. Podman 5 says it of a container that is just being removed too,
        with a status of 500."""
        return self.status == 404 or "no such container" in str(self)


@dataclass(frozen=True, slots=True)
class Client:
    """podman-py on connections of its own. `api` is its low level, for what the managers cannot say."""

    api: APIClient
    containers: ContainersManager
    images: ImagesManager
    system: SystemManager
    volumes: VolumesManager


class Calls:
    """Runs functions of a `Client`, at most `limit` at once, against the service behind `socket`.

    A call that misses its deadline, or is canceled, keeps its slot until the socket's own timeout ends its thread.
    """

    def __init__(self, socket: str, limit: int) -> None:
        self.socket = socket
        self._slots = asyncio.Semaphore(limit)
        self._lock = threading.Lock()
        self._idle: list[Client] = []
        self._loaded = False
        self._closed = False

    async def run(self, what: str, call: Callable[[Client], T], seconds: float) -> T:
        """The call's result. `what` names it in errors. Raises PodmanDown, PodmanError."""
        if not self._loaded:
            await self._on_thread("loading podman-py", _library, LOAD_SECONDS)
            self._loaded = True
        return await self._on_thread(what, lambda: self._perform(what, call, seconds), seconds)

    def close(self) -> None:
        """Drop connections; those in use go when their call ends."""
        with self._lock:
            self._closed, idle, self._idle = True, self._idle, []
        for client in idle:
            client.api.close()

    async def _on_thread(self, what: str, work: Callable[[], T], seconds: float) -> T:
        try:
            async with asyncio.timeout(SLOT_SECONDS):
                await self._slots.acquire()
        except TimeoutError:
            raise PodmanDown(f"{what}: earlier calls do not end") from None
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def done(result: T | None, error: BaseException | None) -> None:
            self._slots.release()
            if answer.done():
                return
            if error is None:
                answer.set_result(result)  # type: ignore[arg-type]  # None only where T is None
            else:
                answer.set_exception(error)

        def thread() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:  # noqa: BLE001, RUF100  # it belongs to the caller, whatever it is
                error = raised
            # A loop that has ended meanwhile has nobody who waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(done, result, error)

        try:
            threading.Thread(target=thread, name="podman-call", daemon=True).start()
        except RuntimeError as error:
            self._slots.release()
            raise PodmanDown(f"{what}: {error}") from None
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise PodmanDown(f"{what}: no answer within {seconds:g} s") from None

    def _perform(self, what: str, call: Callable[[Client], T], seconds: float) -> T:
        client = self._take()
        # Ends the thread: a bound for every read and write. The caller's deadline is the bound of the whole call.
        client.api.timeout = seconds
        try:
            return call(client)
        except OSError as error:
            # Whatever podman-py and requests raise without an answer is one; answers that refuse became PodmanError.
            raise PodmanDown(f"{what}: {_reason(error)}") from None
        finally:
            self._give_back(client)

    def _take(self) -> Client:
        """A client for one thread: a session of requests is not promised to be safe for several."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return _connect(self.socket)

    def _give_back(self, client: Client) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(client)
                return
        client.api.close()


def _library() -> None:
    import podman  # noqa: F401


def _connect(socket: str) -> Client:
    """Not `PodmanClient`: it reads the person's connection files first and fails on a broken one."""
    from podman.api.client import APIClient
    from podman.domain.containers_manager import ContainersManager
    from podman.domain.images_manager import ImagesManager
    from podman.domain.system import SystemManager
    from podman.domain.volumes import VolumesManager

    # Quoted here, because podman-py loses a space, and all from a "?" or "#" on.
    api = APIClient(base_url=f"http+unix://{quote(socket, safe='')}", version=API_VERSION)
    api.hooks["response"].append(_refuse)
    return Client(
        api,
        containers=ContainersManager(client=api),
        images=ImagesManager(client=api),
        system=SystemManager(client=api),
        volumes=VolumesManager(client=api),
    )


def _refuse(response: Any, **_: Any) -> None:
    """Raise for an error before podman-py sees it: some of its calls make it a mere False, some a TypeError."""
    if response.status_code >= 400:
        raise PodmanError(response.status_code, _message(response))


def _message(response: Any) -> str:
    """Podman's own words, without the Go wrapper."""
    try:
        body = response.json()
        return str(body.get("message") or body.get("cause") or response.text)
    except (ValueError, AttributeError):
        return str(response.text)[:2000]


def _reason(error: BaseException) -> str:
    """The first cause; requests, urllib3 and podman-py each wrap it."""
    for _ in range(16):
        cause = error.__cause__ or error.__context__
        if cause is None:
            break
        error = cause
    return f"{type(error).__name__} {error}".strip()
