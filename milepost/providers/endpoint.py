"""A provider that is called over HTTP without a library between: one request, one stream of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any, Protocol

import httpx2

from milepost.domain.errors import (
    MilepostError,
    ModelAnswerMalformed,
    ModelError,
    ModelIncomplete,
    ModelTimedOut,
    ModelUnavailable,
)
from milepost.domain.messages import AssistantMessage
from milepost.ports.models import ModelHealth, ModelInfo, ModelItem, ModelRequest, ReasoningDelta, TextDelta
from milepost.providers import answers, connection, health
from milepost.providers.deadlines import CallClock
from milepost.providers.faults import TOO_LONG, Refusal, bounded, context_too_long, detail, status_error
from milepost.providers.hiding import HiddenDeltas, hidden
from milepost.providers.http import EndpointTransport, http_client, key_headers
from milepost.providers.provider import EndpointConfig
from milepost.providers.raw_json import encode
from milepost.providers.sealed import Block, parts_of, seal
from milepost.providers.sse import events, json_lines
from milepost.providers.too_long import too_long

Delta = TextDelta | ReasoningDelta

CUT = "The connection ended after the finish reason; usage may be missing."
MAX_MEDIA_TYPE = 80
LATE = "An event after the finish reason could not be read."


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request as it goes out: the path below the base address, and the JSON body (may hold `RawJson`)."""

    path: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stream:
    """How the events of an answer are put into its body."""

    media_type: str
    read: Callable[[AsyncIterable[bytes], EndpointConfig], AsyncGenerator[str, None]]


SSE = Stream("text/event-stream", events)
JSON_LINES = Stream("application/x-ndjson", json_lines)


class Answer(Protocol):
    """One answer in the making.

    `notes` are facts to record. `finished` turns true when the finish reason has come, `resumed` when more of the
    answer comes after it: some servers give a reason with each event, which then ends nothing.
    """

    notes: list[str]
    finished: bool
    resumed: bool

    def feed(self, event: str) -> Iterable[Delta]:
        """Take in the data of one event.

        Raises:
            ModelError: it cannot be read.
            Refusal: it reports an error.
        """

    def blocks(self) -> list[Block]:
        """What came, in its order."""

    def ending(self) -> answers.Ending:
        """What it ended with; asked for when `finished`."""


class WireFormat(Protocol):
    """One way to ask and to answer. `name` marks the state it keeps; `models_path` is where the list of models is."""

    name: str
    models_path: str

    def outgoing(self, request: ModelRequest, notes: list[str]) -> Outgoing:
        """The request; what is left out of it is noted. Raises ModelRequestRejected for one that cannot be sent."""

    def answer(self, request: ModelRequest) -> Answer:
        """A fresh answer to the request."""

    def refusal(self, status: int, body: Any) -> Refusal:
        """What a refused request means. `body` is JSON or a text."""

    def model_ids(self, listed: Any) -> Sequence[str | ModelInfo]:
        """The models of a list that the service answered with. See `health.ReadList`."""


