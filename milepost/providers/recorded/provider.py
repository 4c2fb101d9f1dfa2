"""Records another provider, or replays what was recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from milepost.domain.errors import CassetteMiss, InvalidInput, MilepostError, StorageUnavailable
from milepost.domain.providers import CassetteMode, ProviderConfig, RecordedProvider
from milepost.ports.models import ModelCompleted, ModelHealth, ModelInfo, ModelItem, ModelRequest
from milepost.ports.secrets import SecretStore
from milepost.providers.provider import Providers, secret_references
from milepost.providers.recorded import cassette
from milepost.providers.recorded.cassette import Exchange
from milepost.security.redaction import Redactor


def create(config: ProviderConfig, secrets: SecretStore, providers: Providers) -> Recorder:
    """The adapter for `config`."""
    assert isinstance(config, RecordedProvider)  # noqa: S101 - the gateway dispatches by type
    return Recorder(config, secrets, providers)


class Recorder:
    """A cassette in front of its source. One process at a time may record into a file; any number may replay it."""

    def __init__(self, config: RecordedProvider, secrets: SecretStore, providers: Providers) -> None:
        self._config = config
        self._secrets = secrets
        self._providers = providers
        self._path = Path(config.cassette)
        self._lock = asyncio.Lock()
        self._loaded: tuple[tuple[int, int], dict[str, Exchange]] | None = None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelItem, None]:
        redact = self._redactor()
        summary = await asyncio.to_thread(cassette.summarize, request, redact)
        mode = self._config.mode
        known = {} if mode is CassetteMode.RECORD else await self._load(must_exist=mode is CassetteMode.REPLAY)
        found = known.get(cassette.digest_of(summary))
        if found is not None:
            for item in found.answer(request.provider):
                yield item
            return
        if mode is CassetteMode.REPLAY or self._config.source is None:
            what = cassette.difference(summary, [one.request for one in known.values()])
            raise CassetteMiss(
                f"The cassette {self._path} has no answer to this request: {what}.",
                field="cassette",
                fix=f"Record again (providers.{self._config.name}.mode: record), or send what was recorded.",
            )
        source = await self._providers.provider(self._config.source)
        heard: list[ModelItem] = []
        async with aclosing(source.stream(replace(request, provider=self._config.source))) as items:
            async for item in items:
                heard.append(item)
                if isinstance(item, ModelCompleted):
                    await self._add(cassette.exchange(summary, heard, redact))
                    yield replace(item, provider=request.provider)
                else:
                    yield item

    async def check(self, model: str = "") -> ModelHealth:
        if self._config.mode is not CassetteMode.REPLAY and self._config.source is not None:
            health = await (await self._providers.provider(self._config.source)).check(model)
            return replace(health, provider=self._config.name, detail=f"Records into {self._path}. {health.detail}")
        try:
            known = await self._load(must_exist=True)
        except MilepostError as error:
            return ModelHealth(self._config.name, False, error.message, error.fix)
        return ModelHealth(self._config.name, True, f"{self._path} holds {len(known)} exchange(s); calls no model.")

    async def models(self) -> list[ModelInfo] | None:
        """Those of the source where it is called."""
        if self._config.mode is CassetteMode.REPLAY or self._config.source is None:
            return None
        return await (await self._providers.provider(self._config.source)).models()

    async def close(self) -> None:
        """The source is closed by its owner."""

    def _redactor(self) -> Redactor:
        if self._config.mode is CassetteMode.REPLAY or self._config.source is None:
            return Redactor(())
        references = secret_references(self._providers.config(self._config.source))
        return Redactor(self._secrets.resolve(reference) for reference in references.values())

    async def _load(self, *, must_exist: bool) -> dict[str, Exchange]:
        try:
            stat = self._path.stat()
            version = (stat.st_mtime_ns, stat.st_size)
            if self._loaded is None or self._loaded[0] != version:
                self._loaded = version, await asyncio.to_thread(cassette.load, self._path)
            return dict(self._loaded[1])
        except FileNotFoundError:
            if not must_exist:
                return {}
            raise InvalidInput(
                f"The cassette {self._path} does not exist.",
                field="cassette",
                fix=f"Record it first (providers.{self._config.name}.mode: record).",
            ) from None
        except OSError as error:
            raise StorageUnavailable(f"The cassette {self._path} cannot be read: {error.strerror}.") from error

    async def _add(self, exchange: Exchange) -> None:
        async with self._lock:
            known = await self._load(must_exist=False)
            known.pop(exchange.digest, None)
            await asyncio.to_thread(cassette.save, self._path, {**known, exchange.digest: exchange})
