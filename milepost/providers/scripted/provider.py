"""Plays a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence

from milepost.domain.content import Content
from milepost.domain.errors import MilepostError, ModelIncomplete
from milepost.domain.messages import (
    AssistantMessage,
    AssistantPart,
    FinishReason,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
)
from milepost.domain.providers import ProviderConfig, ScriptedProvider
from milepost.domain.usage import Usage
from milepost.ports.models import (
    SUMMARY,
    ModelCompleted,
    ModelHealth,
    ModelInfo,
    ModelItem,
    ModelRequest,
    ReasoningDelta,
    TextDelta,
)
from milepost.ports.secrets import SecretStore
from milepost.providers.call_ids import generated_call_id
from milepost.providers.faults import status_error
from milepost.providers.pieces import pieces
from milepost.providers.provider import Providers
from milepost.providers.scripted.demo import demo_script
from milepost.providers.scripted.script import CutKind, Response, Script, parse_script

BYTES_PER_TOKEN = 4
"""The stated rule where a script gives no usage: one token per four bytes of UTF-8, rounded up."""
DEFAULT_SUMMARY = "(A script does not summarize.)"
SUMMARY_CHARACTERS = 200


def create(config: ProviderConfig, secrets: SecretStore, providers: Providers) -> ScriptPlayer:
    """The adapter for `config`."""
    assert isinstance(config, ScriptedProvider)  # noqa: S101 - the gateway dispatches by type
    return ScriptPlayer(config)


class ScriptPlayer:
    """Answers the n-th model call of an agent in a turn with the n-th response of its script.

    What it does depends on the request alone (script, call number, attempt), so it is the same after a crash.
    """

    def __init__(self, config: ScriptedProvider) -> None:
        self._config = config

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelItem, None]:
        script = await self._script(request)
        if request.purpose == SUMMARY:
            response = script.summary(request.call_number) or _own_summary(request)
        else:
            response = script.response(request.agent, request.call_number)
        fail = response.fail
        if fail is not None and request.attempt <= fail.times:
            said = f"scripted failure of attempt {request.attempt} (script line {response.line})"
            raise status_error(request.provider, fail.status, said, retry_after=fail.retry_after)
        deltas = _deltas(response)
        cut = response.cut
        disconnects = cut is not None and cut.kind is CutKind.DISCONNECT and request.attempt <= cut.times
        if disconnects:
            deltas = deltas[: (len(deltas) + 1) // 2]
        for index, delta in enumerate(deltas):
            if index:
                await asyncio.sleep(response.delay)
            yield delta
        await asyncio.sleep(response.delay)
        if disconnects:
            raise ModelIncomplete(
                f"The connection to provider '{request.provider}' broke off in mid-answer "
                f"(scripted, attempt {request.attempt}, script line {response.line})."
            )
        yield _completed(request, response)

    async def check(self, model: str = "") -> ModelHealth:
        try:
            if self._config.script is not None:
                await asyncio.to_thread(parse_script, self._config.script)
        except MilepostError as error:
            return ModelHealth(self._config.name, False, error.message, error.fix)
        which = "its own script" if self._config.script is not None else "the built-in demonstration"
        return ModelHealth(self._config.name, True, f"Plays the turn's script, else {which}; calls no model.")

    async def models(self) -> list[ModelInfo] | None:
        """A script names no model."""
        return None

    async def close(self) -> None:
        """Nothing is held."""

    async def _script(self, request: ModelRequest) -> Script:
        text = request.script if request.script is not None else self._config.script
        # In a thread: a large script takes seconds to read (once; it is cached).
        if text is None:
            return await asyncio.to_thread(demo_script, request)
        return await asyncio.to_thread(parse_script, text)


def _own_summary(request: ModelRequest) -> Response:
    """A summary that a script says nothing of: the beginnings of what it is of."""
    text = " ".join(text for text in _texts(request.messages))
    return Response(line=0, text=f"{DEFAULT_SUMMARY} {text[:SUMMARY_CHARACTERS]}")


def _deltas(response: Response) -> list[TextDelta | ReasoningDelta]:
    return [
        *(ReasoningDelta(piece) for piece in pieces(response.reasoning)),
        *(TextDelta(piece) for piece in pieces(response.text)),
    ]


def _completed(request: ModelRequest, response: Response) -> ModelCompleted:
    parts: list[AssistantPart] = []
    if response.reasoning:
        parts.append(ReasoningPart(response.reasoning))
    if response.text:
        parts.append(TextPart(response.text))
    at_limit = response.cut is not None and response.cut.kind is CutKind.LENGTH
    for index, call in enumerate(response.calls):
        arguments = call.arguments
        if at_limit and index == len(response.calls) - 1:
            arguments = arguments[: len(arguments) // 2]
        parts.append(ToolCallPart(generated_call_id(request.idempotency_key, index), call.tool, Content(arguments)))
    finish = FinishReason.TOOL_CALLS if response.calls else FinishReason.STOP
    message = AssistantMessage(tuple(parts))
    return ModelCompleted(
        message=message,
        finish=FinishReason.LENGTH if at_limit else finish,
        usage=response.usage or estimated_usage(request, message),
        provider=request.provider,
        model=request.model,
    )


def estimated_usage(request: ModelRequest, message: AssistantMessage) -> Usage:
    """Counts by the rule of `BYTES_PER_TOKEN`; nothing is cached."""
    tools = json.dumps([[tool.name, tool.description, tool.parameters] for tool in request.tools])
    sent = [request.system_prompt, tools if request.tools else "", *_texts(request.messages)]
    thought = [part.text for part in message.parts if isinstance(part, ReasoningPart)]
    calls = [text for call in message.calls for text in (call.tool, call.arguments.text)]
    return Usage(
        input_tokens=_tokens(sent),
        output_tokens=_tokens([message.text, *calls]),
        reasoning_tokens=_tokens(thought),
    )


def _tokens(texts: Sequence[str]) -> int:
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    return -(-size // BYTES_PER_TOKEN)


def _texts(messages: Sequence[Message]) -> list[str]:
    texts: list[str] = []
    for message in messages:
        if isinstance(message, AssistantMessage):
            texts.append(message.text)
            texts.extend(text for call in message.calls for text in (call.tool, call.arguments.text))
        else:
            texts.append(message.text.text)
    return texts
