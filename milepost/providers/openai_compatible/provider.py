"""One configured endpoint: streams a call, checks health."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, Protocol, cast

from openai import AsyncOpenAI
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModelSettings
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider as LibraryProvider
from pydantic_ai.tools import ToolDefinition as LibraryTool

from milepost.domain.errors import MilepostError, ModelIncomplete, ModelRequestRejected, ModelTimedOut
from milepost.domain.messages import ResponseFormat
from milepost.domain.providers import EndpointProfile, OpenAICompatibleProvider, ProviderConfig
from milepost.domain.tools import ToolDefinition
from milepost.domain.usage import Usage
from milepost.ports.models import ModelHealth, ModelInfo, ModelItem, ModelRequest
from milepost.ports.secrets import SecretStore
from milepost.providers import health
from milepost.providers.deadlines import CallClock
from milepost.providers.failures import model_error
from milepost.providers.hiding import HiddenDeltas, hidden
from milepost.providers.http import EndpointTransport, http_client, http_timeout, key_headers
from milepost.providers.openai_compatible.answer import completed
from milepost.providers.openai_compatible.messages import library_messages
from milepost.providers.openai_compatible.model import ChatModel, ChatStream, library_profile
from milepost.providers.openai_compatible.usage import last_usage
from milepost.providers.provider import EndpointConfig, Providers
from milepost.providers.settings import json_output, offered_tools, supported, without_images


def create(config: ProviderConfig, secrets: SecretStore, providers: Providers) -> Endpoint:
    """The adapter for `config`."""
    assert isinstance(config, OpenAICompatibleProvider)  # noqa: S101 - the gateway dispatches by type
    return Endpoint(config, secrets)


class ChatConfig(EndpointConfig, Protocol):
    """The configuration of an endpoint that speaks chat completions."""

    def profile_of(self, model: str) -> EndpointProfile:
        """The model's own profile, else the endpoint's."""


class Endpoint:
    """An OpenAI-compatible endpoint. Connections are kept between calls; credentials are resolved for each call.

    Services that add to the protocol override `settings`, `usage` and `model_ids`.
    """

    def __init__(self, config: ChatConfig, secrets: SecretStore) -> None:
        self._config = config
        self._transport = EndpointTransport(config, secrets)
        self._http = http_client(config, self._transport)
        # The placeholder never leaves: the transport sets the headers.
        sdk = AsyncOpenAI(
            base_url=config.base_url,
            api_key="unset",
            http_client=self._http,
            timeout=http_timeout(config),
            max_retries=0,
        )
        self._library = LibraryProvider(
            config.name, openai_client=sdk, profile=lambda name: library_profile(config.profile_of(name))
        )

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelItem, None]:
        config = self._config
        self._transport.refresh()
        profile = config.profile_of(request.model)
        diagnostics: list[str] = []
        conversation = request.messages if profile.supports_images else without_images(request.messages, diagnostics)
        messages = library_messages(
            conversation, request.system_prompt, profile.system_role, config.name, request.model
        )
        if not messages:
            raise ModelRequestRejected("There is no message to send.", field="messages")
        parameters = _parameters(request.tools, profile, diagnostics)
        settings = cast(OpenAIChatModelSettings, self.settings(request, diagnostics))
        settings["extra_headers"] = key_headers(config, request.idempotency_key)
        model = ChatModel(request.model, self._library, profile)
        clock = CallClock(config)
        redact = self._transport.redact
        shown = HiddenDeltas(redact)
        stream: ChatStream | None = None
        try:
            async with AsyncExitStack() as stack:
                stream = await _open(stack, model, messages, settings, parameters, clock)
                stream.begin(request.idempotency_key, config.limits.events, clock.finishing, clock.resuming)
                async with aclosing(stream.deltas()) as deltas:
                    while True:
                        async with clock.waiting():
                            delta = await anext(deltas, None)
                        if delta is None:
                            break
                        for piece in shown.feed(delta):
                            yield piece
        except Exception as error:
            for piece in shown.end():
                yield piece
            passed = clock.error if isinstance(error, TimeoutError) else None
            failure = passed or model_error(error, config, redact, begun=stream is not None)
            # A cut after the finish reason costs the usage, not the answer.
            ended = stream is not None and stream.raw_finish is not None and not stream.resumed
            if stream is None or not ended or not isinstance(failure, ModelIncomplete | ModelTimedOut):
                # Without a cause: the library's errors hold bodies and headers.
                raise failure from None
            diagnostics.append("The connection ended after the finish reason; usage may be missing.")
        for piece in shown.end():
            yield piece
        diagnostics += model.diagnostics
        yield hidden(completed(request, profile, stream, self.usage, diagnostics, redact), redact)

    def settings(self, request: ModelRequest, notes: list[str]) -> dict[str, Any]:
        """The library's settings for a request; what the endpoint does not take is noted."""
        profile = self._config.profile_of(request.model)
        return body_settings(supported(request.sampling, profile.unsupported, notes), request, profile, {}, notes)

    def usage(self, reports: Sequence[Mapping[str, Any]]) -> Usage:
        """What the reports of one answer say."""
        return last_usage(list(reports))

    def model_ids(self, listed: Any) -> Sequence[str | ModelInfo]:
        """The models of a list."""
        return health.listed_ids(listed)

    async def check(self, model: str = "") -> ModelHealth:
        try:
            self._transport.refresh()
        except MilepostError as error:
            return ModelHealth(self._config.name, False, error.message, error.fix)
        return await health.check(self._config, self._http, self._transport.redact, model=model, ids=self.model_ids)

    async def models(self) -> list[ModelInfo] | None:
        self._transport.refresh()
        return await health.models(self._config, self._http, self._transport.redact, ids=self.model_ids)

    async def close(self) -> None:
        await self._http.aclose()


