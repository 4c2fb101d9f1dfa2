"""The gateway: every configured provider behind one call."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import cast
from urllib.parse import urlsplit

from milepost.domain.errors import InvalidInput, ProviderUnknown
from milepost.domain.messages import ResponseFormat
from milepost.domain.providers import (
    CassetteMode,
    HttpProvider,
    ProviderConfig,
    RecordedProvider,
    ScriptedProvider,
)
from milepost.domain.suggestions import closest
from milepost.ports.models import ModelCompleted, ModelHealth, ModelInfo, ModelItem, ModelRequest
from milepost.ports.secrets import SecretStore
from milepost.providers.provider import Factory, Provider, secret_references
from milepost.providers.structured import format_note

_MODULES = {
    "scripted": "milepost.providers.scripted.provider",
    "openai_compatible": "milepost.providers.openai_compatible.provider",
    "anthropic": "milepost.providers.anthropic.provider",
    "openai": "milepost.providers.openai.provider",
    "openrouter": "milepost.providers.openrouter.provider",
    "ollama": "milepost.providers.ollama.provider",
    "gemini": "milepost.providers.gemini.provider",
    "mistral": "milepost.providers.mistral.provider",
    "recorded": "milepost.providers.recorded.provider",
}


class Gateway:
    """`ModelGateway` over named configurations.

    A provider's module, and with it the library it stands on, is imported in a thread at the first call that needs it.
    All calls of one gateway belong to one event loop.
    """

    def __init__(self, providers: Mapping[str, ProviderConfig], secrets: SecretStore) -> None:
        self._configs = dict(providers)
        self._secrets = secrets
        self._open: dict[str, Provider] = {}

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelItem, None]:
        if not request.model:
            request = replace(request, model=self._default_model(request.provider) or "")
        self._check_route(self.config(request.provider), request.model)
        provider = await self.provider(request.provider)
        async with aclosing(provider.stream(request)) as items:
            async for item in items:
                wanted = request.sampling.response_format
                yield item if wanted is None or not isinstance(item, ModelCompleted) else await _judged(item, wanted)

    async def check(self, provider: str, model: str = "") -> ModelHealth:
        return await (await self.provider(provider)).check(model)

    async def models(self, provider: str) -> list[ModelInfo] | None:
        return await (await self.provider(provider)).models()

    def known(self, provider: str) -> str:
        return self.config(provider).name

    def validate(self, provider: str, model: str, script: str | None = None) -> None:
        config = self.config(provider)
        for reference in secret_references(config).values():
            self._secrets.resolve(reference)
        self._check_route(config, model)
        if isinstance(config, RecordedProvider) and config.source and config.mode is not CassetteMode.REPLAY:
            self.validate(config.source, model)
        script = script if script is not None or not isinstance(config, ScriptedProvider) else config.script
        if script is not None:
            # Here, not above: a process that plays no script needs no YAML library.
            from milepost.providers.scripted.script import parse_script

            parse_script(script)

    def _check_route(self, config: ProviderConfig, model: str) -> None:
        match config:
            case HttpProvider():
                check_base_url(config.name, config.base_url)
                if not (model or config.default_model):
                    raise InvalidInput(
                        f"Provider '{config.name}' has no default model and none was given.",
                        field="model",
                        fix=f"Name a model for the agent, or set providers.{config.name}.model.",
                    )
            case RecordedProvider() if config.mode is not CassetteMode.REPLAY:
                if config.source is None:
                    fix = f"Name the provider to record as providers.{config.name}.source."
                    raise InvalidInput(f"Provider '{config.name}' records, but has no source.", field="source", fix=fix)
                if isinstance(self.config(config.source), RecordedProvider):
                    fix = "Name a provider of another type."
                    raise InvalidInput(f"Provider '{config.name}' records a recording.", field="source", fix=fix)
            case _:
                # A script names no model; a replayed source is not called and need not exist any more.
                pass

    def _default_model(self, name: str) -> str | None:
        config = self.config(name)
        if config.default_model is None and isinstance(config, RecordedProvider) and config.source in self._configs:
            return self._configs[config.source].default_model
        return config.default_model

    async def provider(self, name: str) -> Provider:
        """The adapter of a configured provider, made at first use. Raises ProviderUnknown."""
        config = self.config(name)
        if name not in self._open:
            # Some libraries take seconds to import: not on the loop.
            module = await asyncio.to_thread(importlib.import_module, _MODULES[config.type])
            if name not in self._open:
                create = cast(Factory, module.create)
                self._open[name] = create(config, self._secrets, self)
        return self._open[name]

    async def close(self) -> None:
        """Close every connection; the gateway may be used again afterwards."""
        opened, self._open = list(self._open.values()), {}
        for provider in opened:
            await provider.close()

    def config(self, name: str) -> ProviderConfig:
        """The configuration of a provider. Raises ProviderUnknown, naming the nearest one."""
        config = self._configs.get(name)
        if config is not None:
            return config
        near = closest(name, self._configs)
        known = ", ".join(sorted(self._configs)) or "none"
        hint = f"Did you mean '{near}'? " if near else ""
        raise ProviderUnknown(
            f"No provider '{name}' is configured.",
            field="provider",
            fix=f"{hint}Configured: {known}. Add it under `providers` in milepost.yaml.",
        )


async def _judged(answer: ModelCompleted, wanted: ResponseFormat) -> ModelCompleted:
    """With a note if the answer does not have its format. In a thread: answer and schema may be large."""
    note = await asyncio.to_thread(format_note, answer, wanted)
    return answer if note is None else replace(answer, diagnostics=(*answer.diagnostics, note))


def check_base_url(provider: str, url: str) -> None:
    """Refuse an address that cannot be called, or that carries a credential.

    Raises:
        InvalidInput: naming the provider and `base_url`.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidInput(
            f"Provider '{provider}': `base_url` is not an http or https address.",
            field="base_url",
            fix="Give the address up to and with the version, for example http://127.0.0.1:8000/v1.",
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidInput(
            f"Provider '{provider}': `base_url` holds a user, password, query or fragment.",
            field="base_url",
            fix="Put the credential behind `api_key` or `secret_headers` as a reference.",
        )