class HttpEndpoint:
    """A provider over one `WireFormat`. Connections are kept between calls; credentials are resolved for each call."""

    def __init__(
        self, config: EndpointConfig, wire: WireFormat, transport: EndpointTransport, stream: Stream = SSE
    ) -> None:
        self._config = config
        self._wire = wire
        self._transport = transport
        self._http = http_client(config, transport)
        self._kind = stream

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelItem, None]:
        self._transport.refresh()
        notes: list[str] = []
        outgoing = self._wire.outgoing(request, notes)
        answer = self._wire.answer(request)
        clock = CallClock(self._config)
        redact = self._transport.redact
        shown = HiddenDeltas(redact)
        begun = False
        try:
            async with AsyncExitStack() as stack:
                async with clock.opening():
                    body = await self._open(stack, outgoing, request.idempotency_key)
                    event = await anext(body, None)
                begun = event is not None
                while event is not None:
                    async with clock.waiting():
                        deltas = self._fed(answer, event, clock)
                    for delta in deltas:
                        for piece in shown.feed(delta):
                            yield piece
                    async with clock.waiting():
                        event = await anext(body, None)
            if not answer.finished:
                raise self._unfinished(begun)
        except (httpx2.TransportError, TimeoutError, ModelError, Refusal) as error:
            for piece in shown.end():
                yield piece
            failure = self._failure(error, clock, begun)
            # A cut after the finish reason costs the usage, not the answer.
            ended = answer.finished and not answer.resumed
            if not ended or not isinstance(failure, ModelIncomplete | ModelTimedOut):
                # Without a cause: the library's errors hold bodies and headers.
                raise failure from None
            notes.append(CUT)
        for piece in shown.end():
            yield piece
        blocks = answer.blocks()
        state = seal(blocks, self._wire.name, request.provider, request.model)
        message = AssistantMessage(parts_of(blocks), state)
        done = answers.completed(request, message, answer.ending(), [*notes, *answer.notes], redact)
        yield hidden(done, redact)

    async def check(self, model: str = "") -> ModelHealth:
        try:
            self._transport.refresh()
        except MilepostError as error:
            return ModelHealth(self._config.name, False, error.message, error.fix)
        return await health.check(
            self._config,
            self._http,
            self._transport.redact,
            model=model,
            path=self._wire.models_path,
            ids=self._wire.model_ids,
        )

    async def models(self) -> list[ModelInfo] | None:
        self._transport.refresh()
        return await health.models(
            self._config,
            self._http,
            self._transport.redact,
            path=self._wire.models_path,
            ids=self._wire.model_ids,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def _open(self, stack: AsyncExitStack, outgoing: Outgoing, key: str) -> AsyncGenerator[str, None]:
        content = encode(outgoing.body)
        headers = {"Content-Type": "application/json", "Accept": self._kind.media_type} | key_headers(self._config, key)
        url = self._config.base_url.rstrip("/") + outgoing.path
        response = await stack.enter_async_context(self._http.stream("POST", url, content=content, headers=headers))
        kind = response.headers.get("content-type", self._kind.media_type)
        if response.status_code != 200 or not kind.startswith(self._kind.media_type):
            raise await self._refused(response, kind)
        return await stack.enter_async_context(aclosing(self._kind.read(response.aiter_raw(), self._config)))

    async def _refused(self, response: httpx2.Response, kind: str) -> ModelError:
        status = response.status_code
        body = connection.parsed(await _beginning(response) if status == 200 else await response.aread())
        if status == 200:
            redact = self._transport.redact
            said, kind = detail(connection.said(body), redact), redact(redact.cut(kind, MAX_MEDIA_TYPE))
            return ModelUnavailable(
                bounded(f"Provider '{self._config.name}' answered with {kind}, not with a stream of events: {said}"),
                fix="Check that `base_url` is an endpoint of the provider's type.",
            )
        return self._refusal(self._wire.refusal(status, body), connection.retry_after(response.headers))

    def _refusal(self, refusal: Refusal, after: float | None = None) -> ModelError:
        said = detail(connection.said(refusal.body), self._transport.redact)
        if refusal.like is None and too_long(refusal.status, refusal.body, said):
            return context_too_long(bounded(f"Provider '{self._config.name}': {TOO_LONG}: {said}"), refusal.status)
        return status_error(
            self._config.name,
            refusal.status,
            said,
            key_reference=self._config.api_key,
            retry_after=refusal.retry_after if after is None else after,
            like=refusal.like,
        )

    def _fed(self, answer: Answer, event: str, clock: CallClock) -> list[Delta]:
        finished = answer.finished
        try:
            deltas = list(answer.feed(event))
        except (ModelError, Refusal):
            if not finished:
                raise
            # After the finish reason the answer is whole, whatever else comes.
            deltas = []
            if LATE not in answer.notes:
                answer.notes.append(LATE)
        except RecursionError:
            raise ModelAnswerMalformed(
                f"Provider '{self._config.name}' sent JSON that is nested too deeply; the answer cannot be read."
            ) from None
        if answer.resumed:
            clock.resuming()
        elif answer.finished and not finished:
            clock.finishing()
        return deltas

    def _unfinished(self, begun: bool) -> ModelIncomplete:
        when = "without a finish reason; it is not complete" if begun else "before the first event"
        return ModelIncomplete(f"Provider '{self._config.name}' ended its answer {when}.")

    def _failure(self, error: Exception, clock: CallClock, begun: bool) -> MilepostError:
        if isinstance(error, httpx2.TransportError):
            return connection.exchange_error(error, self._config, self._transport.redact, begun=begun)
        if isinstance(error, Refusal):
            return self._refusal(error)
        return error if isinstance(error, ModelError) else clock.error


async def _beginning(response: httpx2.Response) -> bytes:
    """The first piece of a body that should have been a stream of events."""
    async for piece in response.aiter_raw():
        return piece
    return b""
