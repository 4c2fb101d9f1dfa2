"""Reading what a model gets from the ledger: the Session's turns so far, newest whole turns within a bound."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from activities.attached import Attached
from activities.own_events import OwnEvents
from milepost.domain.checkpoints import Segment
from milepost.domain.content import Content
from milepost.domain.effects import Effect, EffectClass, EffectSpec, EffectState
from milepost.domain.errors import LedgerCorrupt
from milepost.domain.events import (
    AgentStarted,
    ContextCompacted,
    EffectReconciled,
    Event,
    ModelCalled,
    ToolFinished,
    ToolStarted,
)
from milepost.domain.messages import (
    AssistantMessage,
    AssistantPart,
    Message,
    ProviderState,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)
from milepost.domain.sessions import Session
from milepost.domain.teams import conversation_of, is_ephemeral
from milepost.domain.turns import Turn
from milepost.engine.reminders import before_request
from milepost.ledger.chain import StoredEvent
from milepost.ledger.codec import decode_event
from milepost.ledger.compacted import Compacted, compacted_parts, newest, seen_from, summary_message
from milepost.ledger.transcript import TRANSCRIPT_EVENTS, Part, omission, parts_of
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.services.checkpoints import Answered, Checkpoints
from milepost.services.contents import Contents
from milepost.services.earlier import (
    MAX_PROJECTED_BYTES,
    MAX_PROJECTED_TURNS,
    Earlier,
    EarlierTurns,
    reads_outputs,
    view_of,
)
from milepost.services.finishing import called_key, started_key, tool_event_key
from milepost.services.outcomes import reconciled_key

OpenCheckpoints = Callable[[EarlierTurns], Checkpoints]
"""Where the turns that are known are kept -> the checkpoints of their conversations."""

MAX_DECODED_BYTES = 32 * 1024 * 1024
"""Payload bytes of the events that are kept decoded."""


MAX_ANSWERS = 32
"""Answers whose calls may be under way and are kept at hand; more are read again."""


@dataclass(frozen=True, slots=True)
class TurnContext:
    """A turn as its activities see it.

    `omitted` is the number of the newest earlier turn that did not fit. `size` is bytes of the turn's own events that
    its messages are made of. `notes` are for people. `messages` are those of `parts`, in order; before them stand the
    note of what was omitted and the summary, if `compacted` has one. `factor` corrects token estimates of the agent's
    own route.
    """

    session: Session
    turn: Turn
    started: AgentStarted
    events: tuple[Event, ...]
    messages: tuple[Message, ...]
    omitted: int
    parts: tuple[Part, ...] = ()
    compacted: Compacted | None = None
    earlier: Earlier | None = field(default=None, compare=False)
    size: int = 0
    notes: tuple[str, ...] = ()
    factor: float | None = None

    def model_call(self, effect_id: str) -> ModelCalled:
        """The model's event of this turn. Raises LedgerCorrupt if the ledger does not have it."""
        for event in self.events:
            if isinstance(event, ModelCalled) and event.effect_id == effect_id:
                return event
        raise LedgerCorrupt(f"Turn {self.turn.turn_id} has no model call {effect_id}.")

    def call_at(self, round_: int, index: int) -> ToolCallPart:
        """A call of this turn by its place. Raises LedgerCorrupt if the ledger does not have it."""
        for event in self.events:
            if isinstance(event, ModelCalled) and event.agent == self.started.agent and event.round == round_:
                return event.message.calls[index]
        raise LedgerCorrupt(f"Turn {self.turn.turn_id} has no call {index} in round {round_}.")


