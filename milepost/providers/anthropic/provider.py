"""Anthropic's messages API over HTTP."""

from __future__ import annotations

from milepost.domain.providers import AnthropicProvider, ProviderConfig
from milepost.ports.secrets import SecretStore
from milepost.providers.anthropic.format import MessagesFormat
from milepost.providers.endpoint import HttpEndpoint
from milepost.providers.http import EndpointTransport
from milepost.providers.provider import Providers

VERSION = "2023-06-01"


def create(config: ProviderConfig, secrets: SecretStore, providers: Providers) -> HttpEndpoint:
    """The adapter for `config`."""
    assert isinstance(config, AnthropicProvider)  # noqa: S101 - the gateway dispatches by type
    transport = EndpointTransport(config, secrets, key_header="x-api-key", fixed={"anthropic-version": VERSION})
    return HttpEndpoint(config, MessagesFormat(config), transport)
