"""How a model provider is configured. Values only: the adapters behind them are loaded where models are called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal


class SystemRole(StrEnum):
    """The role under which an endpoint expects the system prompt."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"


class ThinkingReturn(StrEnum):
    """How reasoning of earlier answers goes back to the model that wrote it.

    `auto`: in the field it came in, or in the tags it came in; `tags`, `field`: always so; `never`: it is dropped.
    """

    AUTO = "auto"
    TAGS = "tags"
    FIELD = "field"
    NEVER = "never"


SAMPLING_SETTINGS = frozenset({"temperature", "top_p", "max_tokens", "reasoning_effort", "stop"})


@dataclass(frozen=True, slots=True)
class Route:
    """A provider and one of its models; an empty model is the provider's default."""

    provider: str
    model: str = ""


@dataclass(frozen=True, slots=True)
class EndpointProfile:
    """What an OpenAI-compatible endpoint can and cannot do. Never guessed from a model's name.

    Attributes:
        system_role: role of the system prompt.
        max_tokens_field: the request field for `Sampling.max_tokens`; OpenAI's own reasoning models want
            `max_completion_tokens`, most other servers know `max_tokens`.
        unsupported: names of sampling settings the endpoint refuses; they are left out and recorded.
        supports_tools: False leaves tools out of the request, which is recorded.
        supports_images: False leaves images out of the request, which is recorded and told to the model.
        json_output: how `Sampling.response_format` goes out: with its `schema`, as any `object` (the schema is left
            out, which is recorded), or not at all (`none`, recorded).
        stream_usage: False leaves out `stream_options.include_usage` for servers that refuse it; usage is then unknown.
        thinking_field: delta field of reasoning text; None looks at `reasoning` and `reasoning_content`.
        thinking_tags: tags around reasoning inside the text (each must be a chunk of its own); None takes text as text.
        thinking_return: how reasoning goes back.
        prompt_cache_key: True sends `prompt_cache_key`, one for each agent of a Session, by which its requests find
            their cached prefix; for endpoints that know the field.
        extra_body: further top-level request fields, sent as they are.
    """

    system_role: SystemRole = SystemRole.SYSTEM
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    unsupported: frozenset[str] = frozenset()
    supports_tools: bool = True
    supports_images: bool = True
    json_output: Literal["schema", "object", "none"] = "schema"
    stream_usage: bool = True
    thinking_field: str | None = None
    thinking_tags: tuple[str, str] | None = ("<think>", "</think>")
    thinking_return: ThinkingReturn = ThinkingReturn.AUTO
    prompt_cache_key: bool = False
    extra_body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelTimeouts:
    """Seconds. `first_event` counts from the start of the call, `idle` between two chunks, `total` over the call."""

    connect: float = 10.0
    first_event: float = 300.0
    idle: float = 120.0
    total: float = 1500.0


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Bounds of one call: bytes of the request, of the answer, of one streamed event, and events."""

    request_bytes: int = 32 * 1024 * 1024
    response_bytes: int = 64 * 1024 * 1024
    event_bytes: int = 8 * 1024 * 1024
    events: int = 500_000


@dataclass(frozen=True, slots=True)
class ScriptedProvider:
    """Answers from a script; no network. `script` is YAML text used when a request brings none; None: the demo."""

    name: str
    default_model: str = "script"
    script: str | None = None
    type: Literal["scripted"] = "scripted"


@dataclass(frozen=True, slots=True)
class HttpProvider:
    """What every provider behind an HTTP address has in common.

    `api_key` and the values of `secret_headers` are secret references (`env:NAME`, `file:PATH`); the values of
    `headers` are sent as they are. No `api_key` means that none is sent. `fallbacks` are tried in order when a call of
    this provider fails, by agents that have none of their own. `idempotency_header` names the header in which an
    endpoint takes the key of a call, the same at each try.
    `context_tokens` holds context windows by model; keys are patterns, the first that matches counts.
    `tokenizers` names the vocabulary of models in the same way.
    """

    name: str
    base_url: str
    default_model: str | None = None
    api_key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    secret_headers: Mapping[str, str] = field(default_factory=dict)
    timeouts: ModelTimeouts = ModelTimeouts()
    limits: ModelLimits = ModelLimits()
    fallbacks: tuple[Route, ...] = ()
    idempotency_header: str | None = None
    context_tokens: Mapping[str, int] = field(default_factory=dict)
    tokenizers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenAICompatibleProvider(HttpProvider):
    """An endpoint that speaks OpenAI's chat completions."""

    profile: EndpointProfile = EndpointProfile()
    model_profiles: Mapping[str, EndpointProfile] = field(default_factory=dict)
    type: Literal["openai_compatible"] = "openai_compatible"

    def profile_of(self, model: str) -> EndpointProfile:
        """The model's own profile, else the endpoint's."""
        return self.model_profiles.get(model, self.profile)


