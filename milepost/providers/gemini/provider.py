"""Google's Gemini API over HTTP."""

from __future__ import annotations

from milepost.domain.providers import GeminiProvider, ProviderConfig
from milepost.ports.secrets import SecretStore
from milepost.providers.endpoint import HttpEndpoint
from milepost.providers.gemini.format import ContentFormat
from milepost.providers.http import EndpointTransport
from milepost.providers.provider import Providers


def create(config: ProviderConfig, secrets: SecretStore, providers: Providers) -> HttpEndpoint:
    """The adapter for `config`."""
    assert isinstance(config, GeminiProvider)  # noqa: S101 - the gateway dispatches by type
    return HttpEndpoint(config, ContentFormat(config), EndpointTransport(config, secrets, key_header="x-goog-api-key"))
