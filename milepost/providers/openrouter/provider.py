"""OpenRouter: chat completions with routing, reasoning and costs of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Any

from milepost.domain.providers import OpenRouterProvider, ProviderConfig
from milepost.domain.usage import MICROS, Cost, Usage
from milepost.ports.models import ModelInfo, ModelRequest
from milepost.ports.secrets import SecretStore
from milepost.providers.openai_compatible.provider import Endpoint, body_settings
from milepost.providers.openai_compatible.usage import last_usage
from milepost.providers.provider import Provider, Providers
from milepost.providers.settings import supported

MAX_COST = Decimal(1_000_000)
"""US dollars of one call; a larger number is none."""


def create(config: ProviderConfig, secrets: SecretStore, providers: Providers) -> Provider:
    """The adapter for `config`."""
    assert isinstance(config, OpenRouterProvider)  # noqa: S101 - the gateway dispatches by type
    return OpenRouterEndpoint(config, secrets)


class OpenRouterEndpoint(Endpoint):
    """Reasoning goes back in `reasoning_details`, as every chat endpoint gets back what it sent there."""

    def __init__(self, config: OpenRouterProvider, secrets: SecretStore) -> None:
        super().__init__(config, secrets)
        self._routed = config

    def settings(self, request: ModelRequest, notes: list[str]) -> dict[str, Any]:
        profile = self._routed.profile_of(request.model)
        chosen = supported(request.sampling, profile.unsupported, notes)
        body: dict[str, Any] = {"usage": {"include": True}}
        if self._routed.routing:
            body["provider"] = dict(self._routed.routing)
        effort = chosen.pop("reasoning_effort", None)
        if effort is not None:
            body["reasoning"] = {"effort": effort}
        elif profile.reasoning_tokens is not None:
            body["reasoning"] = {"max_tokens": profile.reasoning_tokens}
        return body_settings(chosen, request, profile, body, notes)

    def usage(self, reports: Sequence[Mapping[str, Any]]) -> Usage:
        """With the cost that OpenRouter charged; a credit is a US dollar."""
        usage = last_usage(list(reports))
        costs = [cost for report in reports if (cost := _cost(report.get("cost"))) is not None]
        return replace(usage, cost=Cost(costs[-1] * MICROS)) if costs and usage.complete else usage

    def model_ids(self, listed: Any) -> Sequence[str | ModelInfo]:
        return [_info(entry) for entry in listed["data"]]


def _cost(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        cost = Decimal(str(value))
    except InvalidOperation:
        return None
    return cost if cost.is_finite() and 0 <= cost <= MAX_COST else None


def _info(entry: Mapping[str, Any]) -> ModelInfo:
    parameters = entry.get("supported_parameters") or ()
    modalities = (entry.get("architecture") or {}).get("input_modalities") or ()
    abilities = [
        name
        for name, able in (
            ("tools", "tools" in parameters),
            ("images", "image" in modalities),
            ("reasoning", "reasoning" in parameters),
            ("json", "structured_outputs" in parameters),
        )
        if able
    ]
    window = entry.get("context_length")
    return ModelInfo(str(entry["id"]), window if isinstance(window, int) else None, tuple(abilities))
