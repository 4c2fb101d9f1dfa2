"""An Ollama server."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx2

from milepost.domain.errors import MilepostError
from milepost.domain.providers import OllamaProfile, OllamaProvider, ProviderConfig
from milepost.ports.models import ModelHealth
from milepost.ports.secrets import SecretStore
from milepost.providers.endpoint import JSON_LINES, HttpEndpoint
from milepost.providers.health import CHECK_SECONDS
from milepost.providers.http import EndpointTransport
from milepost.providers.ollama.format import LATEST, ChatFormat
from milepost.providers.provider import Provider, Providers

_ABILITIES = {"tools": "tools", "vision": "images", "thinking": "thinking"}


def create(config: ProviderConfig, secrets: SecretStore, providers: Providers) -> Provider:
    """The adapter for `config`."""
    assert isinstance(config, OllamaProvider)  # noqa: S101 - the gateway dispatches by type
    return OllamaEndpoint(config, EndpointTransport(config, secrets))


class OllamaEndpoint(HttpEndpoint):
    """Tells more of a model than its name: what it can, and how much of its window is in use."""

    def __init__(self, config: OllamaProvider, transport: EndpointTransport) -> None:
        super().__init__(config, ChatFormat(config), transport, JSON_LINES)
        self._ollama = config

    async def check(self, model: str = "") -> ModelHealth:
        # `name` and `name:latest` are the same model.
        name = (model or self._ollama.default_model or "").removesuffix(LATEST)
        health = await super().check(name)
        shown = await self._shown(name) if health.ok and name else None
        return health if shown is None else _with_facts(health, shown, self._ollama.profile_of(model or name))

    async def _shown(self, name: str) -> dict[str, Any] | None:
        """What the server tells of a model; None if it does not."""
        url = self._ollama.base_url.rstrip("/") + "/api/show"
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                response = await self._http.post(url, json={"model": name})
            value = json.loads(response.content) if response.status_code == 200 else None
        except (TimeoutError, httpx2.HTTPError, MilepostError, ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


def _with_facts(health: ModelHealth, shown: dict[str, Any], profile: OllamaProfile) -> ModelHealth:
    told = shown.get("capabilities")
    capabilities = told if isinstance(told, list) else []
    named = [word for name, word in _ABILITIES.items() if name in capabilities]
    facts = [f"It takes {', '.join(named)}."] if named else ["It takes no tools and no images."] if told else []
    info = shown.get("model_info")
    windows = (
        [value for key, value in info.items() if key.endswith(".context_length")] if isinstance(info, dict) else []
    )
    fix = health.fix
    if windows and isinstance(windows[0], int):
        facts.append(f"Its window has {windows[0]:,} tokens.")
        if profile.num_ctx is None:
            facts.append("The server decides how much of it is used, and cuts longer conversations without a word.")
            fix = "Set num_ctx in the model's profile to what your memory allows, for example 32768."
    return replace(health, detail=" ".join([health.detail, *facts]), fix=fix)