async def _open(
    stack: AsyncExitStack,
    model: ChatModel,
    messages: list[ModelMessage],
    settings: OpenAIChatModelSettings,
    parameters: ModelRequestParameters,
    clock: CallClock,
) -> ChatStream:
    async with clock.opening():
        stream = await stack.enter_async_context(model.request_stream(messages, settings, parameters))
    if not isinstance(stream, ChatStream):
        raise TypeError(f"unexpected stream {type(stream).__name__}")
    return stream


def _parameters(
    tools: tuple[ToolDefinition, ...], profile: EndpointProfile, diagnostics: list[str]
) -> ModelRequestParameters:
    tools = offered_tools(tools, profile.supports_tools, diagnostics)
    return ModelRequestParameters(
        function_tools=[
            LibraryTool(name=tool.name, description=tool.description, parameters_json_schema=tool.parameters)
            for tool in tools
        ]
    )


_LIBRARY_NAMES = {"reasoning_effort": "openai_reasoning_effort", "stop": "stop_sequences"}


def body_settings(
    chosen: Mapping[str, Any],
    request: ModelRequest,
    profile: EndpointProfile,
    body: Mapping[str, Any],
    notes: list[str],
) -> dict[str, Any]:
    """The library's settings from chosen sampling settings and further fields of the request's body."""
    settings: dict[str, Any] = {_LIBRARY_NAMES.get(name, name): value for name, value in chosen.items()}
    fields = {**body, **profile.extra_body}
    if profile.prompt_cache_key and request.cache_key:
        fields.setdefault("prompt_cache_key", request.cache_key)
    wanted = json_output(request.sampling, profile, notes)
    if wanted is not None:
        fields["response_format"] = _response_format(wanted)
    return {**settings, "extra_body": fields} if fields else settings


def _response_format(wanted: ResponseFormat) -> dict[str, object]:
    if wanted.json_schema is None:
        return {"type": "json_object"}
    schema = {"name": wanted.name, "schema": wanted.json_schema, "strict": wanted.strict}
    return {"type": "json_schema", "json_schema": schema}
