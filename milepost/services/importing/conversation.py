"""A transcript as the events and rows that turns of that course would have left."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from milepost.contracts.naming import turn_workflow_id
from milepost.domain.approvals import Approval
from milepost.domain.attachments import Attachment
from milepost.domain.budgets import Spending
from milepost.domain.content import Content
from milepost.domain.effects import Effect, EffectClass, EffectSpec, EffectState
from milepost.domain.events import (
    AgentOutput,
    AgentStarted,
    Event,
    ImportCompleted,
    ModelCalled,
    SessionOpened,
    ToolFinished,
    ToolStarted,
    TurnBegun,
    TurnCompleted,
    TurnInterrupted,
)
from milepost.domain.messages import (
    AssistantMessage,
    AssistantPart,
    FinishReason,
    ReasoningPart,
    Sampling,
    TextPart,
    ToolCallPart,
)
from milepost.domain.rewinds import Rewind
from milepost.domain.sessions import Session, SessionMode, SessionStatus, Workspace
from milepost.domain.turns import Turn, TurnOptions, TurnRequest, TurnState
from milepost.domain.usage import Usage
from milepost.engine.effects import effect_id, idempotency_key
from milepost.ledger.codec import encode
from milepost.ports.ledger import NewEvent
from milepost.services.contents import Contents
from milepost.services.finishing import CANCELLED_TEXT, call_position, model_position, tool_event_key
from milepost.services.importing.plan import INTERRUPTED, Plan, derived
from milepost.services.importing.transcript import FORMAT, Asked, Message, Parsed


async def plan_of(
    parsed: Parsed,
    contents: Contents,
    instance_id: str,
    now: int,
    *,
    session: Session | None = None,
    format_: str = FORMAT,
) -> Plan:
    """What the transcript makes; its long texts are kept as blobs. Raises StorageUnavailable.

    With a `session` its turns are for that one, which was opened already.
    """
    begun = parsed.at or next((turn[0].at for turn in parsed.turns if turn[0].at is not None), now)
    opened = session is None
    if session is None:
        session = _session(parsed, begun, now)
    writer = _Writer(session, contents, instance_id, begun, opened=opened)
    for number, messages in enumerate(parsed.turns, start=1):
        await writer.turn(number, messages, parsed.systems.get(number - 1, ""))
    made = writer.made
    interrupted = sum(1 for turn in made.all_turns if turn.state is TurnState.INTERRUPTED)
    completed = ImportCompleted(format_, parsed.digest, len(made.all_turns), interrupted)
    calls = sum(1 for effect in made.all_effects if effect.spec.effect_class is not EffectClass.MODEL)
    spent = Spending(
        usage=sum((turn.usage for turn in made.all_turns), Usage()),
        model_calls=len(made.all_effects) - calls,
        tool_calls=calls,
    )
    return Plan(session, made, completed, spending=spent)


def _session(parsed: Parsed, begun: int, now: int) -> Session:
    """The Session of a transcript: its id is that of the file."""
    agents = tuple(dict.fromkeys(message.agent for turn in parsed.turns for message in turn[1:])) or ("imported",)
    return Session(
        session_id=f"ses_{parsed.digest[:32]}",
        workspace=Workspace("", "", now),
        title=parsed.title,
        mode=SessionMode.SINGLE,
        status=SessionStatus.ACTIVE,
        agents=agents[:1],
        image=None,
        created_at=begun,
        closed_at=None,
    )


@dataclass(slots=True)
class _Made:
    """`plan.Source` of a transcript."""

    all_events: list[NewEvent] = field(default_factory=list)
    all_turns: list[Turn] = field(default_factory=list)
    all_effects: list[Effect] = field(default_factory=list)

    def events(self) -> Iterator[NewEvent]:
        return iter(self.all_events)

    def turns(self) -> Iterator[Turn]:
        return iter(self.all_turns)

    def effects(self) -> Iterator[Effect]:
        return iter(self.all_effects)

    def approvals(self) -> Iterator[Approval]:
        return iter(())

    def rewinds(self) -> Iterator[Rewind]:
        return iter(())

    def attachments(self) -> Iterator[tuple[Attachment, str | None]]:
        return iter(())


class _Writer:
    """Turns messages into the events that a turn of that course would have left."""

    def __init__(
        self, session: Session, contents: Contents, instance_id: str, begun: int, *, opened: bool = True
    ) -> None:
        self._session = session
        self._contents = contents
        self._instance_id = instance_id
        self._now = begun
        self.made = _Made()
        if opened:
            self._add("session.opened", SessionOpened("", session.title, session.mode, session.agents), None)

    async def turn(self, number: int, messages: list[Message], system: str) -> None:
        """Write one turn."""
        session_id = self._session.session_id
        turn_id = derived("trn_", session_id, str(number))
        asked, answers = messages[0], messages[1:]
        self._now = asked.at or self._now
        begun = self._now
        request = TurnRequest(await self._contents.store(asked.text), TurnOptions())
        workflow_id = turn_workflow_id(self._instance_id, turn_id)
        self._add(f"{turn_id}/begun", TurnBegun(turn_id, number, request, workflow_id), turn_id)
        rounds: dict[str, int] = {}
        for message in answers:
            self._now = message.at or self._now
            if message.agent not in rounds:
                rounds[message.agent] = 0
                self._add(f"{turn_id}/{message.agent}/started", _started(turn_id, message, system), turn_id)
            rounds[message.agent] += 1
            await self._answer(turn_id, message, rounds[message.agent])
        usage = sum((message.usage for message in answers), Usage())
        whole = bool(answers) and bool(answers[-1].text.strip()) and not answers[-1].calls
        whole = whole and all(call.result for message in answers for call in message.calls)
        await self._outputs(turn_id, answers, rounds, partial=not whole)
        ended = TurnCompleted(turn_id, usage) if whole else TurnInterrupted(turn_id, usage, INTERRUPTED)
        self._add(f"{turn_id}/ended", ended, turn_id)
        self.made.all_turns.append(
            Turn(
                turn_id=turn_id,
                session_id=session_id,
                number=number,
                state=TurnState.COMPLETED if whole else TurnState.INTERRUPTED,
                request=request,
                content_digest=hashlib.sha256(encode(request)).hexdigest(),
                idempotency_key=None,
                workflow_id=workflow_id,
                claimed_run=None,
                generation=0,
                created_at=begun,
                dispatched_at=None,
                stop_requested_at=None,
                ended_at=self._now,
                error_code=None,
                error_message=None if whole else INTERRUPTED,
                usage=usage,
                superseded=False,
            )
        )

    async def _answer(self, turn_id: str, message: Message, round_: int) -> None:
        parts: list[AssistantPart] = []
        if message.reasoning:
            parts.append(ReasoningPart(message.reasoning))
        if message.text:
            parts.append(TextPart(message.text))
        for call in message.calls:
            parts.append(ToolCallPart(call.call_id, call.tool, await self._contents.store(call.arguments)))
        called_id = self._effect(
            turn_id, message.agent, model_position(round_), "model", EffectClass.MODEL, ""
        ).effect_id
        called = ModelCalled(
            turn_id=turn_id,
            agent=message.agent,
            effect_id=called_id,
            attempt=1,
            round=round_,
            provider=message.provider,
            model=message.model,
            message=AssistantMessage(tuple(parts)),
            finish=FinishReason.TOOL_CALLS if message.calls else FinishReason.STOP,
            usage=message.usage,
        )
        self._add(f"{called_id}/called", called, turn_id)
        for index, call in enumerate(message.calls):
            if call.result is not None:
                await self._tool(turn_id, message.agent, round_, index, call, call.result)
            else:
                self._unanswered(turn_id, message.agent, round_, index, call)

    async def _tool(self, turn_id: str, agent: str, round_: int, index: int, call: Asked, result: Message) -> None:
        self._now = result.at or self._now
        position = call_position(round_, index)
        state = EffectState.FAILED if result.is_error else EffectState.SUCCEEDED
        arguments = await self._contents.store(call.arguments)
        spec = self._effect(
            turn_id,
            agent,
            position,
            f"tool:{call.tool}",
            EffectClass.AT_MOST_ONCE,
            call.arguments,
            call,
            state,
            arguments,
        )
        place = (spec.effect_id, 1, round_, index, call.call_id, call.tool)
        started = ToolStarted(turn_id, agent, *place)
        self._add(tool_event_key(turn_id, agent, position, "started/1"), started, turn_id)
        output = await self._contents.store(result.text)
        finished = ToolFinished(turn_id, agent, *place, state, output, result.is_error, {})
        self._add(tool_event_key(turn_id, agent, position, "finished"), finished, turn_id)

    def _unanswered(self, turn_id: str, agent: str, round_: int, index: int, call: Asked) -> None:
        """A call without a result gets one, as in every turn that is cut short."""
        finished = ToolFinished(
            turn_id=turn_id,
            agent=agent,
            effect_id="",
            attempt=0,
            round=round_,
            index=index,
            call_id=call.call_id,
            tool=call.tool,
            state=EffectState.CANCELLED,
            output=Content(CANCELLED_TEXT),
            is_error=True,
            detail={},
        )
        self._add(tool_event_key(turn_id, agent, call_position(round_, index), "finished"), finished, turn_id)

    def _effect(
        self,
        turn_id: str,
        agent: str,
        position: str,
        operation: str,
        effect_class: EffectClass,
        given: str,
        call: Asked | None = None,
        state: EffectState = EffectState.SUCCEEDED,
        arguments: Content | None = None,
    ) -> EffectSpec:
        digest = hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest()
        spec = EffectSpec(
            effect_id=effect_id(turn_id, 0, agent, position, operation, digest),
            idempotency_key=idempotency_key(turn_id, agent, position, operation, digest),
            session_id=self._session.session_id,
            turn_id=turn_id,
            generation=0,
            agent=agent,
            position=position,
            operation=operation,
            effect_class=effect_class,
            input_digest=digest,
            call_id=None if call is None else call.call_id,
            arguments=arguments,
        )
        self.made.all_effects.append(Effect(spec, state, 1, self._now, self._now, self._now, None, None, None, None))
        return spec

    async def _outputs(self, turn_id: str, answers: list[Message], rounds: dict[str, int], *, partial: bool) -> None:
        for agent, count in rounds.items():
            own = [message for message in answers if message.agent == agent]
            text = next((message.text for message in reversed(own) if message.text), "")
            usage = sum((message.usage for message in own), Usage())
            output = AgentOutput(turn_id, agent, await self._contents.store(text), count, usage, partial)
            self._add(f"{turn_id}/{agent}/output", output, turn_id)

    def _add(self, key: str, event: Event, turn_id: str | None) -> None:
        self.made.all_events.append(NewEvent(key, event, turn_id, self._now))


def _started(turn_id: str, message: Message, system: str) -> AgentStarted:
    return AgentStarted(turn_id, message.agent, message.provider, message.model, system, (), Sampling(), 0)