class DecodedEvents:
    """Decodes stored events, keeping those that were used last: a long turn is read again in each of its rounds.

    By the event's hash, which stands for its content: what is stored never changes. Safe in several threads.
    """

    def __init__(self, limit: int = MAX_DECODED_BYTES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._events: OrderedDict[bytes, tuple[int, Event]] = OrderedDict()
        self.bytes = 0

    def event(self, item: StoredEvent) -> Event:
        """The event; others that were not used for longer make room for it. Raises LedgerCorrupt, UnknownEvent."""
        with self._lock:
            known = self._events.get(item.hash)
            if known is not None:
                self._events.move_to_end(item.hash)
                return known[1]
        event, size = _decoded(item), len(item.payload)
        with self._lock:
            if item.hash not in self._events:
                self._events[item.hash] = (size, event)
                self.bytes += size
            while self.bytes > self._limit:
                _, (left, _) = self._events.popitem(last=False)
                self.bytes -= left
        return event


class Conversations:
    """Loads turn contexts; a long Session costs what the bound allows, not what it holds."""

    def __init__(self, ledger: Ledger, contents: Contents, checkpoints: OpenCheckpoints | None = None) -> None:
        self._ledger = ledger
        self._contents = contents
        self._decoded = DecodedEvents()
        self._own = OwnEvents((AgentStarted.TYPE, *TRANSCRIPT_EVENTS), self._decoded.event)
        self._turns = EarlierTurns(self._decoded.event)
        self._checkpoints = None if checkpoints is None else checkpoints(self._turns)
        self._attached = Attached(contents)
        self._answers: dict[tuple[str, str, str], TurnContext] = {}

    async def turn(self, turn_id: str, agent: str) -> TurnContext:
        """This turn only. Raises TurnNotFound, LedgerCorrupt."""
        return await self._ledger.read(lambda tx: self._context(tx, turn_id, agent, None))

    async def call(self, turn_id: str, agent: str, model_effect_id: str) -> TurnContext:
        """What the calls of one answer need: the agent's start and the answer, however long the turn is.

        Raises TurnNotFound, LedgerCorrupt.
        """
        known = self._answers.get((turn_id, agent, model_effect_id))
        if known is not None:
            return known

        def body(tx: LedgerTx) -> TurnContext:
            turn = tx.turns.get(turn_id)
            keys = (started_key(turn_id, agent), called_key(model_effect_id))
            found = [tx.events.find(turn.session_id, key) for key in keys]
            events = tuple(self._decoded.event(item) for item in found if item is not None)
            session = tx.sessions.get(turn.session_id)
            return TurnContext(session, turn, _started(events, turn_id, agent), events, (), 0)

        return await self._ledger.read(body)

    async def whole(self, turn_id: str, agent: str, round_: int) -> TurnContext:
        """What the model gets in this round: this turn up to it and the turns before, with every text loaded whole.

        It is the same at every try, also when the round itself is in the ledger already: the call's identity is
        derived from it. Raises TurnNotFound, BlobNotFound.
        """
        notes = () if self._checkpoints is None else await self._checkpoints.start(turn_id, agent)
        context = await self._ledger.read(lambda tx: self._context(tx, turn_id, agent, round_))
        parts = [
            replace(part, messages=tuple([await self._load(message) for message in part.messages]))
            for part in await self._attached.given(context.parts, context.started.window_of(0))
        ]
        messages = [message for part in parts for message in part.messages]
        found = context.compacted
        if found is not None and found.event.summary is not None:
            text = await self._contents.load(found.event.summary)
            messages.insert(0, summary_message(found.event, text, readable=reads_outputs(context.started)))
        if context.omitted:
            messages.insert(0, omission(context.omitted))
            notes = (*notes, f"Turns up to number {context.omitted} did not fit and were left out.")
        return replace(context, messages=tuple(messages), parts=tuple(parts), notes=notes)

    def recorded(self, context: TurnContext, event: ModelCalled) -> None:
        """This answer stands in the ledger: its calls, which begin at once and together, need not read it.

        Whether the turn still runs and is this run's is asked in the transaction that dispatches a call, not here.
        """
        own = (context.started, event)
        self._answers[(event.turn_id, event.agent, event.effect_id)] = TurnContext(
            context.session, context.turn, context.started, own, (), 0
        )
        while len(self._answers) > MAX_ANSWERS:
            self._answers.pop(next(iter(self._answers)))

    def answered(self, context: TurnContext, effect_id: str, message: AssistantMessage) -> None:
        """The answer to what `whole` gave was recorded, as `message`. Returns at once."""
        if self._checkpoints is None or context.earlier is None:
            return
        turn, agent = context.turn, context.started.agent
        own = (*view_of(context.started).messages(context.events), message)
        segment = Segment(turn.turn_id, turn.number, context.size, own, ended=False)
        key = (turn.session_id, agent)
        self._checkpoints.answered(Answered(key, context.earlier, segment, called_key(effect_id)))

    async def close(self) -> None:
        """Finish what is written behind the work."""
        if self._checkpoints is not None:
            await self._checkpoints.close()

    async def open_calls(self, turn_id: str) -> list[Effect]:
        """Dispatched attachable calls of a turn that have no outcome. Raises TurnNotFound."""
        effects = await self._ledger.read(lambda tx: tx.effects.open_of_turn(turn_id))
        return [
            effect
            for effect in effects
            if effect.state is EffectState.DISPATCHED and effect.spec.effect_class is EffectClass.ATTACHABLE
        ]

    async def dispatches(self, spec: EffectSpec, attempts: int) -> list[ToolStarted]:
        """The recorded starts of a tool call's first `attempts` attempts; one that is not recorded is left out."""
        position = spec.position
        keys = [tool_event_key(spec.turn_id, spec.agent, position, f"started/{n}") for n in range(1, attempts + 1)]
        found = await self._ledger.read(lambda tx: [tx.events.find(spec.session_id, key) for key in keys])
        events = [_decoded(item) for item in found if item is not None]
        return [event for event in events if isinstance(event, ToolStarted)]

    async def reconciliation(self, spec: EffectSpec) -> EffectReconciled | None:
        """How the outcome of an uncertain call became known."""
        key = reconciled_key(spec.effect_id)
        found = await self._ledger.read(lambda tx: tx.events.find(spec.session_id, key))
        event = None if found is None else _decoded(found)
        return event if isinstance(event, EffectReconciled) else None

    def _context(self, tx: LedgerTx, turn_id: str, agent: str, round_: int | None) -> TurnContext:
        """With a round: what came before it, and the turns before; else the turn as it is."""
        turn = tx.turns.get(turn_id)
        session = tx.sessions.get(turn.session_id)
        pairs = self._own.read(tx, turn.session_id, turn_id)
        if round_ is not None:
            pairs = tuple((size, event) for size, event in pairs if not _is_from(event, agent, round_))
        events = tuple(event for _, event in pairs)
        started = _started(events, turn_id, agent)
        view = view_of(started)
        messages = view.messages(events)
        if round_ is None:
            return TurnContext(session, turn, started, events, tuple(messages), 0)
        size = sum(each for each, _ in pairs)
        own, readable = newest(events, agent), reads_outputs(started)
        if turn.request.options.stateless:
            left = parts_of(messages, turn.number, 0)
            found = None if own is None else seen_from(own, 0)
            parts = tuple(compacted_parts(left, found, readable=readable))
            return TurnContext(session, turn, started, events, (), 0, parts, found)
        # A worker that exists for one subtask has nothing before it; planning goes on from what its Coordinator said.
        before = 0 if is_ephemeral(agent) else turn.number
        past = view_of(replace(started, agent=conversation_of(agent)))
        earlier = self._turns.read(
            tx, turn.session_id, past, before, MAX_PROJECTED_BYTES - size, MAX_PROJECTED_TURNS, own
        )
        whole = [*earlier.parts, *parts_of(messages, turn.number, 0)]
        parts = tuple(compacted_parts(whole, earlier.compacted, readable=readable))
        context = TurnContext(
            session, turn, started, events, (), earlier.omitted, parts, earlier.compacted, earlier, size
        )
        return replace(context, factor=tx.budgets.factor(started.provider, started.model)[0])

    async def _load(self, message: Message) -> Message:
        match message:
            case UserMessage():
                text = await self._whole(message.text)
                given = f"{before_request(message.before, text.text)}{message.after}"
                return UserMessage(replace(text, text=given), message.images)
            case ToolMessage():
                # The model gets the bounded text; the whole output is in the ledger for people and for paging tools.
                return message
            case AssistantMessage():
                parts = tuple([await self._part(part) for part in message.parts])
                state = message.provider_state
                if state is not None and state.data.blob is not None:
                    state = ProviderState(state.provider, state.model, await self._whole(state.data))
                return AssistantMessage(parts, state)

    async def _part(self, part: AssistantPart) -> AssistantPart:
        if isinstance(part, ToolCallPart) and part.arguments.blob is not None:
            return replace(part, arguments=await self._whole(part.arguments))
        return part

    async def _whole(self, content: Content) -> Content:
        return content if content.blob is None else Content(await self._contents.load(content))


def _is_from(event: Event, agent: str, round_: int) -> bool:
    """Whether the event belongs to this round of the agent, or to a later one."""
    if isinstance(event, ContextCompacted):
        # It is recorded before the model call of its round.
        return event.agent == agent and event.round > round_
    return isinstance(event, ModelCalled | ToolFinished) and event.agent == agent and event.round >= round_


def _started(events: tuple[Event, ...], turn_id: str, agent: str) -> AgentStarted:
    for event in events:
        if isinstance(event, AgentStarted) and event.agent == agent:
            return event
    raise LedgerCorrupt(f"Turn {turn_id} has no start of agent '{agent}'.")


def _decoded(item: StoredEvent) -> Event:
    return decode_event(item.type, item.version, item.payload)
