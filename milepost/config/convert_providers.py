"""The `providers` section as values of the domain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from milepost.config.models import SCRIPTED, Settings
from milepost.config.providers import (
    DEMO_MODEL,
    AnthropicSection,
    GeminiSection,
    HttpSection,
    MistralSection,
    OllamaSection,
    OpenAICompatibleSection,
    OpenAISection,
    OpenRouterSection,
    ProviderSection,
    RecordedSection,
    ScriptedSection,
)
from milepost.config.references import is_reference
from milepost.config.sections import Section
from milepost.domain.errors import ConfigInvalid
from milepost.domain.providers import (
    AnthropicProfile,
    AnthropicProvider,
    EndpointProfile,
    GeminiProfile,
    GeminiProvider,
    MistralProfile,
    MistralProvider,
    ModelLimits,
    ModelTimeouts,
    OllamaProfile,
    OllamaProvider,
    OpenAICompatibleProvider,
    OpenAIProfile,
    OpenAIProvider,
    OpenRouterProfile,
    OpenRouterProvider,
    ProviderConfig,
    RecordedProvider,
    Route,
    ScriptedProvider,
)

MAX_SCRIPT_BYTES = 4 * 1024 * 1024


def providers(settings: Settings, base: Path) -> dict[str, ProviderConfig]:
    """All providers, 'scripted' always among them. Relative paths count from `base`."""
    result: dict[str, ProviderConfig] = {SCRIPTED: ScriptedProvider(SCRIPTED, DEMO_MODEL)}
    for name, section in settings.providers.items():
        result[name] = _provider(name, section, base)
    return result


def _provider(name: str, section: ProviderSection, base: Path) -> ProviderConfig:
    match section:
        case OpenAICompatibleSection():
            profiles = _profiles(section, EndpointProfile)
            return OpenAICompatibleProvider(**_http(name, section), base_url=section.base_url, **profiles)
        case AnthropicSection():
            profiles = _profiles(section, AnthropicProfile)
            return AnthropicProvider(**_http(name, section), base_url=section.base_url, **profiles)
        case OpenAISection():
            profiles = _profiles(section, OpenAIProfile)
            return OpenAIProvider(**_http(name, section), base_url=section.base_url, api=section.api, **profiles)
        case OpenRouterSection():
            profiles = {**_profiles(section, OpenRouterProfile), "routing": section.routing}
            return OpenRouterProvider(**_http(name, section), base_url=section.base_url, **profiles)
        case OllamaSection():
            profiles = _profiles(section, OllamaProfile)
            return OllamaProvider(**_http(name, section), base_url=section.base_url, **profiles)
        case GeminiSection():
            profiles = _profiles(section, GeminiProfile)
            return GeminiProvider(**_http(name, section), base_url=section.base_url, **profiles)
        case MistralSection():
            profiles = _profiles(section, MistralProfile)
            return MistralProvider(**_http(name, section), base_url=section.base_url, **profiles)
        case ScriptedSection():
            script = None if section.script is None else _script(base / section.script.expanduser())
            return ScriptedProvider(name, section.model, script)
        case RecordedSection():
            cassette = str(base / section.cassette.expanduser())
            return RecordedProvider(name, cassette, section.source, section.mode, section.model)


def _http(name: str, section: HttpSection) -> dict[str, Any]:
    """The values of every provider behind an address. Routes of `fallbacks` keep an empty model for the default."""
    return {
        "name": name,
        "default_model": section.model,
        "api_key": section.api_key,
        "headers": {key: text for key, text in section.headers.items() if not is_reference(text)},
        "secret_headers": {key: text for key, text in section.headers.items() if is_reference(text)},
        "timeouts": ModelTimeouts(**section.timeouts.model_dump()),
        "limits": ModelLimits(**section.limits.model_dump()),
        "fallbacks": tuple(Route(route.provider, route.model or "") for route in section.fallbacks),
        "idempotency_header": section.idempotency_header,
        "context_tokens": dict(section.context_tokens),
        "tokenizers": dict(section.tokenizers),
    }


def _profiles(section: Any, kind: type[Any]) -> dict[str, Any]:
    """The profiles of a provider and of its models, as values of `kind`, which has the fields of the section."""

    def profile(of: Section) -> Any:
        return kind(**{name: getattr(of, name) for name in type(of).model_fields})

    models = {model: profile(own) for model, own in section.model_profiles.items()}
    return {"profile": profile(section.profile), "model_profiles": models}


def _script(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SCRIPT_BYTES + 1)
        if len(raw) > MAX_SCRIPT_BYTES:
            raise ConfigInvalid(f"The script {path} is over {MAX_SCRIPT_BYTES} bytes.")
        return raw.decode("utf-8")
    except OSError as error:
        raise ConfigInvalid(f"The script {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigInvalid(f"The script {path} is not UTF-8.") from error
