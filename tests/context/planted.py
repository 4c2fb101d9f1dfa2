"""A long scripted Session with planted facts, some of which the scripted summarizer drops.

The agent is a function of its requests alone: asked for a fact, it answers from what it was sent, else it looks for it
with its tools and answers from what they say. Nothing tells it what was planted.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from milepost.domain.events import AgentOutput, ContextCompacted, ToolFinished
from milepost.domain.messages import AssistantMessage, Message
from milepost.embedders.lexical import LexicalHash
from milepost.engine.tokens import request_items, total
from milepost.memory.block_files import FileBlocks
from milepost.memory.daily_files import FileDailyLog
from milepost.memory.semantic import IndexedMemory
from milepost.ports.models import ModelRequest
from milepost.services.memory_stores import MemoryStores
from milepost.storage.semantic_files import FileSemanticStore
from tests.context.plays import Answer, Model, driven, events_of, prefix_breaks, sent_text
from tests.support.driven import log_text

_SAID = re.compile(r"[Tt]he (\w+) code is (\d{6})")
_ASKED = re.compile(r"What is the (\w+) code\?")


@dataclass
class Report:
    """What a Session took. Tokens are estimates of what was sent.

    `uncompacted` is what the same calls would have sent with the whole conversation, `reusable` the part of `sent` that
    stood at the beginning of the request before, which a provider's prompt cache can serve.
    `found` counts the answers by where the agent found the fact: in what it was sent, or with which tool.
    """

    turns: int
    calls: int
    sent: int
    uncompacted: int
    reusable: int
    largest: int
    compactions: int
    summaries: int
    breaks: int
    planted: int
    dropped: int
    asked: int
    found: Counter[str]
    wrong: list[str] = field(default_factory=list)


class Planted:
    """The plan of a Session of so many turns: in which turn which fact is said or printed, and when it is asked for."""

    def __init__(self, turns: int, seed: int = 7) -> None:
        chosen = random.Random(seed)
        self.chosen = chosen
        self.turns = turns
        self.codes: dict[str, str] = {}
        self.printed: dict[int, str] = {}
        self.said: dict[int, str] = {}
        self.asks: dict[int, str] = {}
        every = max(6, turns // 25)
        for number, turn in enumerate(range(3, turns * 2 // 3, every)):
            name = f"fact{number:02}"
            self.codes[name] = f"{chosen.randrange(10**6):06}"
            # Every other pair is said by the person, so that both are among those that the summarizer drops.
            (self.said if number % 4 in (2, 3) else self.printed)[turn] = name
        for number, turn in enumerate(range(turns - len(self.codes), turns)):
            self.asks[turn] = f"fact{number:02}"

    def request(self, turn: int) -> str:
        if turn in self.asks:
            return f"What is the {self.asks[turn]} code?"
        name = self.said.get(turn)
        note = f"Note that the {name} code is {self.codes[name]}. " if name else ""
        return f"{note}Step {turn}: please run the next part and tell me how it went. {log_text(self.chosen, 150)}"

    def output(self, turn: int) -> str:
        """What the turn's command prints: a log, a fact in its middle if one is planted there."""
        before, after = log_text(self.chosen, 1_200), log_text(self.chosen, 1_200)
        name = self.printed.get(turn)
        return f"{before}The {name} code is {self.codes[name]}\n{after}" if name else before + after


class Agent:
    """The scripted model. `found` counts where it found what it was asked for."""

    def __init__(self, keep: Callable[[int], bool]) -> None:
        self.found: Counter[str] = Counter()
        self.dropped: set[str] = set()
        self._keep = keep

    def answer(self, request: ModelRequest) -> Answer:
        asked = _ASKED.search(_request(request.messages))
        if asked is None:
            return self._work(request)
        name = asked[1]
        tools = {tool.name for tool in request.tools}
        known = dict(_SAID.findall(sent_text(request.messages)))
        if name in known:
            self.found[_last_tool(request.messages) or "context"] += 1
            return f"The {name} code is {known[name]}.", []
        tried = _calls(request.messages)
        for tool, arguments in (
            ("search_output", {"query": f"The {name} code"}),
            ("recall_search", {"query": f"{name} code"}),
        ):
            if tool in tools and tool not in tried:
                return "", [(tool, arguments)]
        return f"I do not know the {name} code.", []

    def _work(self, request: ModelRequest) -> Answer:
        if request.call_number == 1:
            return "", [("bash", {"command": "next"})]
        said = _SAID.findall(sent_text(request.messages[-1:]))
        return f"The part went well. {'I noted a code. ' if said else ''}{'All steps passed as expected. ' * 3}", []

    def summarize(self, request: ModelRequest) -> str:
        """A summary with the facts of what it is of, but for those that this summarizer drops."""
        facts = dict(_SAID.findall(sent_text(request.messages)))
        kept = {name: code for name, code in facts.items() if self._keep(int(name[4:]))}
        self.dropped |= facts.keys() - kept.keys()
        lines = [f"The {name} code is {code}" for name, code in sorted(kept.items())]
        return "Steps were run and went well.\n" + "\n".join(lines)


