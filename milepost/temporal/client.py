"""Connecting to a Temporal cluster."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cache

from temporalio.client import Client, TLSConfig
from temporalio.converter import DataConverter
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.service import RPCError

from milepost.domain.errors import TemporalUnavailable
from milepost.temporal.converter import DATA_CONVERTER

CONNECT_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class TemporalAddress:
    """Where the cluster is. `api_key` and the TLS fields hold resolved values and are never printed."""

    target: str
    namespace: str = "default"
    ui: str = ""
    tls: bool = False
    server_name: str | None = None
    root_ca: bytes | None = None
    client_certificate: bytes | None = None
    client_key: bytes | None = None
    api_key: str | None = None

    def __repr__(self) -> str:
        return f"TemporalAddress(target={self.target!r}, namespace={self.namespace!r})"


async def connect(address: TemporalAddress, converter: DataConverter = DATA_CONVERTER) -> Client:
    """Connect within 10 s. Raises TemporalUnavailable with the address and what to do."""
    tls: bool | TLSConfig = address.tls
    if address.tls and (address.root_ca or address.client_certificate or address.server_name):
        tls = TLSConfig(
            server_root_ca_cert=address.root_ca,
            domain=address.server_name,
            client_cert=address.client_certificate,
            client_private_key=address.client_key,
        )
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
            return await Client.connect(
                address.target,
                namespace=address.namespace,
                data_converter=converter,
                tls=tls,
                api_key=address.api_key,
                runtime=_runtime(),
            )
    except (RuntimeError, TimeoutError, RPCError) as error:
        raise unavailable(address.target) from error


@cache
def _runtime() -> Runtime:
    """The process's one SDK runtime, without the log of its native part.

    By default that log goes to standard output, among results; forwarded to Python it can hang the end of the process,
    whose last messages wait for an interpreter that is gone. What it tells comes as errors and through the SDK's own
    loggers as well.
    """
    return Runtime(telemetry=TelemetryConfig(logging=None))


def unavailable(target: str) -> TemporalUnavailable:
    """The error for a cluster that does not answer."""
    return TemporalUnavailable(
        f"Temporal does not answer at {target}.",
        fix="Start it, or correct 'temporal.address' in the configuration (empty starts the embedded server).",
    )
