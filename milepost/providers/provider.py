"""What the gateway needs of one kind of provider."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from milepost.domain.providers import ModelLimits, ModelTimeouts, ProviderConfig, RecordedProvider, ScriptedProvider
from milepost.ports.models import ModelHealth, ModelInfo, ModelItem, ModelRequest
from milepost.ports.secrets import SecretStore


class EndpointConfig(Protocol):
    """What the configurations of all types that call an HTTP endpoint have in common."""

    @property
    def name(self) -> str: ...
    @property
    def base_url(self) -> str: ...
    @property
    def default_model(self) -> str | None: ...
    @property
    def api_key(self) -> str | None: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def secret_headers(self) -> Mapping[str, str]: ...
    @property
    def idempotency_header(self) -> str | None: ...
    @property
    def timeouts(self) -> ModelTimeouts: ...
    @property
    def limits(self) -> ModelLimits: ...


class Provider(Protocol):
    """One configured provider. See `ModelGateway` for the meaning and the errors of each method."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelItem, None]: ...

    async def check(self, model: str = "") -> ModelHealth: ...

    async def models(self) -> list[ModelInfo] | None: ...

    async def close(self) -> None: ...


class Providers(Protocol):
    """Access to the other configured providers, for one that wraps another."""

    def config(self, name: str) -> ProviderConfig:
        """Raises ProviderUnknown."""

    async def provider(self, name: str) -> Provider:
        """Raises ProviderUnknown."""


class Factory(Protocol):
    """The `create` function of an adapter module."""

    def __call__(self, config: ProviderConfig, secrets: SecretStore, providers: Providers) -> Provider: ...


def secret_references(config: ProviderConfig) -> Mapping[str, str]:
    """The secret references of a provider by the configuration key that holds each."""
    if isinstance(config, ScriptedProvider | RecordedProvider):
        return {}
    references = {f"secret_headers.{name}": reference for name, reference in config.secret_headers.items()}
    return {"api_key": config.api_key, **references} if config.api_key else references