@dataclass(frozen=True, slots=True)
class ServiceProfile:
    """What every service with a wire format of its own can be told about one of its models.

    Attributes:
        unsupported: names of sampling settings the model refuses; they are left out and recorded.
        supports_tools: False leaves tools out of the request, which is recorded.
        supports_images: False leaves images out of the request, which is recorded and told to the model.
        json_output: how `Sampling.response_format` goes out: with its `schema`, as any `object`, or not at all.
        extra_body: further top-level request fields, sent as they are.
    """

    unsupported: frozenset[str] = frozenset()
    supports_tools: bool = True
    supports_images: bool = True
    json_output: Literal["schema", "object", "none"] = "schema"
    extra_body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AnthropicProfile(ServiceProfile):
    """A model of Anthropic's messages API.

    Attributes:
        max_tokens: of one answer where sampling says nothing; the API wants a number.
        thinking: `budget` for models with a thinking budget, `adaptive` for those that take an effort instead.
        thinking_budget: tokens of thinking where `reasoning_effort` says nothing; for `budget` only.
        prompt_cache: how long the service keeps what a request has in common with the next one.
    """

    max_tokens: int = 8192
    thinking: Literal["off", "budget", "adaptive"] = "off"
    thinking_budget: int = 4096
    prompt_cache: Literal["off", "5m", "1h"] = "5m"


@dataclass(frozen=True, slots=True)
class AnthropicProvider(HttpProvider):
    """Anthropic's messages API, or a service that speaks it."""

    profile: AnthropicProfile = AnthropicProfile()
    model_profiles: Mapping[str, AnthropicProfile] = field(default_factory=dict)
    type: Literal["anthropic"] = "anthropic"

    def profile_of(self, model: str) -> AnthropicProfile:
        """The model's own profile, else the provider's."""
        return self.model_profiles.get(model, self.profile)


@dataclass(frozen=True, slots=True)
class OpenAIProfile(EndpointProfile):
    """A model of OpenAI's own API.

    Attributes:
        reasoning: whether the model reasons; its reasoning is then asked for encrypted, and given back (responses).
        reasoning_summary: how much of its reasoning is shown (responses).
    """

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_completion_tokens"
    thinking_tags: tuple[str, str] | None = None
    prompt_cache_key: bool = True
    reasoning: bool = True
    reasoning_summary: Literal["off", "auto", "concise", "detailed"] = "off"


@dataclass(frozen=True, slots=True)
class OpenAIProvider(HttpProvider):
    """OpenAI's own API, by `responses` or by `chat` completions."""

    api: Literal["responses", "chat"] = "responses"
    profile: OpenAIProfile = OpenAIProfile()
    model_profiles: Mapping[str, OpenAIProfile] = field(default_factory=dict)
    type: Literal["openai"] = "openai"

    def profile_of(self, model: str) -> OpenAIProfile:
        """The model's own profile, else the provider's."""
        return self.model_profiles.get(model, self.profile)


@dataclass(frozen=True, slots=True)
class OpenRouterProfile(EndpointProfile):
    """A model by way of OpenRouter.

    Attributes:
        reasoning_tokens: of reasoning where `reasoning_effort` says nothing; None leaves it to the model.
    """

    thinking_tags: tuple[str, str] | None = None
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class OpenRouterProvider(HttpProvider):
    """OpenRouter. `routing` is its `provider` object: which services may answer, in which order, at which price."""

    routing: Mapping[str, Any] = field(default_factory=dict)
    profile: OpenRouterProfile = OpenRouterProfile()
    model_profiles: Mapping[str, OpenRouterProfile] = field(default_factory=dict)
    type: Literal["openrouter"] = "openrouter"

    def profile_of(self, model: str) -> OpenRouterProfile:
        """The model's own profile, else the provider's."""
        return self.model_profiles.get(model, self.profile)


