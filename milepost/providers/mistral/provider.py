"""Mistral's chat completions over HTTP."""

from __future__ import annotations

from milepost.domain.providers import MistralProvider, ProviderConfig
from milepost.ports.secrets import SecretStore
from milepost.providers.endpoint import HttpEndpoint
from milepost.providers.http import EndpointTransport
from milepost.providers.mistral.format import ChatFormat
from milepost.providers.provider import Providers


def create(config: ProviderConfig, secrets: SecretStore, providers: Providers) -> HttpEndpoint:
    """The adapter for `config`."""
    assert isinstance(config, MistralProvider)  # noqa: S101 - the gateway dispatches by type
    return HttpEndpoint(config, ChatFormat(config), EndpointTransport(config, secrets))
