"""Events of a streamed response, whatever pieces its bytes come in: server-sent events, or lines of JSON."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable

from milepost.domain.errors import ModelAnswerTooLarge
from milepost.providers.provider import EndpointConfig


async def events(body: AsyncIterable[bytes], config: EndpointConfig) -> AsyncGenerator[str, None]:
    """The data of each event (WHATWG HTML, 9.2; lines end with LF or CRLF). A line that the end cuts off is dropped.

    The size of the body and of each event is bounded by the transport.

    Raises:
        ModelAnswerTooLarge: there are more than `limits.events`.
    """
    limit = config.limits.events
    data: list[bytes] = []
    count = 0
    async for line in _lines(body):
        if line.startswith(b"data:"):
            data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif not line and data:
            count += 1
            if count > limit:
                raise _too_many(config)
            yield b"\n".join(data).decode("utf-8", "replace")
            data = []
    if data:
        # Not every server ends its last event with an empty line.
        yield b"\n".join(data).decode("utf-8", "replace")


async def json_lines(body: AsyncIterable[bytes], config: EndpointConfig) -> AsyncGenerator[str, None]:
    """Each line that is not empty (NDJSON). A line that the end cuts off is dropped.

    Raises:
        ModelAnswerTooLarge: there are more than `limits.events`.
    """
    count = 0
    async for line in _lines(body):
        if line.strip():
            count += 1
            if count > config.limits.events:
                raise _too_many(config)
            yield line.decode("utf-8", "replace")


def _too_many(config: EndpointConfig) -> ModelAnswerTooLarge:
    return ModelAnswerTooLarge(
        f"Provider '{config.name}' sent more than {config.limits.events} events in one answer.",
        field="limits.events",
        fix=f"Ask for a shorter answer, or raise providers.{config.name}.limits.events.",
    )


async def _lines(body: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    pending: list[bytes] = []
    async for piece in body:
        *ended, rest = piece.split(b"\n")
        for line in ended:
            yield b"".join([*pending, line]).removesuffix(b"\r")
            pending = []
        if rest:
            pending.append(rest)
