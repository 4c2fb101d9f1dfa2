"""What crosses the wire to Temporal: typed JSON by pydantic, with bounded sizes and bounded failures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.contrib.pydantic import pydantic_data_converter as base_converter
from temporalio.converter import DataConverter, DefaultFailureConverter, PayloadConverter

from milepost.domain.errors import PayloadTooLarge

MAX_PAYLOAD_BYTES = 48 * 1024
"""No workflow event may exceed 64 KiB; a payload over this is refused before it reaches the boundary."""

MAX_FAILURE_TEXT = 4 * 1024
MAX_FAILURE_DEPTH = 8


class BoundedPayloadConverter(PydanticPayloadConverter):
    """The pydantic converter, refusing values that would make an oversize event."""

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        payloads = super().to_payloads(values)
        for value, payload in zip(values, payloads, strict=True):
            if len(payload.data) > MAX_PAYLOAD_BYTES:
                raise PayloadTooLarge.of(type(value).__name__, "payload", len(payload.data), MAX_PAYLOAD_BYTES)
        return payloads


class BoundedFailureConverter(DefaultFailureConverter):
    """Cuts messages, stack traces and cause chains, so that a traceback cannot break the event bound."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        _cut_chain(exception)
        super().to_failure(exception, payload_converter, failure)
        current, depth = failure, 0
        while True:
            current.message = _cut(current.message)
            current.stack_trace = _cut(current.stack_trace)
            depth += 1
            if not current.HasField("cause"):
                return
            if depth >= MAX_FAILURE_DEPTH:
                current.ClearField("cause")
                return
            current = current.cause


def _cut_chain(exception: BaseException) -> None:
    """End the chain of causes after eight, which also breaks one that runs in a circle."""
    for _ in range(MAX_FAILURE_DEPTH):
        if exception.__cause__ is None:
            return
        exception = exception.__cause__
    exception.__cause__ = None


def _cut(text: str) -> str:
    if len(text) <= MAX_FAILURE_TEXT:
        return text
    half = MAX_FAILURE_TEXT // 2
    return f"{text[:half]}\n… {len(text) - MAX_FAILURE_TEXT} characters cut …\n{text[-half:]}"


DATA_CONVERTER: DataConverter = dataclasses.replace(
    base_converter,
    payload_converter_class=BoundedPayloadConverter,
    failure_converter_class=BoundedFailureConverter,
)
"""The one converter of clients and workers. A later change would break recorded histories."""
