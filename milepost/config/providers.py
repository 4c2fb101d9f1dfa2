"""The `providers` section."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ByteSize, Field

from milepost.config.references import Headers, SecretReference
from milepost.config.sections import BaseUrl, Count, HeaderName, Seconds, Section
from milepost.domain.providers import CassetteMode, SystemRole, ThinkingReturn

DEMO_MODEL = "demo"
MIB = 1024**2
MAX_BYTES = 1024**3
MAX_FALLBACKS = 4


Unsupported = frozenset[Literal["temperature", "top_p", "max_tokens", "reasoning_effort", "stop"]]


class TimeoutsSection(Section):
    """Seconds."""

    connect: Seconds = 10
    """To reach the provider."""
    first_event: Seconds = 300
    """From the start of the call to the first piece of the answer."""
    idle: Seconds = 120
    """Between two pieces of the answer."""
    total: Seconds = 1500
    """Of the whole call."""


class CallLimitsSection(Section):
    """Bounds of one call."""

    request_bytes: Annotated[ByteSize, Field(ge=1024, le=MAX_BYTES)] = ByteSize(32 * MIB)
    """Of what is sent, images included."""
    response_bytes: Annotated[ByteSize, Field(ge=1024, le=MAX_BYTES)] = ByteSize(64 * MIB)
    """Of the answer."""
    event_bytes: Annotated[ByteSize, Field(ge=1024, le=MAX_BYTES)] = ByteSize(8 * MIB)
    """Of one streamed event."""
    events: Annotated[Count, Field(ge=1, le=10_000_000)] = 500_000


class ProfileSection(Section):
    """What an endpoint can and cannot do; never guessed from a model's name."""

    system_role: SystemRole = SystemRole.SYSTEM
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    unsupported: Unsupported = frozenset()
    """Sampling settings the endpoint refuses; they are left out, which is recorded."""
    supports_tools: bool = True
    supports_images: bool = True
    json_output: Literal["schema", "object", "none"] = "schema"
    """Whether a wanted JSON format goes out with its schema, as any object, or not at all."""
    stream_usage: bool = True
    """false for servers that refuse `stream_options.include_usage`; usage is then unknown."""
    thinking_field: str | None = None
    """Field of the stream that carries reasoning, where it is neither `reasoning` nor `reasoning_content`."""
    thinking_tags: tuple[str, str] | None = ("<think>", "</think>")
    """Tags around reasoning inside the text; null takes the text as it is."""
    thinking_return: ThinkingReturn = ThinkingReturn.AUTO
    """How reasoning of earlier answers goes back to the model."""
    prompt_cache_key: bool = False
    """Send a key for the prompt cache, one for each agent of a Session, to endpoints that know the field."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further top-level fields of each request."""


class RouteSection(Section):
    """Another way to a model."""

    provider: str
    model: str | None = None
    """Default: the model of the provider."""


Fallbacks = Annotated[tuple[RouteSection, ...], Field(max_length=MAX_FALLBACKS)]


class HttpSection(Section):
    """What every provider behind an HTTP address has."""

    model: str | None = None
    """Model of agents that name none."""
    api_key: SecretReference | None = None
    """Without it no key is sent."""
    headers: Headers = Field(default_factory=dict)
    """Further headers of each request; values may be references."""
    timeouts: TimeoutsSection = TimeoutsSection()
    limits: CallLimitsSection = CallLimitsSection()
    fallbacks: Fallbacks = ()
    """Tried in order when a call fails, for agents on this provider that have none of their own."""
    idempotency_header: HeaderName | None = None
    """Header in which the endpoint takes an idempotency key, for those that do."""
    context_tokens: Annotated[dict[str, Annotated[Count, Field(ge=256)]], Field(max_length=200)] = Field(
        default_factory=dict
    )
    """Context windows by model (or pattern) in tokens: a request that cannot fit is refused before it is sent."""
    tokenizers: Annotated[dict[str, Literal["o200k", "cl100k", "llama3", "qwen3"]], Field(max_length=200)] = Field(
        default_factory=dict
    )
    """Vocabularies by model (or pattern), for exact token counts; needs the extra 'tokens'."""


class OpenAICompatibleSection(HttpSection):
    """Any endpoint that speaks OpenAI's chat completions."""

    type: Literal["openai_compatible"]
    base_url: BaseUrl
    """Address of the API, up to and including /v1."""
    profile: ProfileSection = ProfileSection()
    model_profiles: dict[str, ProfileSection] = Field(default_factory=dict)
    """Profiles of single models, used instead of `profile`."""


class ServiceProfileSection(Section):
    """What every service with a wire format of its own can be told about one of its models."""

    unsupported: Unsupported = frozenset()
    """Sampling settings the model refuses; they are left out, which is recorded."""
    supports_tools: bool = True
    supports_images: bool = True
    json_output: Literal["schema", "object", "none"] = "schema"
    """Whether a wanted JSON format goes out with its schema, as any object, or not at all."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further top-level fields of each request."""


class AnthropicProfileSection(ServiceProfileSection):
    """A model of Anthropic's messages API."""

    max_tokens: Annotated[Count, Field(ge=1)] = 8192
    """Of one answer where sampling says nothing."""
    thinking: Literal["off", "budget", "adaptive"] = "off"
    """budget for models with a thinking budget, adaptive for those that take an effort instead."""
    thinking_budget: Annotated[Count, Field(ge=1024)] = 4096
    """Tokens of thinking where `reasoning_effort` says nothing."""
    prompt_cache: Literal["off", "5m", "1h"] = "5m"
    """How long the service keeps what a request has in common with the next one."""


