"""The model gateway port: one streamed call to one provider."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Protocol

from milepost.domain.messages import AssistantMessage, FinishReason, Message, Sampling
from milepost.domain.tools import ToolDefinition
from milepost.domain.usage import Usage

ANSWER = "answer"
SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One call. `messages` hold whole texts (no previews).

    `call_number` counts the agent's model calls of this turn from 1 and `attempt` the tries of this call; `script` is
    the scripted provider's YAML. Real providers ignore the three.
    `purpose` is what the call is for: `ANSWER` (the agent's own) or `SUMMARY`; it is for the scripted provider too.
    `cache_key` is the same for all calls of an agent in a Session and no other; a provider that takes one finds the
    prompt cache by it.
    """

    provider: str
    model: str
    agent: str
    system_prompt: str
    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...]
    sampling: Sampling
    call_number: int
    attempt: int
    idempotency_key: str
    script: str | None = None
    cache_key: str = ""
    purpose: str = ANSWER


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ModelCompleted:
    """The last item of a whole answer. `diagnostics` are facts to record (an unsupported setting, a repair)."""

    message: AssistantMessage
    finish: FinishReason
    usage: Usage
    provider: str
    model: str
    diagnostics: tuple[str, ...] = ()


ModelItem = TextDelta | ReasoningDelta | ModelCompleted


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model that a provider lists, with what the provider says of it.

    `context_tokens` is the size of its window, None where it is not said. `abilities` are some of `tools`, `images`,
    `reasoning`, `json`; empty where nothing is said.
    """

    model_id: str
    context_tokens: int | None = None
    abilities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelHealth:
    """Whether a route can be used; `detail` is for people and names no secret."""

    provider: str
    ok: bool
    detail: str
    fix: str | None = None


class ModelGateway(Protocol):
    """Every configured provider behind one call."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelItem, None]:
        """Deltas, then exactly one `ModelCompleted`.

        Closing the iterator (`aclose`) or cancelling the consuming task closes the provider connection at once.
        Never retries by itself.

        Raises:
            ModelError: a subclass by class of failure; retryable ones say so, with `retry_after` in seconds.
            ProviderUnknown: no provider of that name is configured.
            SecretMissing: the provider's key reference does not resolve.
        """

    async def check(self, provider: str, model: str = "") -> ModelHealth:
        """Whether the provider can be used now, for this model or its default one; one short request, no model call.

        Raises ProviderUnknown.
        """

    async def models(self, provider: str) -> list[ModelInfo] | None:
        """The models that the provider lists, bounded in number, size and time; None if it has no list.

        Raises ProviderUnknown, SecretMissing, ModelError.
        """

    def known(self, provider: str) -> str:
        """The name, if a provider of that name is configured. Raises ProviderUnknown, naming the nearest one."""

    def validate(self, provider: str, model: str, script: str | None = None) -> None:
        """Raise ProviderUnknown, SecretMissing or InvalidInput if no call could ever be made; no network.

        `script` is the turn's; a malformed one is refused with its line.
        """

    async def close(self) -> None: ...


class TokenCounters(Protocol):
    """Exact token counts, for models whose vocabulary is configured."""

    async def of(self, provider: str, model: str) -> Callable[[str], float] | None:
        """Counts the tokens of a text; None where the vocabulary is not known and an estimate has to do."""


class NoTokenCounters:
    """`TokenCounters` without any vocabulary."""

    async def of(self, provider: str, model: str) -> Callable[[str], float] | None:
        return None
