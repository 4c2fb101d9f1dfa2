"""What crosses the wire to Temporal: typed JSON by pydantic, with bounded sizes and bounded failures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.contrib.pydantic import pydantic_data_converter as base_converter
from temporalio.converter import DataConverter, DefaultFailureConverter, PayloadCodec, PayloadConverter
from temporalio.exceptions import ApplicationError

from milepost.contracts.activities import PAYLOAD_UNDECODABLE, boundary_text
from milepost.domain.errors import MilepostError, PayloadTooLarge
from milepost.temporal.codec import PayloadUndecodable, is_encrypted, unreadable

MAX_PAYLOAD_BYTES = 48 * 1024
"""No workflow event may exceed 64 KiB; a payload over this is refused before it reaches the boundary."""

MAX_FAILURE_MESSAGE = 4 * 1024
MAX_FAILURE_STACK = 2 * 1024
MAX_FAILURE_DEPTH = 8
"""Bytes of a failure's message and of its stack trace, and how many causes deep: together well under an event."""


ENCODED_MESSAGE = "Encoded failure"
"""What the SDKs say instead of a message that lies in a payload."""


class BoundedPayloadConverter(PydanticPayloadConverter):
    """The pydantic converter, refusing values that would make an oversize event, and saying what it cannot read."""

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        payloads = super().to_payloads(values)
        for value, payload in zip(values, payloads, strict=True):
            if len(payload.data) > MAX_PAYLOAD_BYTES:
                raise PayloadTooLarge.of(type(value).__name__, "payload", len(payload.data), MAX_PAYLOAD_BYTES)
        return payloads

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        for payload in payloads:
            if is_encrypted(payload):
                # With a codec nothing encrypted comes here.
                raise unreadable(payload)
        return super().from_payloads(payloads, type_hints)


class BoundedFailureConverter(DefaultFailureConverter):
    """Cuts messages, stack traces and cause chains, so that a traceback cannot break the event bound.

    A domain error keeps its code and whether a retry can help, also where no activity translated it (a result that
    the payload converter refuses).
    """

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        _cut_chain(exception)
        super().to_failure(_presentable(exception), payload_converter, failure)
        failure.message = _cut(failure.message, MAX_FAILURE_MESSAGE)
        failure.stack_trace = _cut(failure.stack_trace, MAX_FAILURE_STACK)


class EncodedFailureConverter(BoundedFailureConverter):
    """Moves message and stack trace into a payload, which a codec encrypts. Type and retry facts stay readable."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        super().to_failure(exception, payload_converter, failure)
        _encode(failure, payload_converter)
        # A failure that came from Temporal was read, and is copied with all its causes as it was then.
        cause = failure
        while cause.HasField("cause"):
            cause = cause.cause
            _encode(cause, payload_converter)


def _encode(failure: Failure, payload_converter: PayloadConverter) -> None:
    if failure.message == ENCODED_MESSAGE and failure.HasField("encoded_attributes"):
        return
    shown = {"message": failure.message, "stack_trace": failure.stack_trace}
    failure.encoded_attributes.CopyFrom(payload_converter.to_payloads([shown])[0])
    failure.message, failure.stack_trace = ENCODED_MESSAGE, ""


def _presentable(exception: BaseException) -> BaseException:
    text = str(exception)
    if isinstance(exception, MilepostError):
        shown = ApplicationError(boundary_text(text), type=exception.code, non_retryable=not exception.retryable)
    elif isinstance(exception, PayloadUndecodable):
        shown = ApplicationError(boundary_text(text), type=PAYLOAD_UNDECODABLE)
    elif text != boundary_text(text, len(text)):
        # Lone surrogates do not fit into a failure, and the SDK would lose the whole of it.
        final = isinstance(exception, ApplicationError) and exception.non_retryable
        kind = (isinstance(exception, ApplicationError) and exception.type) or type(exception).__name__
        shown = ApplicationError(boundary_text(text, len(text)), type=kind, non_retryable=final)
    else:
        return exception
    shown.__traceback__, shown.__cause__ = exception.__traceback__, exception.__cause__
    return shown


def _cut_chain(exception: BaseException) -> None:
    """End the chain of causes after eight, which also breaks one that runs in a circle."""
    for _ in range(MAX_FAILURE_DEPTH - 1):
        if exception.__cause__ is None:
            return
        exception = exception.__cause__
    exception.__cause__ = None


def _cut(text: str, limit: int) -> str:
    """At most `limit` bytes of UTF-8: the beginning and the end, with a mark between them."""
    data = text.encode("utf-8")
    if len(data) <= limit:
        return text
    half = limit // 2 - 32
    head, tail = (piece.decode("utf-8", "ignore") for piece in (data[:half], data[-half:]))
    return f"{head}\n… {len(data) - 2 * half} bytes cut …\n{tail}"


DATA_CONVERTER: DataConverter = dataclasses.replace(
    base_converter,
    payload_converter_class=BoundedPayloadConverter,
    failure_converter_class=BoundedFailureConverter,
)
"""The converter of clients and workers without encryption. A later change would break recorded histories."""


def encrypting(codec: PayloadCodec) -> DataConverter:
    """The converter of clients and workers whose payloads and failures go through a codec."""
    return dataclasses.replace(DATA_CONVERTER, payload_codec=codec, failure_converter_class=EncodedFailureConverter)