class AnthropicSection(HttpSection):
    """Anthropic's messages API, or a service that speaks it."""

    type: Literal["anthropic"]
    base_url: BaseUrl = "https://api.anthropic.com/v1"
    """Address of the API, up to and including /v1."""
    profile: AnthropicProfileSection = AnthropicProfileSection()
    model_profiles: dict[str, AnthropicProfileSection] = Field(default_factory=dict)
    """Profiles of single models, used instead of `profile`."""


class OpenAIProfileSection(ProfileSection):
    """A model of OpenAI's own API."""

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_completion_tokens"
    thinking_tags: tuple[str, str] | None = None
    prompt_cache_key: bool = True
    reasoning: bool = True
    """Whether the model reasons; false for models that refuse to be asked for it."""
    reasoning_summary: Literal["off", "auto", "concise", "detailed"] = "off"
    """How much of its reasoning is shown."""


class OpenAISection(HttpSection):
    """OpenAI's own API."""

    type: Literal["openai"]
    base_url: BaseUrl = "https://api.openai.com/v1"
    """Address of the API, up to and including /v1."""
    api: Literal["responses", "chat"] = "responses"
    """responses, or chat completions."""
    profile: OpenAIProfileSection = OpenAIProfileSection()
    model_profiles: dict[str, OpenAIProfileSection] = Field(default_factory=dict)
    """Profiles of single models, used instead of `profile`."""


class OpenRouterProfileSection(ProfileSection):
    """A model by way of OpenRouter."""

    thinking_tags: tuple[str, str] | None = None
    reasoning_tokens: Annotated[Count, Field(ge=1)] | None = None
    """Of reasoning where `reasoning_effort` says nothing."""


class OpenRouterSection(HttpSection):
    """OpenRouter."""

    type: Literal["openrouter"]
    base_url: BaseUrl = "https://openrouter.ai/api/v1"
    """Address of the API, up to and including /v1."""
    routing: dict[str, Any] = Field(default_factory=dict)
    """OpenRouter's `provider` object: order, only, ignore, allow_fallbacks, data_collection, sort, max_price, ..."""
    profile: OpenRouterProfileSection = OpenRouterProfileSection()
    model_profiles: dict[str, OpenRouterProfileSection] = Field(default_factory=dict)
    """Profiles of single models, used instead of `profile`."""


class OllamaProfileSection(ServiceProfileSection):
    """A model of an Ollama server."""

    num_ctx: Annotated[Count, Field(ge=1)] | None = None
    """Tokens of the window to load the model with; the server's own default cuts long conversations silently."""
    think: Literal["default", "switch", "levels", "off"] = "default"
    """What its thinking can be told: nothing, yes or no, an effort; off switches it off."""
    keep_alive: str | None = None
    """How long the model stays loaded: 10m, or -1 for ever."""
    recover_calls: bool = True
    """Take a call that the model writes as text as a call."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further model options: seed, top_k, ..."""


class OllamaSection(HttpSection):
    """An Ollama server."""

    type: Literal["ollama"]
    base_url: BaseUrl = "http://127.0.0.1:11434"
    """Address of the server, without /api."""
    profile: OllamaProfileSection = OllamaProfileSection()
    model_profiles: dict[str, OllamaProfileSection] = Field(default_factory=dict)
    """Profiles of single models, used instead of `profile`."""


class GeminiProfileSection(ServiceProfileSection):
    """A model of Google's Gemini API."""

    thinking: Literal["off", "budget", "level"] = "off"
    """budget for models with a thinking budget, level for those with levels."""
    thinking_budget: Annotated[int, Field(ge=-1, le=1_000_000)] = -1
    """Tokens of thinking where `reasoning_effort` says nothing; -1 leaves it to the model."""
    placeholder_signatures: bool = True
    """Marks calls that another model made, which newer models refuse without a signature."""


class GeminiSection(HttpSection):
    """Google's Gemini API, or a service that speaks it."""

    type: Literal["gemini"]
    base_url: BaseUrl = "https://generativelanguage.googleapis.com/v1beta"
    """Address of the API, up to and including the version."""
    profile: GeminiProfileSection = GeminiProfileSection()
    model_profiles: dict[str, GeminiProfileSection] = Field(default_factory=dict)
    """Profiles of single models, used instead of `profile`."""


class MistralProfileSection(ServiceProfileSection):
    """A model of Mistral's chat completions."""

    return_thinking: bool = True
    """Whether the model gets its thinking back."""


class MistralSection(HttpSection):
    """Mistral's chat completions, or a service that speaks their dialect."""

    type: Literal["mistral"]
    base_url: BaseUrl = "https://api.mistral.ai/v1"
    """Address of the API, up to and including /v1."""
    profile: MistralProfileSection = MistralProfileSection()
    model_profiles: dict[str, MistralProfileSection] = Field(default_factory=dict)
    """Profiles of single models, used instead of `profile`."""


class ScriptedSection(Section):
    """Answers from a script; no network. Without a script: the built-in demonstration."""

    type: Literal["scripted"]
    script: Path | None = None
    """Script used for turns that bring none."""
    model: str = DEMO_MODEL
    """Model of agents that name none."""


class RecordedSection(Section):
    """Answers from a cassette file."""

    type: Literal["recorded"]
    cassette: Path
    source: str | None = None
    """Name of the provider that is recorded."""
    mode: CassetteMode = CassetteMode.REPLAY
    """replay never calls the source, record always does, auto records what is missing."""
    model: str | None = None
    """Model of agents that name none."""


ProviderSection = Annotated[
    OpenAICompatibleSection
    | AnthropicSection
    | GeminiSection
    | MistralSection
    | OpenAISection
    | OpenRouterSection
    | OllamaSection
    | ScriptedSection
    | RecordedSection,
    Field(discriminator="type"),
]