def _request(messages: Sequence[Message]) -> str:
    return next(message.text.text for message in reversed(messages) if message.kind == "user")


def _own(messages: Sequence[Message]) -> list[Message]:
    """What came after the newest request."""
    last = max(index for index, message in enumerate(messages) if message.kind == "user")
    return list(messages[last + 1 :])


def _calls(messages: Sequence[Message]) -> list[str]:
    return [call.tool for message in _own(messages) if isinstance(message, AssistantMessage) for call in message.calls]


def _last_tool(messages: Sequence[Message]) -> str | None:
    calls = _calls(messages)
    return calls[-1] if calls else None


async def play(url: str, folder: Path, turns: int, window: int) -> Report:
    """Play a Session and measure it. Nothing is recalled by itself: what the agent wants to know it has to look for."""
    store = FileSemanticStore(lambda scope: folder / "memory" / "semantic" / "v1" / scope.component)
    memory = MemoryStores(FileBlocks(folder), FileDailyLog(folder), IndexedMemory(store, LexicalHash()))
    plan, agent = Planted(turns), Agent(lambda number: number % 2 == 0)
    model = Model(agent.answer, agent.summarize)
    async with driven(url, folder, model, window=window, memory=memory) as driver:
        session = await driver.open()
        for turn in range(turns):
            driver.sandbox.says = lambda turn=turn: plan.output(turn)  # type: ignore[misc]
            await driver.play(session, plan.request(turn))
        events = await events_of(driver, session)
    outputs = [event.text.text for event in events if isinstance(event, AgentOutput)]
    wrong = [
        f"turn {turn}: {outputs[turn]}"
        for turn, name in plan.asks.items()
        if outputs[turn] != f"The {name} code is {plan.codes[name]}."
    ]
    results = [event for event in events if isinstance(event, ToolFinished)]
    assert all(plan.codes[name] in sent_text_of(results) for name in plan.printed.values()), "the ledger has all"
    compactions = [event for event in events if isinstance(event, ContextCompacted)]
    return _report(plan, agent, model, compactions, wrong)


def sent_text_of(results: list[ToolFinished]) -> str:
    return "\n".join(event.output.text for event in results)


def _report(plan: Planted, agent: Agent, model: Model, compactions: list[ContextCompacted], wrong: list[str]) -> Report:
    sizes = [_size(request) for request in model.answers]
    whole, uncompacted, reusable = 0, 0, 0
    before: ModelRequest | None = None
    seen = 0
    for request, size in zip(model.answers, sizes, strict=True):
        common = 0 if before is None else _common(before.messages, request.messages)
        fixed = size - _tokens(request.messages)
        # What is new in this request is what the whole conversation would have grown by.
        new = request.messages[common:] if before is not None and common == len(before.messages) else ()
        whole += _tokens(new) if new else 0
        if not new and before is not None:
            whole += _tokens(_tail(before.messages, request.messages))
        if before is None:
            whole = _tokens(request.messages)
        uncompacted += fixed + whole
        reusable += (fixed + _tokens(request.messages[:common])) if before is not None else 0
        before, seen = request, seen + 1
    summarized = sum(_size(request) for request in model.summaries)
    return Report(
        turns=plan.turns,
        calls=len(model.requests),
        sent=sum(sizes) + summarized,
        uncompacted=uncompacted,
        reusable=reusable,
        largest=max(sizes),
        compactions=len(compactions),
        summaries=len(model.summaries),
        breaks=prefix_breaks(model.answers),
        planted=len(plan.codes),
        dropped=len(agent.dropped),
        asked=len(plan.asks),
        found=agent.found,
        wrong=wrong,
    )


def _tail(before: Sequence[Message], after: Sequence[Message]) -> Sequence[Message]:
    """What a request has after the last message of the one before it, where that is still there."""
    last = before[-1]
    for index in range(len(after) - 1, -1, -1):
        if after[index] == last:
            return after[index + 1 :]
    return after[-1:]


def _common(before: Sequence[Message], after: Sequence[Message]) -> int:
    count = 0
    for one, other in zip(before, after, strict=False):
        if one != other:
            break
        count += 1
    return count


def _tokens(messages: Sequence[Message]) -> int:
    return total(request_items("", messages, ()))


def _size(request: ModelRequest) -> int:
    return total(request_items(request.system_prompt, request.messages, request.tools))
