"""OpenAI's own API: responses, or chat completions by setting."""

from __future__ import annotations

from milepost.domain.providers import OpenAIProvider, ProviderConfig
from milepost.ports.secrets import SecretStore
from milepost.providers.endpoint import HttpEndpoint
from milepost.providers.http import EndpointTransport
from milepost.providers.openai.format import ResponsesFormat
from milepost.providers.provider import Provider, Providers


def create(config: ProviderConfig, secrets: SecretStore, providers: Providers) -> Provider:
    """The adapter for `config`."""
    assert isinstance(config, OpenAIProvider)  # noqa: S101 - the gateway dispatches by type
    if config.api == "chat":
        # Here, not above: responses need none of the library that chat completions stand on.
        from milepost.providers.openai_compatible.provider import Endpoint

        return Endpoint(config, secrets)
    return HttpEndpoint(config, ResponsesFormat(config), EndpointTransport(config, secrets))
