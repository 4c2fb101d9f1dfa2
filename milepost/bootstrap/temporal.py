"""Reaching Temporal: the configured cluster, or the embedded dev server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from milepost.bootstrap.data_root import DataRoot
from milepost.config.loading import Config
from milepost.domain.errors import ConfigInvalid

if TYPE_CHECKING:
    from temporalio.client import Client
    from temporalio.converter import DataConverter

    from milepost.temporal.client import TemporalAddress


@dataclass(frozen=True, slots=True)
class TemporalConnection:
    """An open connection; `address.ui` is where a person opens the Temporal UI ("" if it is not known)."""

    client: Client
    address: TemporalAddress
    check: Callable[[], Awaitable[None]]


def embedded(config: Config) -> bool:
    """Whether Milepost starts its own Temporal server."""
    return not config.settings.temporal.address


def expected_ui(config: Config) -> str:
    """Address of the Temporal UI as far as the configuration tells it."""
    section = config.settings.temporal
    if section.ui_url is not None:
        return section.ui_url
    return f"http://127.0.0.1:{section.ui_port}" if embedded(config) and section.ui_port else ""


@asynccontextmanager
async def temporal_connection(config: Config, root: DataRoot) -> AsyncIterator[TemporalConnection]:
    """Connect to the configured cluster, or start the embedded server and stop it at the end.

    Raises:
        TemporalUnavailable, SecretMissing, ConfigInvalid.
    """
    from milepost.temporal.client import connect
    from milepost.temporal.dev_server import DevServer

    converter = data_converter(config)
    async with contextlib.AsyncExitStack() as stack:
        if embedded(config):
            section = config.settings.temporal
            server = DevServer(root.temporal_store, root.temporal_log, port=section.port, ui_port=section.ui_port)
            stack.push_async_callback(server.stop)
            address = await server.start()
            if section.ui_url is not None:
                address = replace(address, ui=section.ui_url)
        else:
            address = configured_address(config)
        client = await connect(address, converter)

        async def check() -> None:
            from milepost.temporal.starter import TemporalStarter

            await TemporalStarter(client, "").check()

        yield TemporalConnection(client, address, check)


def lazy_check(config: Config) -> Callable[[], Awaitable[None]]:
    """A check that connects to the configured cluster each time: for processes that do not need it to start."""

    async def check() -> None:
        from milepost.temporal.client import connect
        from milepost.temporal.starter import TemporalStarter

        await TemporalStarter(await connect(configured_address(config)), "").check()

    return check


def data_converter(config: Config) -> DataConverter:
    """How values become payloads: encrypted if the configuration says so. Raises SecretMissing, ConfigInvalid."""
    from milepost.temporal.codec import EncryptionCodec, parse_key
    from milepost.temporal.converter import DATA_CONVERTER, encrypting

    section = config.settings.temporal.encryption
    if section is None:
        return DATA_CONVERTER
    keys = {key_id: parse_key(key_id, config.secrets.resolve(ref)) for key_id, ref in section.keys.items()}
    return encrypting(EncryptionCodec(keys, section.current))


def configured_address(config: Config) -> TemporalAddress:
    """The configured cluster with its secrets resolved. Raises SecretMissing, ConfigInvalid."""
    from milepost.temporal.client import TemporalAddress

    section = config.settings.temporal
    resolve = config.secrets.resolve
    tls = section.tls
    base = config.path.parent if config.path is not None else Path.cwd()
    return TemporalAddress(
        target=section.address,
        namespace=section.namespace,
        ui=expected_ui(config),
        # An API key travels in a header: it is never sent in the clear.
        tls=tls is not None or section.api_key is not None,
        server_name=tls.server_name if tls else None,
        root_ca=_bytes(base, tls.ca_file, "temporal.tls.ca_file") if tls else None,
        client_certificate=_bytes(base, tls.cert_file, "temporal.tls.cert_file") if tls else None,
        client_key=resolve(tls.key).encode() if tls and tls.key else None,
        api_key=resolve(section.api_key) if section.api_key else None,
    )


def _bytes(base: Path, path: Path | None, key: str) -> bytes | None:
    if path is None:
        return None
    target = base / path.expanduser()
    try:
        with target.open("rb") as file:
            return file.read(1024 * 1024)
    except OSError as error:
        raise ConfigInvalid(f"'{key}': {target} cannot be read: {error.strerror}.", field=key) from error
