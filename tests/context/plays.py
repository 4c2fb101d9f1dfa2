"""Sessions driven step by step with a model that is a function of the request, and a small window."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from milepost.domain.agents import AgentConfig
from milepost.domain.compaction import ContextPolicy
from milepost.domain.content import Content
from milepost.domain.events import ContextCompacted, Event, ModelCalled
from milepost.domain.memory import MemorySettings
from milepost.domain.messages import (
    AssistantMessage,
    AssistantPart,
    FinishReason,
    Message,
    TextPart,
    ToolCallPart,
)
from milepost.domain.providers import Route
from milepost.domain.usage import Usage
from milepost.engine.tokens import request_items, total
from milepost.ledger.codec import decode_event, to_json
from milepost.ports.models import SUMMARY, ModelCompleted, ModelGateway, ModelHealth, ModelItem, ModelRequest, TextDelta
from milepost.ports.tools import CustomTools
from milepost.services.memory_stores import MemoryStores
from milepost.storage import open_ledger, open_notifier
from tests.support.driven import AGENT, Driver

WINDOW = 8_000

Call = tuple[str, dict[str, object]]
Answer = tuple[str, list[Call]]


def sent_text(messages: tuple[Message, ...]) -> str:
    return json.dumps([to_json(message) for message in messages], ensure_ascii=False)


@dataclass
class Model:
    """Answers by `answer(request)`, summarizes by `summarize(request)`. `requests` are all that came, in order.

    `before(request)` runs first and may raise.
    """

    answer: Callable[[ModelRequest], Answer]
    summarize: Callable[[ModelRequest], str] = lambda _: "Files were looked at."
    before: Callable[[ModelRequest], None] = lambda _: None
    waits: Callable[[ModelRequest], Awaitable[None]] | None = None
    requests: list[ModelRequest] = field(default_factory=list)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelItem, None]:
        self.requests.append(request)
        self.before(request)
        if self.waits is not None:
            await self.waits(request)
        parts: list[AssistantPart] = []
        if request.purpose == SUMMARY:
            text, calls = self.summarize(request), []
        else:
            text, calls = self.answer(request)
        if text:
            yield TextDelta(text)
            parts.append(TextPart(text))
        for index, (tool, arguments) in enumerate(calls):
            call_id = f"call_{request.idempotency_key[:12]}_{index}"
            parts.append(ToolCallPart(call_id, tool, Content(json.dumps(arguments))))
        items = request_items(request.system_prompt, request.messages, request.tools)
        finish = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        usage = Usage(total(items), 0, max(1, len(text) // 4), 0)
        yield ModelCompleted(AssistantMessage(tuple(parts)), finish, usage, request.provider, request.model)

    async def check(self, provider: str, model: str = "") -> ModelHealth:
        return ModelHealth(provider, True, "a function")

    def validate(self, provider: str, model: str, script: str | None = None) -> None:
        return

    async def close(self) -> None:
        await asyncio.sleep(0)

    @property
    def answers(self) -> list[ModelRequest]:
        return [request for request in self.requests if request.purpose != SUMMARY]

    @property
    def summaries(self) -> list[ModelRequest]:
        return [request for request in self.requests if request.purpose == SUMMARY]


@asynccontextmanager
async def driven(
    url: str,
    folder: Path,
    gateway: ModelGateway,
    *,
    model: str = "instant",
    fallbacks: tuple[str, ...] = (),
    window: int = WINDOW,
    size: int = 2_000,
    policy: ContextPolicy | None = None,
    tools: CustomTools | None = None,
    memory: MemoryStores | None = None,
    recall: int = 0,
) -> AsyncIterator[Driver]:
    notifier = await open_notifier(url)
    ledger = await open_ledger(url, notifier)
    agent = AgentConfig(
        AGENT,
        "instant",
        model,
        fallbacks=tuple(Route(name, model) for name in fallbacks),
        context=policy or ContextPolicy(window=window),
        memory=MemorySettings(recall=recall) if memory else None,
    )
    try:
        yield Driver(
            ledger, notifier, folder, lambda: size, agent=agent, gateway=gateway, custom_tools=tools, memory=memory
        )
    finally:
        await ledger.close()
        await notifier.close()


async def events_of(driver: Driver, session: str) -> list[Event]:
    stored = await driver.ledger.read(lambda tx: tx.events.read(session, limit=10_000))
    return [decode_event(item.type, item.version, item.payload) for item in stored]


async def compactions(driver: Driver, session: str) -> list[ContextCompacted]:
    return [event for event in await events_of(driver, session) if isinstance(event, ContextCompacted)]


async def running(driver: Driver, session: str) -> tuple[str, int]:
    """The running turn and the round that its model has not answered."""
    view = await driver.turns.active(session)
    assert view is not None
    turn_id = view.turn.turn_id
    answered = [e for e in await events_of(driver, session) if isinstance(e, ModelCalled) and e.turn_id == turn_id]
    return turn_id, len(answered) + 1


def prefix_breaks(requests: list[ModelRequest]) -> int:
    """How often a request does not begin with the bytes of the one before it: head by hash, messages one by one."""
    heads = {
        hashlib.sha256(
            json.dumps(to_json(replace(request, messages=(), call_number=0, idempotency_key=""))).encode()
        ).hexdigest()
        for request in requests
    }
    assert len(heads) == 1, "what stands before the conversation is the same in all requests"
    breaks = 0
    for before, after in itertools.pairwise(requests):
        old, new = sent_text(before.messages).removesuffix("]"), sent_text(after.messages)
        breaks += not new.startswith(old)
    return breaks