@dataclass(frozen=True, slots=True)
class OllamaProfile(ServiceProfile):
    """A model of an Ollama server.

    Attributes:
        num_ctx: tokens of the window to load the model with; None leaves it to the server, which cuts longer
            conversations without a word.
        think: what the model's thinking can be told: nothing (`default`), yes or no (`switch`), an effort (`levels`);
            `off` switches it off.
        keep_alive: how long the model stays loaded (`10m`, `-1`); None leaves it to the server.
        recover_calls: whether a call that the model writes as text is taken as a call.
        options: further model options, such as `seed`, `top_k`.
    """

    num_ctx: int | None = None
    think: Literal["default", "switch", "levels", "off"] = "default"
    keep_alive: str | None = None
    recover_calls: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OllamaProvider(HttpProvider):
    """An Ollama server."""

    profile: OllamaProfile = OllamaProfile()
    model_profiles: Mapping[str, OllamaProfile] = field(default_factory=dict)
    type: Literal["ollama"] = "ollama"

    def profile_of(self, model: str) -> OllamaProfile:
        """The model's own profile, else the provider's."""
        return self.model_profiles.get(model, self.profile)


@dataclass(frozen=True, slots=True)
class GeminiProfile(ServiceProfile):
    """A model of Google's Gemini API.

    Attributes:
        thinking: `budget` for models with a thinking budget, `level` for those with levels; `off` says nothing of it.
        thinking_budget: tokens of thinking where `reasoning_effort` says nothing; -1 leaves it to the model.
        placeholder_signatures: marks calls that another model made, since newer models refuse calls without a
            signature in the turn they are in.
    """

    thinking: Literal["off", "budget", "level"] = "off"
    thinking_budget: int = -1
    placeholder_signatures: bool = True


@dataclass(frozen=True, slots=True)
class GeminiProvider(HttpProvider):
    """Google's Gemini API (`generateContent`), or a service that speaks it."""

    profile: GeminiProfile = GeminiProfile()
    model_profiles: Mapping[str, GeminiProfile] = field(default_factory=dict)
    type: Literal["gemini"] = "gemini"

    def profile_of(self, model: str) -> GeminiProfile:
        """The model's own profile, else the provider's."""
        return self.model_profiles.get(model, self.profile)


@dataclass(frozen=True, slots=True)
class MistralProfile(ServiceProfile):
    """A model of Mistral's chat completions.

    Attributes:
        return_thinking: whether the model gets its thinking back.
    """

    return_thinking: bool = True


@dataclass(frozen=True, slots=True)
class MistralProvider(HttpProvider):
    """Mistral's chat completions, or a service that speaks their dialect."""

    profile: MistralProfile = MistralProfile()
    model_profiles: Mapping[str, MistralProfile] = field(default_factory=dict)
    type: Literal["mistral"] = "mistral"

    def profile_of(self, model: str) -> MistralProfile:
        """The model's own profile, else the provider's."""
        return self.model_profiles.get(model, self.profile)


class CassetteMode(StrEnum):
    """`replay` never calls the recorded provider; `record` always does and writes; `auto` records what is missing."""

    REPLAY = "replay"
    RECORD = "record"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class RecordedProvider:
    """Answers from a cassette file; `source` names the configured provider that is recorded."""

    name: str
    cassette: str
    source: str | None = None
    mode: CassetteMode = CassetteMode.REPLAY
    default_model: str | None = None
    type: Literal["recorded"] = "recorded"


ProviderConfig = (
    ScriptedProvider
    | OpenAICompatibleProvider
    | AnthropicProvider
    | GeminiProvider
    | MistralProvider
    | OpenAIProvider
    | OpenRouterProvider
    | OllamaProvider
    | RecordedProvider
)
